// SPDX-License-Identifier: Apache-2.0

//go:build !race

package num

import "golang.org/x/sys/cpu"

// What the vector units do: so many words from the first. The race detector does not see what they touch, and its builds
// have none of it.

func topVectors(v []uint32) (n int, top uint32) {
	n = len(v) &^ 7
	if n == 0 || !cpu.X86.HasAVX2 {
		return 0, 0
	}
	return n, topAVX2(&v[0], n)
}

func e4m3Vectors(q, v []uint32, by float32) int {
	n := len(q) &^ 3
	if n == 0 || !cpu.X86.HasAVX2 {
		return 0
	}
	_ = v[2*n-1]
	e4m3AVX2(&q[0], &v[0], n, by)
	return n
}

//go:noescape
func topAVX2(v *uint32, n int) uint32

//go:noescape
func e4m3AVX2(q, v *uint32, n int, by float32)
