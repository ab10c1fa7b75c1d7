// SPDX-License-Identifier: Apache-2.0

package moe

import (
	"github.com/doorbell-net/doorbell/gpu"
	"github.com/doorbell-net/doorbell/internal/num"
)

// sumPairs is how many pairs of elements a lane adds up at once: 4 of a warp's, more where it is alone.
const sumPairs = 4 + 1020*(1/gpu.WarpSize)

// sum is such sums, of low halves and of high ones, from +0.
type sum struct{ lo, hi [sumPairs]float32 }

// add adds w times a part of a row of BF16: round(w*v), then round(acc+p).
func (s *sum) add(v []uint32, w float32) {
	if gpu.WarpSize == 1 {
		num.AddPairs(s.lo[:], s.hi[:], v, w)
		return
	}
	for j := range sumPairs { // a constant, so that sums stay in registers
		if j >= len(v) {
			break
		}
		s.lo[j] = gpu.Add(s.lo[j], gpu.Mul(w, gpu.BF16Lo(v[j])))
		s.hi[j] = gpu.Add(s.hi[j], gpu.Mul(w, gpu.BF16Hi(v[j])))
	}
}

// addRounded adds another sum, rounded to BF16.
func (s *sum) addRounded(o *sum) {
	if gpu.WarpSize == 1 {
		var v [sumPairs]uint32
		num.RoundPairs(v[:], o.lo[:], o.hi[:])
		num.AddPairs(s.lo[:], s.hi[:], v[:], 1)
		return
	}
	for j := range sumPairs {
		w := gpu.BF16x2(o.lo[j], o.hi[j])
		s.lo[j] = gpu.Add(s.lo[j], gpu.BF16Lo(w))
		s.hi[j] = gpu.Add(s.hi[j], gpu.BF16Hi(w))
	}
}

// store rounds them to BF16.
func (s *sum) store(out []uint32) {
	if gpu.WarpSize == 1 {
		num.RoundPairs(out, s.lo[:], s.hi[:])
		return
	}
	for j := range sumPairs {
		if j < len(out) {
			out[j] = gpu.BF16x2(s.lo[j], s.hi[j])
		}
	}
}
