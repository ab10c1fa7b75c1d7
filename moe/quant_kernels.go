// SPDX-License-Identifier: Apache-2.0

package moe

import (
	"math"

	"github.com/doorbell-net/doorbell/gpu"
	"github.com/doorbell-net/doorbell/internal/num"
)

const (
	groupSize  = 128 // elements that share a scale
	groupFours = groupSize / 4
	groupLanes = 16   // of a warp that have a group, 8 elements each
	groups     = 4    // that a warp's halves have on their way at once: a load takes a GPU as long as all the rest
	leastTop   = 1e-4 // of a group's largest magnitude, so that one of zeros has a scale
	e4m3Max    = 448  // of e4m3
)

// rowFormat is how rows are sent: see the kernels' arguments of the same names.
type rowFormat struct{ Format, Hidden, Values, Payload int32 }

// quantise writes a row of BF16 as e4m3 and its scales. All lanes of a warp call it, of each of so many warps that share the
// row.
func (a *rowFormat) quantise(t gpu.Thread, row, from gpu.Ptr[byte], warp, warps int32) {
	n := (a.Hidden + groupSize - 1) / groupSize
	if gpu.WarpSize == 1 {
		for g := warp; g < n; g += warps {
			a.quantiseGroup(row, from, g)
		}
	} else {
		for g := 2 * warp; g < n; g += groups * 2 * warps {
			a.quantiseGroups(t, row, from, g+t.Lane()/groupLanes, 2*warps)
		}
	}
	lane, lanes := warp*gpu.WarpSize+t.Lane(), warps*gpu.WarpSize
	q := gpu.Cast[uint32](row)
	for i := a.Hidden/4 + lane; i < a.Values/4; i += lanes {
		q.At(int(i)).Store(0)
	}
	used := 4 * n
	if a.Format == int32(FP8UE8M0) {
		used = n
	}
	for i := a.Values + used + lane; i < a.Payload; i += lanes {
		row.Byte(uint64(i)).Store(0)
	}
}

// quantiseGroup is of one group, where a lane is alone.
func (a *rowFormat) quantiseGroup(row, from gpu.Ptr[byte], g int32) {
	first := g * groupFours
	n := int(min(groupFours, a.Hidden/4-first))
	x, q := gpu.Slice(gpu.Cast[uint32](from).At(int(2*first)), 2*n), gpu.Slice(gpu.Cast[uint32](row).At(int(first)), n)
	s := a.scaleOf(num.TopOfPairs(x))
	num.E4M3OfPairs(q, x, s.by)
	a.storeScale(row, g, s)
}

// quantiseGroups is of the group first of a half of the warp, and of others step further each.
func (a *rowFormat) quantiseGroups(t gpu.Thread, row, from gpu.Ptr[byte], first, step int32) {
	var v [groups]gpu.U32x4
	at := t.Lane() % groupLanes
	x, q, eights := gpu.Cast[gpu.U32x4](from), gpu.Cast[gpu.U32x2](row), a.Hidden/8
	//gpu:unroll 4
	for k := range int32(groups) {
		if i := (first+k*step)*groupLanes + at; i < eights {
			v[k] = x.At(int(i)).Load()
		}
	}
	mine := at / (groupLanes / groups)
	g := first + mine*step
	s := a.scaleOf(topOfGroup(t, &v, at))
	if at%(groupLanes/groups) == 0 && g*groupLanes < eights {
		a.storeScale(row, g, s)
	}
	//gpu:unroll 4
	for k := range int32(groups) {
		by := gpu.ShflIdx(t, s.by, t.Lane()-at+k*(groupLanes/groups))
		if i := (first+k*step)*groupLanes + at; i < eights {
			q.At(int(i)).Store(gpu.U32x2{e4m3x4(v[k][0], v[k][1], by), e4m3x4(v[k][2], v[k][3], by)})
		}
	}
}

// topOfGroup is the largest magnitude of a group, of four that a half of the warp has: lanes 0 to 3 of the half get the first's,
// and so on. A lane gives away what others keep, so that the fewest words cross and one division does for all groups.
func topOfGroup(t gpu.Thread, v *[groups]gpu.U32x4, at int32) uint32 {
	a, b, c, d := topOf(v[0]), topOf(v[1]), topOf(v[2]), topOf(v[3])
	if at&8 != 0 {
		a, b, c, d = c, d, a, b
	}
	a, b = max(a, gpu.ShflXor(t, c, 8)), max(b, gpu.ShflXor(t, d, 8))
	if at&4 != 0 {
		a, b = b, a
	}
	a = max(a, gpu.ShflXor(t, b, 4))
	a = max(a, gpu.ShflXor(t, a, 2))
	a = max(a, gpu.ShflXor(t, a, 1))
	return max(a, aboveInfinity) - aboveInfinity
}

// aboveInfinity takes the bits of the magnitude of an infinity or a NaN, and of nothing less, over their 15 bits.
const aboveInfinity = 0x80

// topOf is aboveInfinity more than the largest of the magnitudes of eight BF16, in their bits: what orders them is what orders
// integers. Infinities and NaN do not count: they come to less than a zero does.
func topOf(v gpu.U32x4) uint32 {
	lo, hi := uint32(0), uint32(0)
	for _, w := range v {
		w = (w&0x7fff7fff + (aboveInfinity<<16 | aboveInfinity)) & 0x7fff7fff
		lo, hi = max(lo, w<<16), max(hi, w)
	}
	return max(lo, hi) >> 16
}

// e4m3x4 is two pairs of BF16 multiplied and rounded, the first in the low byte.
func e4m3x4(x, y uint32, by float32) uint32 {
	return e4m3x2(x, by) | e4m3x2(y, by)<<16
}

func e4m3x2(x uint32, by float32) uint32 {
	return gpu.E4M3x2(gpu.Mul(gpu.BF16Lo(x), by), gpu.Mul(gpu.BF16Hi(x), by))
}

// scale is a group's: what its elements are multiplied by, and what the receiver multiplies them with, of FP8UE8M0 its exponent.
type scale struct {
	by, back float32
	exponent uint32
}

// scaleOf is of a group whose largest magnitude has those bits.
func (a *rowFormat) scaleOf(bits uint32) (s scale) {
	top := max(math.Float32frombits(bits<<16), leastTop)
	s.back, s.by = float32(top/e4m3Max), float32(e4m3Max/top)
	if a.Format != int32(FP8) { // raised to a power of two
		s.exponent = (math.Float32bits(s.back) + 1<<23 - 1) >> 23
		s.back, s.by = math.Float32frombits(s.exponent<<23), math.Float32frombits((254-s.exponent)<<23)
	}
	return s
}

func (a *rowFormat) storeScale(row gpu.Ptr[byte], g int32, s scale) {
	if scales := row.Byte(uint64(a.Values)); a.Format == int32(FP8UE8M0) {
		scales.Byte(uint64(g)).Store(byte(s.exponent))
	} else {
		gpu.Cast[float32](scales).At(int(g)).Store(s.back)
	}
}
