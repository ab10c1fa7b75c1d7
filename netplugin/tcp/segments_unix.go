// SPDX-License-Identifier: Apache-2.0

//go:build unix

package tcp

import (
	"fmt"
	"syscall"

	"golang.org/x/sys/unix"
)

// limitSegments bounds what a socket that is not connected yet, and those that a listener accepts, send and ask for; 0
// takes the bound away.
func limitSegments(raw syscall.RawConn, bytes int) error {
	var err error
	if cerr := raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_MAXSEG, bytes) }); cerr != nil {
		err = cerr
	}
	if err != nil {
		return fmt.Errorf("limit segments to %d bytes: %w", bytes, err)
	}
	return nil
}
