// SPDX-License-Identifier: Apache-2.0

package ref

import (
	"fmt"

	"github.com/doorbell-net/doorbell/internal/num"
)

// HTRow is a token at a rank that has experts of it, in the high-throughput form.
type HTRow struct {
	SrcRank, SrcToken int
	Experts           []int32   // [TopK] local experts of this rank, -1 for a selection of none or of another rank's
	Weights           []float32 // [TopK] of the selections that are this rank's; 0 for the others
	Payload           []uint16  // Hidden BF16 elements; slices of Problem.X, not copies
}

// HTDispatch returns the rows that each rank receives: source rank ascending, then token ascending, a token once for each
// rank, however many of its selections are that rank's. Problem.Weights may be nil: all are 0 then.
func HTDispatch(p *Problem) ([][]HTRow, error) {
	if err := p.Validate(); err != nil {
		return nil, err
	}
	rows := make([][]HTRow, p.Ranks)
	for r := range rows {
		for s := 0; s < p.Ranks; s++ {
			for t := 0; t < p.Tokens(s); t++ {
				row := HTRow{SrcRank: s, SrcToken: t, Payload: p.X[s][t*p.Hidden : (t+1)*p.Hidden : (t+1)*p.Hidden]}
				here := false
				for k := 0; k < p.TopK; k++ {
					e, local, w := int(p.Idx[s][t*p.TopK+k]), int32(-1), float32(0)
					if e >= 0 && p.Owner(e) == r {
						here, local = true, int32(e-p.FirstExpert(r))
						if p.Weights != nil {
							w = p.Weights[s][t*p.TopK+k]
						}
					}
					row.Experts, row.Weights = append(row.Experts, local), append(row.Weights, w)
				}
				if here {
					rows[r] = append(rows[r], row)
				}
			}
		}
	}
	return rows, nil
}

// HTExpertRows returns how many selections name each local expert of rank r, rounded up to a multiple of align.
func HTExpertRows(p *Problem, r, align int) []int {
	n := make([]int, p.LocalExperts(r))
	for s := range p.Idx {
		for _, e := range p.Idx[s] {
			if e >= 0 && p.Owner(int(e)) == r {
				n[int(e)-p.FirstExpert(r)]++
			}
		}
	}
	for l := range n {
		n[l] = (n[l] + align - 1) / align * align
	}
	return n
}

// HTOutput is what a rank gives back for a row.
type HTOutput struct {
	Y       []uint16  // Hidden BF16 elements
	Weights []float32 // TopK
}

// HTCombine returns for each rank its combined tokens and weights, bit for bit. perNode consecutive ranks are a node. A
// token's rows are added up unweighted, in float32 from +0, in two levels: over the ranks of a node, ascending, rounded
// to BF16 where there are several nodes; then the nodes that the token visited, ascending; then its biases, in their
// order; then to BF16. Weights are added up likewise and never rounded. A bias is [rank][token*Hidden + j].
func HTCombine(p *Problem, perNode int, out [][]HTOutput, biases ...[][]uint16) (y [][]uint16, w [][]float32, err error) {
	rows, err := HTDispatch(p)
	if err != nil {
		return nil, nil, err
	}
	at := make(map[[3]int]HTOutput) // by rank, source and token
	for r := range rows {
		if len(out[r]) != len(rows[r]) {
			return nil, nil, fmt.Errorf("combine: rank %d: %d outputs, wanted %d", r, len(out[r]), len(rows[r]))
		}
		for i, row := range rows[r] {
			at[[3]int{r, row.SrcRank, row.SrcToken}] = out[r][i]
		}
	}
	y, w = make([][]uint16, p.Ranks), make([][]float32, p.Ranks)
	for s := range y {
		y[s], w[s] = make([]uint16, len(p.X[s])), make([]float32, len(p.Idx[s]))
		for t := 0; t < p.Tokens(s); t++ {
			for j := 0; j < p.Hidden; j++ {
				acc := twoLevels(p.Ranks, perNode, true, func(r int) (float32, bool) {
					o, ok := at[[3]int{r, s, t}]
					if !ok {
						return 0, false
					}
					return num.BF16ToF32(o.Y[j]), true
				})
				for _, b := range biases {
					acc = float32(acc + num.BF16ToF32(b[s][t*p.Hidden+j]))
				}
				y[s][t*p.Hidden+j] = num.F32ToBF16(acc)
			}
			for k := 0; k < p.TopK; k++ {
				w[s][t*p.TopK+k] = twoLevels(p.Ranks, perNode, false, func(r int) (float32, bool) {
					o, ok := at[[3]int{r, s, t}]
					if !ok {
						return 0, false
					}
					return o.Weights[k], true
				})
			}
		}
	}
	return y, w, nil
}

// twoLevels adds up what the ranks have, as HTCombine says.
func twoLevels(ranks, perNode int, round bool, of func(r int) (float32, bool)) float32 {
	acc := float32(0)
	for first := 0; first < ranks; first += perNode {
		node, visited := float32(0), false
		for r := first; r < first+perNode; r++ {
			if v, ok := of(r); ok {
				node, visited = float32(node+v), true
			}
		}
		if round && ranks > perNode {
			node = num.BF16ToF32(num.F32ToBF16(node))
		}
		if visited {
			acc = float32(acc + node)
		}
	}
	return acc
}

// HTTraffic is what one rank does in one dispatch, or several.
type HTTraffic struct {
	// As the published figures count (DeepEP's intranode and internode tests), what stays on the rank included.
	Nodes int64 // for each token the distinct nodes that it goes to: rows that would be put
	Rows  int64 // rows that the rank receives

	Stored int64 // rows that it stores at ranks of its node, of its own tokens and of those it passes on; a combine reads as many
	Own    int64 // of these, at itself
	Put    int64 // messages that it puts to other nodes
	Came   int64 // messages that other nodes put to it; a combine puts as many back
}

// Plus adds up two.
func (a HTTraffic) Plus(o HTTraffic) HTTraffic {
	return HTTraffic{a.Nodes + o.Nodes, a.Rows + o.Rows, a.Stored + o.Stored, a.Own + o.Own, a.Put + o.Put, a.Came + o.Came}
}

// HTTrafficOf returns the traffic of each rank, where perNode consecutive ranks are a node. p must be valid.
func HTTrafficOf(p *Problem, perNode int) []HTTraffic {
	all := make([]HTTraffic, p.Ranks)
	goes := make([]bool, p.Ranks)
	for s := range all {
		for t := range p.Tokens(s) {
			clear(goes)
			for _, e := range p.Idx[s][t*p.TopK : (t+1)*p.TopK] {
				if e >= 0 {
					goes[p.Owner(int(e))] = true
				}
			}
			for first := 0; first < p.Ranks; first += perNode {
				n := int64(0)
				for r := first; r < first+perNode; r++ {
					if goes[r] {
						all[r].Rows++
						n++
					}
				}
				if n == 0 {
					continue
				}
				all[s].Nodes++
				by := first + s%perNode // who stores the token's rows there
				all[by].Stored += n
				if goes[by] {
					all[by].Own++
				}
				if first/perNode != s/perNode {
					all[s].Put++
					all[by].Came++
				}
			}
		}
	}
	return all
}
