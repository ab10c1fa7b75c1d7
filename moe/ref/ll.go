// SPDX-License-Identifier: Apache-2.0

package ref

import (
	"fmt"

	"github.com/doorbell-net/doorbell/internal/num"
)

// Row is one copy of a token at an expert.
type Row struct {
	SrcRank  int      // rank the token came from
	SrcToken int      // index of the token on SrcRank
	SrcK     int      // which of the token's selections asked for this copy
	Payload  []uint16 // Hidden BF16 elements; Dispatch returns slices of Problem.X, not copies
}

// Rows holds what dispatch delivers: [rank][local expert][row], rows sorted by (SrcRank, SrcToken, SrcK).
type Rows [][][]Row

// Outputs holds what experts computed: [rank][local expert][row][Hidden] BF16 bits, rows in the order of Rows.
type Outputs [][][][]uint16

// Dispatch returns the rows that each local expert of each rank must receive, or the error of p.Validate.
// Each selection that is not -1 appears exactly once. p.Weights is not used.
func Dispatch(p *Problem) (Rows, error) {
	if err := p.Validate(); err != nil {
		return nil, err
	}
	rows := make(Rows, p.Ranks)
	for r := 0; r < p.Ranks; r++ {
		rows[r] = make([][]Row, p.LocalExperts(r))
		for l := range rows[r] {
			want := int32(p.FirstExpert(r) + l)
			for s := 0; s < p.Ranks; s++ {
				for t := 0; t < p.Tokens(s); t++ {
					for k := 0; k < p.TopK; k++ {
						if p.Idx[s][t*p.TopK+k] == want {
							x := p.X[s][t*p.Hidden : (t+1)*p.Hidden : (t+1)*p.Hidden]
							rows[r][l] = append(rows[r][l], Row{SrcRank: s, SrcToken: t, SrcK: k, Payload: x})
						}
					}
				}
			}
		}
	}
	return rows, nil
}

// Combine returns for each rank its combined tokens, [rank][token*Hidden + j] in BF16 bits, by the rule in the package
// comment, bit for bit. out must have the shape of Dispatch(p); p.Weights must be given.
func Combine(p *Problem, out Outputs) ([][]uint16, error) {
	res := make([][]uint16, p.Ranks)
	for s := range res {
		res[s] = make([]uint16, len(p.X[s]))
	}
	err := eachToken(p, out, func(s, t int, w []float32, y [][]uint16) {
		for j := 0; j < p.Hidden; j++ {
			acc := float32(0)
			for i := range y {
				// The conversions forbid the compiler to fuse the product into the sum.
				product := float32(w[i] * num.BF16ToF32(y[i][j]))
				acc = float32(acc + product)
			}
			res[s][t*p.Hidden+j] = num.F32ToBF16(acc)
		}
	})
	if err != nil {
		return nil, err
	}
	return res, nil
}

// CombineF64 is Combine in FP64 with no rounding to BF16: a sanity check on Combine itself, see CalcDiff.
func CombineF64(p *Problem, out Outputs) ([][]float64, error) {
	res := make([][]float64, p.Ranks)
	for s := range res {
		res[s] = make([]float64, len(p.X[s]))
	}
	err := eachToken(p, out, func(s, t int, w []float32, y [][]uint16) {
		for j := 0; j < p.Hidden; j++ {
			acc := 0.0
			for i := range y {
				acc += float64(w[i]) * float64(num.BF16ToF32(y[i][j]))
			}
			res[s][t*p.Hidden+j] = acc
		}
	})
	if err != nil {
		return nil, err
	}
	return res, nil
}

// eachToken calls f for every token with the weights and the expert outputs of its selections, k ascending, -1 left out.
func eachToken(p *Problem, out Outputs, f func(s, t int, w []float32, y [][]uint16)) error {
	rows, err := Dispatch(p)
	if err != nil {
		return err
	}
	if p.Weights == nil {
		return fmt.Errorf("combine: weights are nil, wanted %d ranks of them", p.Ranks)
	}
	if err := checkOutputs(p, rows, out); err != nil {
		return err
	}
	for s := 0; s < p.Ranks; s++ {
		for t := 0; t < p.Tokens(s); t++ {
			var w []float32
			var y [][]uint16
			for k := 0; k < p.TopK; k++ {
				e := int(p.Idx[s][t*p.TopK+k])
				if e == -1 {
					continue
				}
				r := p.Owner(e)
				l := e - p.FirstExpert(r)
				for i, row := range rows[r][l] {
					if row.SrcRank == s && row.SrcToken == t && row.SrcK == k {
						w = append(w, p.Weights[s][t*p.TopK+k])
						y = append(y, out[r][l][i])
					}
				}
			}
			f(s, t, w, y)
		}
	}
	return nil
}

func checkOutputs(p *Problem, rows Rows, out Outputs) error {
	if len(out) != p.Ranks {
		return fmt.Errorf("combine: expert outputs of %d ranks, wanted %d", len(out), p.Ranks)
	}
	for r := range rows {
		if len(out[r]) != len(rows[r]) {
			return fmt.Errorf("combine: rank %d: outputs of %d experts, wanted %d", r, len(out[r]), len(rows[r]))
		}
		for l := range rows[r] {
			if len(out[r][l]) != len(rows[r][l]) {
				return fmt.Errorf("combine: rank %d expert %d: %d output rows, wanted %d",
					r, p.FirstExpert(r)+l, len(out[r][l]), len(rows[r][l]))
			}
			for i, y := range out[r][l] {
				if len(y) != p.Hidden {
					return fmt.Errorf("combine: rank %d expert %d row %d: %d elements, wanted hidden %d",
						r, p.FirstExpert(r)+l, i, len(y), p.Hidden)
				}
			}
		}
	}
	return nil
}
