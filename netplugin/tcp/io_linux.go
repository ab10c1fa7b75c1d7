// SPDX-License-Identifier: Apache-2.0

package tcp

import "golang.org/x/sys/unix"

// recvSmall receives what is there into a buffer of ours, without telling the scheduler: it takes less than a microsecond,
// and asks for less than the scheduler's own bookkeeping (8 B round trips on loopback: bench/README.md, "tcp").
func recvSmall(fd int, b []byte) (int, error) {
	n, errno := transfer(unix.SYS_RECVFROM, fd, b, unix.MSG_DONTWAIT)
	return n, errOf(errno)
}

// sendSmall sends what the socket takes of b.
func sendSmall(fd int, b []byte) (int, error) {
	n, errno := transfer(unix.SYS_SENDTO, fd, b, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
	return n, errOf(errno)
}

func fillIovecs(iov *[vecs]unix.Iovec, pieces [][]byte) int {
	n := min(len(pieces), vecs)
	for i := range n {
		setIovec(&iov[i], pieces[i])
	}
	return n
}

func errOf(e unix.Errno) error {
	switch e {
	case 0:
		return nil
	case unix.EAGAIN, unix.EINTR:
		return unix.EAGAIN
	}
	return e
}
