// SPDX-License-Identifier: Apache-2.0

// Package routing makes, stores and reads back the routing of MoE tokens to experts, and the tagged payloads that
// travel along it.
//
// Everything comes from a printed seed: one seed gives the same routing and the same payloads in every process, so that
// a receiver can compute what it must have received without asking the sender.
package routing

import (
	"cmp"
	"fmt"
	"math"
)

// Limits of a routing, generated or read.
const (
	MaxRanks   = 1 << 12
	MaxExperts = 1 << 16
	MaxTopK    = 32
	MaxTokens  = 1 << 20 // per rank
	MaxLayers  = 1 << 12 // of a file
)

// Routing says for the tokens of all ranks which experts they go to and with which weights.
type Routing struct {
	Ranks   int
	Experts int    // of the world
	TopK    int    // selections per token
	Seed    uint64 // what it was generated from; 0 where it was recorded elsewhere

	Idx     [][]int32   // [rank][token*TopK + k]: global expert id, or -1 for no selection
	Weights [][]float32 // [rank][token*TopK + k]; an entry whose Idx is -1 has a weight too, which nobody may use
}

// Tokens returns the number of tokens of rank r.
func (g *Routing) Tokens(r int) int { return len(g.Idx[r]) / g.TopK }

// MaxTokens returns the largest number of tokens of any rank.
func (g *Routing) MaxTokens() int {
	most := 0
	for r := range g.Idx {
		most = max(most, g.Tokens(r))
	}
	return most
}

// First returns the routing of the first n tokens of each rank, or of all that it has. It shares g's memory.
func (g *Routing) First(n int) *Routing {
	f := &Routing{Ranks: g.Ranks, Experts: g.Experts, TopK: g.TopK, Seed: g.Seed}
	for r := range g.Idx {
		entries := min(n, g.Tokens(r)) * g.TopK
		f.Idx, f.Weights = append(f.Idx, g.Idx[r][:entries]), append(f.Weights, g.Weights[r][:entries])
	}
	return f
}

// Validate returns nil if g is well formed, else an error that names the rank, the value and what is accepted.
func (g *Routing) Validate() error {
	if err := checkShape(g.Ranks, g.Experts, g.TopK); err != nil {
		return fmt.Errorf("validate routing: %w", err)
	}
	if len(g.Idx) != g.Ranks || len(g.Weights) != g.Ranks {
		return fmt.Errorf("validate routing: selections of %d ranks and weights of %d, wanted %d of each",
			len(g.Idx), len(g.Weights), g.Ranks)
	}
	for r := range g.Idx {
		n := len(g.Idx[r])
		if n%g.TopK != 0 || n/g.TopK > MaxTokens {
			return fmt.Errorf("validate routing: rank %d: %d selections, accepted multiples of topk %d up to %d tokens",
				r, n, g.TopK, MaxTokens)
		}
		if len(g.Weights[r]) != n {
			return fmt.Errorf("validate routing: rank %d: %d weights for %d selections", r, len(g.Weights[r]), n)
		}
		if i, err := checkEntries(g.Idx[r], g.Weights[r], g.Experts); err != nil {
			return fmt.Errorf("validate routing: rank %d token %d selection %d: %w", r, i/g.TopK, i%g.TopK, err)
		}
	}
	return nil
}

func checkShape(ranks, experts, topK int) error {
	switch {
	case ranks < 1 || ranks > MaxRanks:
		return fmt.Errorf("ranks %d, accepted 1..%d", ranks, MaxRanks)
	case experts < 1 || experts > MaxExperts:
		return fmt.Errorf("experts %d, accepted 1..%d", experts, MaxExperts)
	case topK < 1 || topK > MaxTopK:
		return fmt.Errorf("topk %d, accepted 1..%d", topK, MaxTopK)
	}
	return nil
}

// checkEntries returns the index of the first bad entry. len(idx) equals len(w).
func checkEntries(idx []int32, w []float32, experts int) (int, error) {
	for i, e := range idx {
		if err := cmp.Or(checkExpert(int64(e), experts), checkWeight(w[i])); err != nil {
			return i, err
		}
	}
	return 0, nil
}

func checkExpert(e int64, experts int) error {
	if e < -1 || e >= int64(experts) {
		return fmt.Errorf("expert %d, accepted -1..%d", e, experts-1)
	}
	return nil
}

func checkWeight(w float32) error {
	if f := float64(w); math.IsNaN(f) || math.IsInf(f, 0) {
		return fmt.Errorf("weight %v, accepted finite values", f)
	}
	return nil
}

// expertRange returns the experts [lo, hi) that rank r owns: contiguous, the first experts%ranks ranks take one more.
func expertRange(experts, ranks, r int) (lo, hi int) {
	q, m := experts/ranks, experts%ranks
	lo = r*q + min(r, m)
	hi = (r+1)*q + min(r+1, m)
	return lo, hi
}
