// SPDX-License-Identifier: Apache-2.0

package num

import "math"

// TopOfPairs is the largest magnitude of the finite bf16 in pairs, two a word, as bits; 0 if there is none.
func TopOfPairs(v []uint32) uint32 {
	n, top := topVectors(v)
	for _, x := range v[n:] {
		if m := x & 0x7fff; m < 0x7f80 {
			top = max(top, m)
		}
		if m := x >> 16 & 0x7fff; m < 0x7f80 {
			top = max(top, m)
		}
	}
	return top
}

// E4M3OfPairs multiplies the bf16 in pairs, rounds each product to float32 and then as F32ToE4M3Sat does. Each of q has
// four of them, of two of v, the first in the low byte; v is twice as long as q, or longer.
func E4M3OfPairs(q, v []uint32, by float32) {
	n := e4m3Vectors(q, v, by)
	q, v = q[n:], v[2*n:]
	v = v[:2*len(q)]
	for i := range q {
		a, b := v[2*i], v[2*i+1]
		q[i] = times(a<<16, by) | times(a&0xffff0000, by)<<8 | times(b<<16, by)<<16 | times(b&0xffff0000, by)<<24
	}
}

const (
	e4m3Shift  = 23 - 3
	e4m3Rebias = (127 - 7) << 23
	e4m3Half   = e4m3Rebias - (1<<(e4m3Shift-1) - 1) // what is taken off rounds half up, too
	e4m3Normal = (127 - 6) << 23                     // bits of 2^-6, the smallest normal
	e4m3Most   = 0x7e
	e4m3NaN    = 0x7f
	// 2^14: added to a number as float32, it rounds that to units of 2^-9, which are the subnormals.
	e4m3Units     = 1 << 14
	e4m3UnitsBits = (127 + 14) << 23
)

func times(bits uint32, by float32) uint32 { return E4M3(float32(math.Float32frombits(bits) * by)) }

// E4M3 is F32ToE4M3Sat in fewer steps: a normal is rounded by integers, and what is smaller by an addition. It is safe in device
// code.
func E4M3(f float32) uint32 {
	b := math.Float32bits(f)
	abs := b & 0x7fffffff
	if abs > f32Inf {
		return e4m3NaN
	}
	code := math.Float32bits(math.Float32frombits(abs)+e4m3Units) - e4m3UnitsBits
	if abs >= e4m3Normal {
		code = min((abs-e4m3Half+abs>>e4m3Shift&1)>>e4m3Shift, e4m3Most)
	}
	return b>>24&0x80 | code
}
