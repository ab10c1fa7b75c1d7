// SPDX-License-Identifier: Apache-2.0

// Package ref is the plain reference of MoE dispatch and combine: nested loops over every token, with nothing shared
// with the code it judges. It is slow on purpose, holds all ranks at once, and is meant for tests and for the checking
// rounds of benches.
//
// # Low-latency semantics
//
// Rank s has T_s tokens of Hidden BF16 elements. Each token has TopK selections: an expert id or -1. Every selection
// that is not -1 sends one copy of its token to the rank that owns the expert, so an expert selected twice by one token
// gets two copies, and both weights count. Combine returns to the source, for each of its tokens,
//
//	acc = +0; for k ascending, selection k not -1: acc = float32(acc + float32(w[k]*y[k])); out = bf16(acc)
//
// in FP32 without fused multiply-add, where y[k] is the expert's output for that copy. A token whose selections are all
// -1 yields +0.
//
// # Ownership of experts
//
// Ranks own contiguous ranges in rank order: with q = Experts/Ranks and m = Experts%Ranks, the first m ranks own q+1
// experts each and the others q, which may be 0.
package ref

import (
	"fmt"
	"slices"
)

// MaxTopK is the largest number of selections per token.
const MaxTopK = 32

// Problem is one MoE layer step of all ranks. The slices are owned by the caller and only read.
type Problem struct {
	Ranks   int // ranks of the world, at least 1
	Experts int // experts of the world, at least 1; need not divide by Ranks
	TopK    int // selections per token, 1..MaxTopK
	Hidden  int // elements per token, a positive multiple of 8

	X       [][]uint16  // [rank][token*Hidden + j]: BF16 bits of the tokens
	Idx     [][]int32   // [rank][token*TopK + k]: global expert id, or -1 for no selection
	Weights [][]float32 // [rank][token*TopK + k]: read by Combine only, so nil is accepted where nothing is combined
}

// Validate returns nil if p is well formed, else an error that names the rank, the value and what is accepted.
// Values of X and Weights are not judged: NaN and infinities go through the arithmetic.
func (p *Problem) Validate() error {
	if p == nil {
		return fmt.Errorf("validate problem: nil")
	}
	if p.Ranks < 1 {
		return fmt.Errorf("validate problem: ranks %d, accepted 1 or more", p.Ranks)
	}
	if p.Experts < 1 {
		return fmt.Errorf("validate problem: experts %d, accepted 1 or more", p.Experts)
	}
	if p.TopK < 1 || p.TopK > MaxTopK {
		return fmt.Errorf("validate problem: topk %d, accepted 1..%d", p.TopK, MaxTopK)
	}
	if p.Hidden < 8 || p.Hidden%8 != 0 {
		return fmt.Errorf("validate problem: hidden %d, accepted positive multiples of 8", p.Hidden)
	}
	if len(p.Idx) != p.Ranks {
		return fmt.Errorf("validate problem: selections of %d ranks given, wanted %d", len(p.Idx), p.Ranks)
	}
	if len(p.X) != p.Ranks {
		return fmt.Errorf("validate problem: tokens of %d ranks given, wanted %d", len(p.X), p.Ranks)
	}
	if p.Weights != nil && len(p.Weights) != p.Ranks {
		return fmt.Errorf("validate problem: weights of %d ranks given, wanted %d", len(p.Weights), p.Ranks)
	}
	for r := 0; r < p.Ranks; r++ {
		if err := p.validateRank(r); err != nil {
			return fmt.Errorf("validate problem: rank %d: %w", r, err)
		}
	}
	return nil
}

func (p *Problem) validateRank(r int) error {
	n := len(p.Idx[r])
	if n%p.TopK != 0 {
		return fmt.Errorf("%d selections, accepted multiples of topk %d", n, p.TopK)
	}
	tokens := n / p.TopK
	if len(p.X[r]) != tokens*p.Hidden {
		return fmt.Errorf("%d elements for %d tokens of hidden %d, wanted %d", len(p.X[r]), tokens, p.Hidden, tokens*p.Hidden)
	}
	if p.Weights != nil && len(p.Weights[r]) != n {
		return fmt.Errorf("%d weights for %d selections", len(p.Weights[r]), n)
	}
	for i, e := range p.Idx[r] {
		if e < -1 || int(e) >= p.Experts {
			return fmt.Errorf("token %d selection %d: expert %d, accepted -1..%d", i/p.TopK, i%p.TopK, e, p.Experts-1)
		}
	}
	return nil
}

// Tokens returns the number of tokens of rank r.
func (p *Problem) Tokens(r int) int { return len(p.Idx[r]) / p.TopK }

// LocalExperts returns the number of experts that rank r owns; it may be 0.
func (p *Problem) LocalExperts(r int) int {
	n := p.Experts / p.Ranks
	if r < p.Experts%p.Ranks {
		n++
	}
	return n
}

// FirstExpert returns the global id of rank r's local expert 0: the number of experts that lower ranks own.
func (p *Problem) FirstExpert(r int) int {
	first := 0
	for q := 0; q < r; q++ {
		first += p.LocalExperts(q)
	}
	return first
}

// Owner returns the rank that owns expert e, and panics if e is not in 0..Experts-1.
func (p *Problem) Owner(e int) int {
	first := 0
	for r := 0; r < p.Ranks; r++ {
		next := first + p.LocalExperts(r)
		if e >= first && e < next {
			return r
		}
		first = next
	}
	panic(fmt.Sprintf("find owner: expert %d, accepted 0..%d", e, p.Experts-1))
}

// Without returns what is left of p when ranks are lost: they have no tokens, and selections of their experts are none.
func (p *Problem) Without(lost ...int) *Problem {
	q := *p
	q.X, q.Idx, q.Weights = slices.Clone(p.X), slices.Clone(p.Idx), slices.Clone(p.Weights)
	for r := range q.Idx {
		if slices.Contains(lost, r) {
			q.X[r], q.Idx[r] = nil, nil
			if q.Weights != nil {
				q.Weights[r] = nil
			}
			continue
		}
		q.Idx[r] = slices.Clone(q.Idx[r])
		for i, e := range q.Idx[r] {
			if e >= 0 && slices.Contains(lost, p.Owner(int(e))) {
				q.Idx[r][i] = -1
			}
		}
	}
	return &q
}
