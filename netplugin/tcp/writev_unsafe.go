// SPDX-License-Identifier: Apache-2.0

// Unsafe: gives the kernel the addresses of slices to write. They stay alive and in place for the call: the table of them
// is on the stack of the caller, who holds the slices. TestWritev covers it.

//go:build linux

package tcp

import (
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

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
