// SPDX-License-Identifier: Apache-2.0

//go:build unix

package tcp

import (
	"fmt"
	"net"
	"time"

	"golang.org/x/sys/unix"

	"github.com/doorbell-net/doorbell/internal/sys"
)

// takeFD takes a connection's descriptor out of the runtime's hands: it stays non-blocking, and is polled by us alone.
func takeFD(c *net.TCPConn, silence time.Duration, class int) (int, error) {
	defer c.Close()
	raw, err := c.SyscallConn()
	if err != nil {
		return -1, err
	}
	fd := -1
	cerr := raw.Control(func(p uintptr) { fd, err = unix.FcntlInt(p, unix.F_DUPFD_CLOEXEC, 0) })
	if cerr != nil || err != nil {
		return -1, fmt.Errorf("take the socket's descriptor: %w", first(cerr, err))
	}
	for _, o := range []struct{ level, name, value int }{
		{unix.IPPROTO_TCP, unix.TCP_NODELAY, 1}, {unix.SOL_SOCKET, unix.SO_SNDBUF, 4 << 20}, {unix.SOL_SOCKET, unix.SO_RCVBUF, 4 << 20},
	} {
		_ = unix.SetsockoptInt(fd, o.level, o.name, o.value) // wishes: the socket works without
	}
	if class != 0 {
		if err := setClass(fd, class); err != nil {
			closeFD(fd)
			return -1, err
		}
	}
	setSilence(fd, silence)
	sys.RetrySoon(fd)
	if sameHost(c.LocalAddr(), c.RemoteAddr()) {
		setNoControl(fd)
	}
	return fd, nil
}

// setClass marks the socket's packets. One of IPv6 may carry IPv4, so that one of the two is enough.
func setClass(fd, class int) error {
	v6 := unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_TCLASS, class)
	v4 := unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_TOS, class)
	if v4 != nil && v6 != nil {
		return fmt.Errorf("traffic class %d: %w", class, v4)
	}
	return nil
}

// sameHost says whether both ends are of this host: traffic between its own addresses has one and the same at both ends,
// or loopback ones.
func sameHost(local, remote net.Addr) bool {
	l, ok := local.(*net.TCPAddr)
	r, also := remote.(*net.TCPAddr)
	return ok && also && (l.IP.Equal(r.IP) || l.IP.IsLoopback() && r.IP.IsLoopback())
}

func first(a, b error) error {
	if a != nil {
		return a
	}
	return b
}

func recv(fd int, b []byte) (int, error) {
	n, err := unix.Read(fd, b)
	if err == unix.EINTR {
		err = unix.EAGAIN // the next pass comes soon
	}
	return n, err
}

func closeFD(fd int) { _ = unix.Close(fd) }
