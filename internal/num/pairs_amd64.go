// SPDX-License-Identifier: Apache-2.0

//go:build !race

package num

import "golang.org/x/sys/cpu"

// What the vector units do: so many words from the first, a multiple of 8 or 16. The race detector does not see what they touch,
// and its builds have none of it.

func addVectors(lo, hi []float32, v []uint32, w float32) int {
	n := len(v) &^ 7
	if n == 0 || !cpu.X86.HasAVX2 {
		return 0
	}
	_, _ = lo[n-1], hi[n-1]
	addAVX2(&lo[0], &hi[0], &v[0], n, w)
	return n
}

func roundVectors(out []uint32, lo, hi []float32) int {
	n := len(out) &^ 7
	if n == 0 || !cpu.X86.HasAVX2 {
		return 0
	}
	_, _ = lo[n-1], hi[n-1]
	roundAVX2(&out[0], &lo[0], &hi[0], n)
	return n
}

func sumVectors(out []uint32, rows [][]uint32, w []float32) int {
	n := len(out) &^ 15
	if n == 0 || len(rows) == 0 || !cpu.X86.HasAVX2 {
		return 0
	}
	for _, row := range rows {
		_ = row[n-1]
	}
	sumAVX2(&out[0], &rows[0], &w[0], len(rows), n)
	return n
}

//go:noescape
func addAVX2(lo, hi *float32, v *uint32, n int, w float32)

//go:noescape
func roundAVX2(out *uint32, lo, hi *float32, n int)

//go:noescape
func sumAVX2(out *uint32, rows *[]uint32, w *float32, count, n int)
