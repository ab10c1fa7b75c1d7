// SPDX-License-Identifier: Apache-2.0

// Unsafe: takes 8 bytes of a region for a word. The caller has checked bounds, and the alignment of the offset and of
// the region's start. The conformance kit and FuzzPost run it under -race, with pointer checks on.

package shm

import "unsafe"

func wordAt(mem []byte, off uint64) *uint64 { return (*uint64)(unsafe.Pointer(&mem[off])) }

// skewOf is the address of mem's first byte modulo 8, 0 for an empty one.
func skewOf(mem []byte) uint64 { return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(mem))) & 7) }
