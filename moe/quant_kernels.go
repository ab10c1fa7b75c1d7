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
	leastTop   = 1e-4 // of a group's largest magnitude, so that one of zeros has a scale
	e4m3Max    = 448  // of e4m3
)

// rowFormat is how rows are sent: see the kernels' arguments of the same names.
type rowFormat struct{ Format, Hidden, Values, Payload int32 }

// quantise writes a row of BF16 as e4m3 and its scales, 4 elements a lane at a time. All lanes of a warp call it, of each of
// so many warps that share the row.
func (a *rowFormat) quantise(t gpu.Thread, row, from gpu.Ptr[byte], warp, warps int32) {
	x, q := gpu.Cast[gpu.U32x2](from), gpu.Cast[uint32](row)
	fours, space := a.Hidden/4, a.Values/4
	groups := (a.Hidden + groupSize - 1) / groupSize
	for g := warp; g < groups; g += warps {
		first, end := g*groupFours, min((g+1)*groupFours, fours)
		top := topOf(t, x, first, end)
		by := a.storeScale(t, row.Byte(uint64(a.Values)), g, max(math.Float32frombits(top<<16), leastTop))
		codes(t, q, x, first, end, by)
	}
	lane, lanes := warp*gpu.WarpSize+t.Lane(), warps*gpu.WarpSize
	for i := fours + lane; i < space; i += lanes {
		q.At(int(i)).Store(0)
	}
	used := 4 * groups
	if a.Format == int32(FP8UE8M0) {
		used = groups
	}
	for i := a.Values + used + lane; i < a.Payload; i += lanes {
		row.Byte(uint64(i)).Store(0)
	}
}

// topOf is the largest of the magnitudes of fours of BF16, in their bits: what orders them is what orders integers.
// Infinities and NaN do not count.
func topOf(t gpu.Thread, x gpu.Ptr[gpu.U32x2], first, end int32) (top uint32) {
	if gpu.WarpSize == 1 {
		return num.TopOfPairs(gpu.Slice(gpu.Cast[uint32](x.At(int(first))), int(2*(end-first))))
	}
	for i := first + t.Lane(); i < end; i += gpu.WarpSize {
		for _, w := range x.At(int(i)).Load() {
			for _, m := range [2]uint32{w & 0x7fff, w >> 16 & 0x7fff} {
				if m < 0x7f80 {
					top = max(top, m)
				}
			}
		}
	}
	for mask := int32(gpu.WarpSize / 2); mask > 0; mask /= 2 {
		top = max(top, gpu.ShflXor(t, top, mask))
	}
	return top
}

// codes writes fours of BF16 as e4m3, multiplied by a number.
func codes(t gpu.Thread, q gpu.Ptr[uint32], x gpu.Ptr[gpu.U32x2], first, end int32, by float32) {
	if gpu.WarpSize == 1 {
		n := int(end - first)
		num.E4M3OfPairs(gpu.Slice(q.At(int(first)), n), gpu.Slice(gpu.Cast[uint32](x.At(int(first))), 2*n), by)
		return
	}
	for i := first + t.Lane(); i < end; i += gpu.WarpSize {
		q.At(int(i)).Store(e4m3x4(x.At(int(i)).Load(), by))
	}
}

// storeScale writes the scale of a group whose largest magnitude is top, and returns what its elements are multiplied by.
func (a *rowFormat) storeScale(t gpu.Thread, scales gpu.Ptr[byte], g int32, top float32) float32 {
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
	if t.Lane() == 0 {
		if a.Format == int32(FP8UE8M0) {
			scales.Byte(uint64(g)).Store(byte(e))
		} else {
			gpu.Cast[float32](scales).At(int(g)).Store(scale)
		}
	}
	return by
}

// e4m3x4 is four BF16 multiplied and rounded, the first in the low byte.
func e4m3x4(x gpu.U32x2, by float32) uint32 {
	return e4m3(gpu.BF16Lo(x[0]), by) | e4m3(gpu.BF16Hi(x[0]), by)<<8 | e4m3(gpu.BF16Lo(x[1]), by)<<16 | e4m3(gpu.BF16Hi(x[1]), by)<<24
}

func e4m3(v, by float32) uint32 { return uint32(num.F32ToE4M3Sat(gpu.Mul(v, by))) }
