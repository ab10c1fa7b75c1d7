// SPDX-License-Identifier: Apache-2.0

//go:build !race

package sys

import "golang.org/x/sys/cpu"

// CopyPastCaches is copy of as many bytes as both have room for, by stores that go past the caches where the processor has
// them: what they overwrite is not read in first, and nothing that the caches have makes room. It pays for who writes more
// than caches hold. To later stores it is as copy. Memory of the two does not overlap.
func CopyPastCaches(dst, src []byte) {
	n := min(len(dst), len(src))
	if n < 256 || !cpu.X86.HasAVX {
		copy(dst, src)
		return
	}
	copyPastCaches(&dst[0], &src[0], n)
}

//go:noescape
func copyPastCaches(dst, src *byte, n int)
