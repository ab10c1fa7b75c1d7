// SPDX-License-Identifier: Apache-2.0

// Unsafe: takes 8 bytes of a region for a word. The caller has checked bounds and alignment of the offset; regions
// start at a page.

package shm

import "unsafe"

func wordAt(mem []byte, off uint64) *uint64 { return (*uint64)(unsafe.Pointer(&mem[off])) }
