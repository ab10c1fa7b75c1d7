// SPDX-License-Identifier: Apache-2.0

package ref

import "github.com/doorbell-net/doorbell/internal/num"

// Expert is what an expert does to element j of a row: BF16 bits in, BF16 bits out. e is the global expert id.
type Expert func(e, j int, v uint16) uint16

// ExpertFn is the expert of the tests: bf16(v*a(e) + b(e, j)), which tells neighbouring experts and columns apart.
// a has 4 fraction bits, so v*a is exact in FP32 and a fused multiply-add gives the same bits as two roundings.
func ExpertFn(e, j int, v uint16) uint16 {
	a := 1 + float32(e%16)/16
	b := float32((e*37+j*11)%61 - 30)
	product := float32(num.BF16ToF32(v) * a)
	return num.F32ToBF16(float32(product + b))
}

// Identity is the expert that returns what it got.
func Identity(_, _ int, v uint16) uint16 { return v }

// Apply runs f over every row and returns the outputs in new memory, in the shape that Combine takes.
func Apply(p *Problem, rows Rows, f Expert) Outputs {
	out := make(Outputs, len(rows))
	for r := range rows {
		out[r] = make([][][]uint16, len(rows[r]))
		for l := range rows[r] {
			e := p.FirstExpert(r) + l
			out[r][l] = make([][]uint16, len(rows[r][l]))
			for i, row := range rows[r][l] {
				y := make([]uint16, len(row.Payload))
				for j, v := range row.Payload {
					y[j] = f(e, j, v)
				}
				out[r][l][i] = y
			}
		}
	}
	return out
}
