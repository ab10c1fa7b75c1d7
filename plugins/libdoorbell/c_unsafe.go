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

// store puts a structure where C wants it.
func store[T any](to address, v T) { *(*T)(to) = v }

// handlesAt is the n handles of C's at p.
func handlesAt(p *C.uint64_t, n int) []C.uint64_t { return unsafe.Slice(p, n) }

// addresses stores where the device and the host see a buffer.
func addresses(device, host *address, at gpu.Ptr[byte], view []byte) {
	*device, *host = address(at.Raw()), address(unsafe.SliceData(view))
}
