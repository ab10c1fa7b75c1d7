// SPDX-License-Identifier: Apache-2.0

package ref

import (
	"encoding/binary"
	"math"
	"sort"

	"github.com/doorbell-net/doorbell/internal/num"
	"github.com/doorbell-net/doorbell/moe"
)

// Encode returns the bytes of a row of BF16 bits on its way to an expert: elements, scales, and the zeros that round
// each up to 16 bytes. It looks each e4m3 up among all that there are.
func Encode(f moe.Format, x []uint16) []byte {
	row := make([]byte, f.RowBytes(len(x)))
	if f == moe.BF16 {
		for j, v := range x {
			binary.LittleEndian.PutUint16(row[2*j:], v)
		}
		return row
	}
	scales := row[f.ValueBytes(len(x)):]
	for g := 0; g*group < len(x); g++ {
		part := x[g*group : min((g+1)*group, len(x))]
		scale, by := scaleOf(f, part)
		for j, v := range part {
			row[g*group+j] = nearest(float32(num.BF16ToF32(v) * by))
		}
		if f == moe.FP8UE8M0 {
			scales[g] = byte(math.Ilogb(float64(scale)) + 127)
		} else {
			binary.LittleEndian.PutUint32(scales[4*g:], math.Float32bits(scale))
		}
	}
	return row
}

// Decode returns in BF16 bits what the elements of a row that Encode made are worth: each times its group's scale in
// float32, rounded.
func Decode(f moe.Format, row []byte, hidden int) []uint16 {
	x := make([]uint16, hidden)
	scales := row[f.ValueBytes(hidden):]
	for j := range x {
		g := j / group
		switch f {
		case moe.BF16:
			x[j] = binary.LittleEndian.Uint16(row[2*j:])
		case moe.FP8UE8M0:
			x[j] = num.F32ToBF16(num.E4M3ToF32(row[j]) * float32(math.Ldexp(1, int(scales[g])-127)))
		default:
			x[j] = num.F32ToBF16(num.E4M3ToF32(row[j]) * math.Float32frombits(binary.LittleEndian.Uint32(scales[4*g:])))
		}
	}
	return x
}

const group = 128 // elements that share a scale

// scaleOf returns a group's scale, and what its elements are multiplied by.
func scaleOf(f moe.Format, x []uint16) (scale, by float32) {
	top := float32(1e-4)
	for _, v := range x {
		if m := math.Abs(float64(num.BF16ToF32(v))); !math.IsInf(m, 0) && !math.IsNaN(m) {
			top = max(top, float32(m))
		}
	}
	scale = top / 448
	if f == moe.FP8 {
		return scale, 448 / top
	}
	part, e := math.Frexp(float64(scale)) // scale is part * 2^e, part from 0.5 to 1
	if part == 0.5 {
		e--
	}
	return float32(math.Ldexp(1, e)), float32(math.Ldexp(1, -e))
}

// nearest is the e4m3 nearest to v, of two the even one. What is beyond the largest becomes it.
func nearest(v float32) byte {
	if math.IsNaN(float64(v)) {
		return 0x7f
	}
	sign := byte(0)
	if math.Signbit(float64(v)) {
		sign = 0x80
	}
	m := math.Min(math.Abs(float64(v)), 448)
	value := func(q int) float64 { return float64(num.E4M3ToF32(byte(q))) }
	up := sort.Search(0x7e, func(q int) bool { return value(q) >= m })
	if up == 0 {
		return sign
	}
	down := up - 1
	if a, b := m-value(down), value(up)-m; a < b || a == b && down%2 == 0 {
		return sign | byte(down)
	}
	return sign | byte(up)
}

// Sent returns the problem as the experts' ranks see it: each element is what it is worth after its way in the format.
// It shares all but X with p.
func (p *Problem) Sent(f moe.Format) *Problem {
	q := *p
	q.X = make([][]uint16, len(p.X))
	for r, x := range p.X {
		for ; len(x) > 0; x = x[p.Hidden:] {
			q.X[r] = append(q.X[r], Decode(f, Encode(f, x[:p.Hidden]), p.Hidden)...)
		}
	}
	return &q
}
