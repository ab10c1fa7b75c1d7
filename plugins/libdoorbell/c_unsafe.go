// SPDX-License-Identifier: Apache-2.0

// Unsafe: memory of C. The caller's contract is that a pointer leads to as many bytes as it says; nil is refused before. What
// is stored there holds addresses of Go's memory only when they are pinned. The tests run a C and a Python program.

package main

/*
#include <stdint.h>
*/
import "C"

import (
	"unsafe"

	"github.com/doorbell-net/doorbell/gpu"
)

// address is void * in an exported function.
type address = unsafe.Pointer

// bytesOf is the n bytes of C's at p.
func bytesOf(p address, n int) []byte { return unsafe.Slice((*byte)(p), n) }

// store puts a structure where C wants it: as bytes, since the collector would look at a pointer that it replaces, and C's memory
// may hold anything.
func store[T any](to address, v *T) {
	copy(bytesOf(to, int(unsafe.Sizeof(*v))), bytesOf(address(v), int(unsafe.Sizeof(*v))))
}

// handlesAt is the n handles of C's at p.
func handlesAt(p *C.uint64_t, n int) []C.uint64_t { return unsafe.Slice(p, n) }

// addresses are where the device and the host see a buffer.
func addresses(at gpu.Ptr[byte], view []byte) (device, host uintptr) {
	return uintptr(address(at.Raw())), uintptr(address(unsafe.SliceData(view)))
}
