// SPDX-License-Identifier: Apache-2.0

package sys

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// Netlink sends a request to the kernel's routing family of netlink and returns the first message of its answer, which may be
// an error. It waits for a second at most.
func Netlink(request []byte) ([]byte, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("netlink: socket: %w", err)
	}
	defer unix.Close(fd)
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 1}); err != nil {
		return nil, fmt.Errorf("netlink: set its timeout: %w", err)
	}
	if err := unix.Sendto(fd, request, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return nil, fmt.Errorf("netlink: send %d bytes: %w", len(request), err)
	}
	answer := make([]byte, 1<<16)
	for {
		switch n, _, err := unix.Recvfrom(fd, answer, 0); {
		case err == nil:
			return answer[:n], nil
		case err != unix.EINTR:
			return nil, fmt.Errorf("netlink: receive: %w", err)
		}
	}
}
