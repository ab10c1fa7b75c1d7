// SPDX-License-Identifier: Apache-2.0

package moe_test

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/doorbell-net/doorbell"
	"github.com/doorbell-net/doorbell/moe"
	"github.com/doorbell-net/doorbell/moe/ref"
	"github.com/doorbell-net/doorbell/moe/routing"
	_ "github.com/doorbell-net/doorbell/netplugin/fault"
)

// Over any network that keeps its contract, for any routing and size of rings, each token comes once to each of its ranks,
// in order and with nothing written beside it; again with a known layout it is the same; sums are the reference's, bit for
// bit; when all is done no message is left, none was put too many, and no signal was raised too often; and what was counted
// is what the routing says.
func TestHTProperty(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		ranks := rapid.IntRange(1, 6).Draw(rt, "ranks")
		experts := rapid.IntRange(1, 17).Draw(rt, "experts")
		o := moe.HTOptions{
			MaxTokens: rapid.IntRange(1, 12).Draw(rt, "tokens") * rapid.SampledFrom([]int{1, 1, 1, 6}).Draw(rt, "times"), Experts: experts, TopK: rapid.IntRange(1, 9).Draw(rt, "topk"),
			Hidden: 8 * rapid.IntRange(1, 50).Draw(rt, "hidden/8"), NoLSA: rapid.Bool().Draw(rt, "no lsa"),
			Format: moe.Format(rapid.IntRange(0, 3).Draw(rt, "format")), Align: rapid.SampledFrom([]int{0, 1, 7, 64}).Draw(rt, "align"),
			Layouts: rapid.IntRange(0, 2).Draw(rt, "layouts"), Contexts: rapid.IntRange(0, 3).Draw(rt, "contexts"),
			Channels: rapid.IntRange(1, 5).Draw(rt, "channels"), Ring: rapid.SampledFrom([]int{0, 2, 3, 5}).Draw(rt, "ring"),
		}
		on := doorbell.Options{RanksPerNode: nodes(rt, ranks)}
		misbehave(rt, &on)
		w := newHT(t, ranks, on, o)
		defer w.close()
		put, counted := uint64(0), newHTCounted(w)
		for iter := range rapid.IntRange(1, 3).Draw(rt, "iterations") {
			ro := routing.Options{Seed: rapid.Uint64().Draw(rt, "seed"), Ranks: ranks, Experts: experts, TopK: o.TopK, Tokens: o.MaxTokens,
				Pattern:     rapid.SampledFrom([]routing.Pattern{{}, {Kind: routing.Zipf, S: 1.2}, {Kind: routing.HotExpert, Share: 1}, {Kind: routing.HotRank, Share: 0.5}}).Draw(rt, "pattern"),
				Uneven:      rapid.Bool().Draw(rt, "uneven"),
				DropEntries: rapid.SampledFrom([]float64{0, 0.1, 0.5, 1}).Draw(rt, "drop"), DropTokens: rapid.SampledFrom([]float64{0, 0.3}).Draw(rt, "drop tokens"),
			}
			if o.TopK > experts || rapid.Bool().Draw(rt, "duplicates") {
				ro.Duplicates = 0.5
			}
			g, err := routing.Generate(ro)
			if err != nil {
				rt.Fatal(err)
			}
			p := problem(g, o.Hidden, 3, uint64(iter))
			if rapid.Bool().Draw(rt, "no weights") {
				p.Weights = nil
			}
			s, err := htSolve(p, w.perNode, o.Format, rapid.IntRange(0, 2).Draw(rt, "biases"))
			if err != nil {
				rt.Fatal(err)
			}
			again := rapid.IntRange(0, 1).Draw(rt, "again")
			for r, on := range rapid.SliceOfN(rapid.Bool(), ranks, ranks).Draw(rt, "measured") {
				w.bufs[r].Measure(on)
				counted[r].add(p, w, r, uint64(again+1), on)
			}
			if err := w.check(s, again); err != nil {
				rt.Fatalf("%v: %v", ro, err)
			}
			for r, c := range counted {
				if err := c.compare(w.bufs[r]); err != nil {
					rt.Fatalf("rank %d, %v: %v", r, ro, err)
				}
			}
			for r := range ranks {
				for n := range ranks / w.perNode {
					if n != r/w.perNode { // a message there, and one back
						put += 2 * uint64(again+1) * tokensTo(p, r, n, w.perNode)
					}
				}
			}
		}
		if err := w.settled(); err != nil {
			rt.Fatal(err)
		}
		for _, h := range w.bufs {
			n, err := h.Messages()
			if err != nil {
				rt.Fatal(err)
			}
			put -= n
		}
		if put != 0 {
			rt.Fatalf("%d messages more were put than tokens go to other nodes", -int64(put))
		}
	})
}

// tokensTo is how many tokens of a rank go to a node.
func tokensTo(p *ref.Problem, rank, node, perNode int) (n uint64) {
	for t := range p.Tokens(rank) {
		for _, e := range p.Idx[rank][t*p.TopK : (t+1)*p.TopK] {
			if e >= 0 && p.Owner(int(e))/perNode == node {
				n++
				break
			}
		}
	}
	return n
}

// With rings of the least size nobody waits for ever, whatever goes where.
func TestHTLiveness(t *testing.T) {
	const ranks, perNode, tokens, experts = 6, 2, 24, 12
	all := func(f func(r, t, k int) int32) *routing.Routing {
		g := &routing.Routing{Ranks: ranks, Experts: experts, TopK: 2}
		for r := range ranks {
			var idx []int32
			var w []float32
			for t := range tokens {
				for k := range 2 {
					idx, w = append(idx, f(r, t, k)), append(w, float32(t%5))
				}
			}
			g.Idx, g.Weights = append(g.Idx, idx), append(g.Weights, w)
		}
		return g
	}
	for name, g := range map[string]*routing.Routing{
		"all to one expert":         all(func(_, _, k int) int32 { return int32(7 - 8*k) }),
		"all to one node":           all(func(_, t, k int) int32 { return int32(4 + (t+k)%4) }),
		"all to another node":       all(func(r, t, k int) int32 { return int32((r/2*4 + 4 + (t+k)%4) % experts) }),
		"one rank sends":            all(func(r, t, k int) int32 { return map[bool]int32{true: int32((t + 5*k) % experts), false: -1}[r == 3] }),
		"a node early, a node late": all(func(_, t, k int) int32 { return int32((t*2/tokens*8 + (t+k)%4) % experts) }),
		"nothing":                   all(func(_, _, _ int) int32 { return -1 }),
	} {
		t.Run(name, func(t *testing.T) {
			w := newHT(t, ranks, doorbell.Options{RanksPerNode: perNode}, moe.HTOptions{MaxTokens: tokens, Hidden: 16, TopK: 2, Experts: experts, Channels: 1, Ring: 2})
			defer w.close()
			s, err := htSolve(problem(g, 16, 5, 0), w.perNode, moe.BF16, 0)
			if err != nil {
				t.Fatal(err)
			}
			if err := w.check(s, 1); err != nil {
				t.Error(err)
			}
			if err := w.settled(); err != nil {
				t.Error(err)
			}
		})
	}
}
