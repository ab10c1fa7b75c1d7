// SPDX-License-Identifier: Apache-2.0

//go:build linux

// Unsafe: hands the addresses of a word and of a time limit to the futex system call. Both stay alive and in place for
// the call, since they are arguments converted in the call itself. TestFutex covers it.

package sys

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

func futex(addr *uint32, op, val uint32, ts *unix.Timespec) {
	unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(addr)), uintptr(op), uintptr(val), uintptr(unsafe.Pointer(ts)), 0, 0)
}
