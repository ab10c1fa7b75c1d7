// SPDX-License-Identifier: Apache-2.0

package num

import "math"

// AddPairs adds w*v to sums of pairs: of each word of v the bf16 in the low half to lo, that in the high half to hi. Each
// product and each sum is rounded to float32, nothing is fused. lo and hi are as long as v, or longer.
func AddPairs(lo, hi []float32, v []uint32, w float32) {
	n := addVectors(lo, hi, v, w)
	v, lo, hi = v[n:], lo[n:], hi[n:]
	lo, hi = lo[:len(v)], hi[:len(v)]
	for j, x := range v {
		lo[j] += float32(w * math.Float32frombits(x<<16))
		hi[j] += float32(w * math.Float32frombits(x&0xffff0000))
	}
}

// SumPairs fills out with sums of rows of bf16 pairs, rounded as RoundPairs does: of each row in turn, w[j] times its words. Rows are
// as long as out, or longer. It is AddPairs for each row and RoundPairs, in one pass that keeps the sums in registers.
func SumPairs(out []uint32, rows [][]uint32, w []float32) {
	w = w[:len(rows)]
	for i := sumVectors(out, rows, w); i < len(out); i++ {
		var lo, hi float32
		for j, row := range rows {
			x := row[i]
			lo += float32(w[j] * math.Float32frombits(x<<16))
			hi += float32(w[j] * math.Float32frombits(x&0xffff0000))
		}
		out[i] = round(lo)>>16 | round(hi)&0xffff0000
	}
}

// RoundPairs rounds pairs to bf16, to the nearest and ties to even, any NaN to 0x7fff. lo and hi are as long as out, or
// longer.
func RoundPairs(out []uint32, lo, hi []float32) {
	n := roundVectors(out, lo, hi)
	out, lo, hi = out[n:], lo[n:], hi[n:]
	lo, hi = lo[:len(out)], hi[:len(out)]
	for j := range out {
		out[j] = round(lo[j])>>16 | round(hi[j])&0xffff0000
	}
}

func round(f float32) uint32 {
	b := math.Float32bits(f)
	if f != f {
		return 0x7fff7fff
	}
	return b + 0x7fff + b>>16&1
}
