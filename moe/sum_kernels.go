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

// add adds w times n pairs of a row of BF16: round(w*v), then round(acc+p). On a GPU n is sumPairs.
func (s *sum) add(v gpu.Ptr[uint32], n int32, w float32) {
	if gpu.WarpSize == 1 {
		num.AddPairs(s.lo[:], s.hi[:], gpu.Slice(v, int(n)), w)
		return
	}
	s.addFour(gpu.Cast[gpu.U32x4](v).Load(), w)
}

// addFour adds w times four pairs: as many as a lane of a warp adds up.
func (s *sum) addFour(v gpu.U32x4, w float32) {
	for j := range v {
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
	for j, w := range o.four() {
		s.lo[j] = gpu.Add(s.lo[j], gpu.BF16Lo(w))
		s.hi[j] = gpu.Add(s.hi[j], gpu.BF16Hi(w))
	}
}

// store rounds n pairs to BF16. On a GPU n is sumPairs.
func (s *sum) store(out gpu.Ptr[uint32], n int32) {
	if gpu.WarpSize == 1 {
		num.RoundPairs(gpu.Slice(out, int(n)), s.lo[:], s.hi[:])
		return
	}
	gpu.Cast[gpu.U32x4](out).Store(s.four())
}

// four are the sums of a lane of a warp, rounded to BF16.
func (s *sum) four() (v gpu.U32x4) {
	for j := range v {
		v[j] = gpu.BF16x2(s.lo[j], s.hi[j])
	}
	return v
}
