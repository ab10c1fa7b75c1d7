// SPDX-License-Identifier: Apache-2.0

// Unsafe: gives the kernel the addresses of slices to read and write. They stay alive and in place for the call: each is
// held by the caller, or stands in a table on the caller's stack. TestIO covers it.

//go:build linux

package tcp

import (
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

func transfer(call uintptr, fd int, b []byte, flags uintptr) (int, unix.Errno) {
	n, _, errno := unix.RawSyscall6(call, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(b))), uintptr(len(b)), flags, 0, 0)
	return int(n), errno
}

// writev writes pieces with one system call and no allocation; x/sys' own allocates for more than eight.
func writev(fd int, pieces [][]byte) (int, error) {
	var iov [vecs]unix.Iovec
	n := fillIovecs(&iov, pieces)
	w, _, errno := unix.Syscall(unix.SYS_WRITEV, uintptr(fd), uintptr(unsafe.Pointer(&iov)), uintptr(n))
	runtime.KeepAlive(pieces)
	return int(w), errOf(errno)
}

func setIovec(v *unix.Iovec, b []byte) {
	v.Base = unsafe.SliceData(b)
	v.SetLen(len(b))
}
