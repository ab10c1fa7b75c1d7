// SPDX-License-Identifier: Apache-2.0

//go:build unix

package netif

import (
	"fmt"
	"syscall"

	"golang.org/x/sys/unix"
)

// SmallSegment is the bytes of a segment that any IPv4 network carries, with headers in 576. Sockets of the set-up send no larger
// ones: a way may drop large packets and say nothing, when a link on it takes less than the hosts' own and the messages that would
// tell are filtered.
const SmallSegment = 536

// LimitSegments bounds what a socket that is not connected yet, and those that a listener accepts, send and ask for; 0
// takes the bound away.
func LimitSegments(raw syscall.RawConn, bytes int) error {
	var err error
	if cerr := raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_MAXSEG, bytes) }); cerr != nil {
		err = cerr
	}
	if err != nil {
		return fmt.Errorf("limit segments to %d bytes: %w", bytes, err)
	}
	return nil
}
