// SPDX-License-Identifier: Apache-2.0

// Unsafe: takes 8-byte aligned heap memory for bytes and cuts it at a page, since Go states no alignment above 8.
// TestAlignment covers it.

package soft

import "unsafe"

// slab is zeroed heap memory that starts at a page.
func slab(bytes int) []byte {
	words := make([]uint64, (bytes+page-1)/8+page/8)
	p := unsafe.Pointer(unsafe.SliceData(words))
	skip := (page - uintptr(p)%page) % page
	return unsafe.Slice((*byte)(unsafe.Add(p, skip)), bytes)
}
