// SPDX-License-Identifier: Apache-2.0

package bootstrap

import (
	"fmt"
	"net"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

const haveAbstract = true

// bootID names the running kernel; containers of one host share it. Empty where it cannot be read.
func bootID() string {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

// bytesWait reports whether a socket has bytes to read.
func bytesWait(fd int) bool {
	n, err := unix.IoctlGetInt(fd, unix.SIOCINQ)
	return err == nil && n > 0
}

// peerCred returns pid and user id of the process at the other end, as the kernel noted them at connect or listen.
func peerCred(c *net.UnixConn) (pid, uid int, err error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return 0, 0, fmt.Errorf("read peer credentials: %w", err)
	}
	var cred *unix.Ucred
	var serr error
	if err := raw.Control(func(fd uintptr) {
		cred, serr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); err != nil {
		return 0, 0, fmt.Errorf("read peer credentials: %w", err)
	}
	if serr != nil {
		return 0, 0, fmt.Errorf("read peer credentials: %w", serr)
	}
	return int(cred.Pid), int(cred.Uid), nil
}
