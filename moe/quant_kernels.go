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
	num.E4M3OfPairs(q, x, a.storeScale(row, g, true, num.TopOfPairs(x)))
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
	//gpu:unroll 4
	for k := range int32(groups) {
		g := first + k*step
		i := g*groupLanes + at
		top := topOf(v[k])
		for mask := int32(groupLanes / 2); mask > 0; mask /= 2 {
			top = max(top, gpu.ShflXor(t, top, mask))
		}
		by := a.storeScale(row, g, at == 0 && i < eights, top)
		if i < eights {
			q.At(int(i)).Store(gpu.U32x2{e4m3x4(v[k][0], v[k][1], by), e4m3x4(v[k][2], v[k][3], by)})
		}
	}
}

// topOf is the largest of the magnitudes of eight BF16, in their bits: what orders them is what orders integers. Infinities and
// NaN do not count.
func topOf(v gpu.U32x4) (top uint32) {
	for _, w := range v {
		for _, m := range [2]uint32{w & 0x7fff, w >> 16 & 0x7fff} {
			if m < 0x7f80 {
				top = max(top, m)
			}
		}
	}
	return top
}

// e4m3x4 is two pairs of BF16 multiplied and rounded, the first in the low byte.
func e4m3x4(x, y uint32, by float32) uint32 {
	return e4m3x2(x, by) | e4m3x2(y, by)<<16
}

func e4m3x2(x uint32, by float32) uint32 {
	return gpu.E4M3x2(gpu.Mul(gpu.BF16Lo(x), by), gpu.Mul(gpu.BF16Hi(x), by))
}

// storeScale writes the scale of a group whose largest magnitude has those bits, if this lane does, and returns what its elements
// are multiplied by.
func (a *rowFormat) storeScale(row gpu.Ptr[byte], g int32, mine bool, bits uint32) float32 {
	top := max(math.Float32frombits(bits<<16), leastTop)
	scale, by := float32(top/e4m3Max), float32(e4m3Max/top)
	e := uint32(0)
	if a.Format != int32(FP8) {
		bits := math.Float32bits(scale)
		e = bits >> 23
		if bits&(1<<23-1) != 0 {
			e++
		}
		scale, by = math.Float32frombits(e<<23), math.Float32frombits((254-e)<<23)
	}
	if scales := row.Byte(uint64(a.Values)); mine {
		if a.Format == int32(FP8UE8M0) {
			scales.Byte(uint64(g)).Store(byte(e))
		} else {
			gpu.Cast[float32](scales).At(int(g)).Store(scale)
		}
	}
	return by
}
