// SPDX-License-Identifier: Apache-2.0

package moe_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/doorbell-net/doorbell"
	"github.com/doorbell-net/doorbell/gpu"
	"github.com/doorbell-net/doorbell/moe"
	"github.com/doorbell-net/doorbell/moe/ref"
	"github.com/doorbell-net/doorbell/moe/routing"
)

// world is ranks of this process that run one problem after another.
type world struct {
	tb    testing.TB
	comms []*doorbell.Comm
	bufs  []*moe.Buffer
	opt   moe.Options
}

// each runs f for each rank at once.
func each(n int, f func(r int) error) error {
	errs := make(chan error, n)
	var wg sync.WaitGroup
	for r := range n {
		wg.Go(func() { errs <- f(r) })
	}
	wg.Wait()
	close(errs)
	var first error
	for err := range errs {
		if err != nil && first == nil {
			first = err
		}
	}
	return first
}

func newWorld(tb testing.TB, ranks, perNode int, o moe.Options, grid doorbell.Grid) *world {
	tb.Helper()
	return worldOf(tb, ranks, doorbell.Options{RanksPerNode: perNode}, o, grid)
}

func worldOf(tb testing.TB, ranks int, on doorbell.Options, o moe.Options, grid doorbell.Grid) *world {
	tb.Helper()
	on.Timeout = 20 * time.Second
	cs, err := doorbell.Local(ranks, on)
	if err != nil {
		tb.Fatal(err)
	}
	w := &world{tb: tb, comms: cs, bufs: make([]*moe.Buffer, ranks), opt: o}
	err = each(ranks, func(r int) (err error) {
		if w.bufs[r], err = moe.New(context.Background(), cs[r], o); err == nil {
			w.bufs[r].SetGrid(grid)
		}
		return err
	})
	if err != nil {
		w.close()
		tb.Fatal(err)
	}
	return w
}

func (w *world) close() {
	for _, c := range w.comms {
		if err := c.Close(); err != nil {
			w.tb.Error(err)
		}
	}
}

// memory puts values into memory of a rank's device.
func memory[T any](c *doorbell.Comm, v []T) (gpu.Ptr[T], error) {
	b, err := c.Alloc(max(8*len(v), 64))
	if err != nil {
		return gpu.Ptr[T]{}, err
	}
	p := gpu.Cast[T](b.Ptr())
	return p, doorbell.Write(c, p, v)
}

// values copies n of them from memory of a rank's device.
func values[T any](c *doorbell.Comm, from gpu.Ptr[T], n int) ([]T, error) {
	v := make([]T, n)
	return v, doorbell.Read(c, v, from)
}

// compareRows compares what a rank received, and writes what its experts make of it, unless they have done so.
func compareRows(c *doorbell.Comm, p *ref.Problem, o moe.Options, got *moe.Received, want [][]ref.Row, expert ref.Expert) error {
	r, h, f, size := c.Rank(), p.Hidden, o.Format, got.RowBytes()
	counts, err := values(c, got.Counts(), len(want))
	if err != nil {
		return err
	}
	for l := range want {
		first, n := l*got.Capacity(), int(counts[l])
		all, err1 := values(c, got.Rows().Byte(uint64(first*size)), n*size)
		infos, err2 := values(c, got.Infos().At(first), n)
		if err := errors.Join(err1, err2); err != nil {
			return err
		}
		var rows []ref.Row
		outs := make([]uint16, n*h)
		for i, info := range infos {
			bytes := all[i*size:][:size]
			row := ref.Decode(f, bytes, h)
			rows = append(rows, ref.Row{SrcRank: int(info.Rank), SrcToken: int(info.Token), SrcK: int(info.K), Payload: row})
			if info.Expert != int32(p.FirstExpert(r)+l) {
				return fmt.Errorf("row %d of local expert %d is of expert %d", i, l, info.Expert)
			}
			if sent := ref.Encode(f, p.X[info.Rank][int(info.Token)*h:][:h]); !slices.Equal(bytes, sent) {
				return fmt.Errorf("row %d of local expert %d: %x, must be %x", i, l, bytes, sent)
			}
			for j, v := range row {
				if expert != nil {
					outs[i*h+j] = expert(int(info.Expert), j, v)
				}
			}
		}
		if expert != nil {
			if err := doorbell.Write(c, gpu.Cast[uint16](got.Outputs()).At(first*h), outs); err != nil {
				return err
			}
		}
		if !o.Deterministic {
			ref.SortRows(rows)
		}
		if err := ref.DiffRows(want[l], rows); err != nil {
			return fmt.Errorf("local expert %d: %w", l, err)
		}
	}
	return nil
}

// problem makes one from a routing, with tagged payloads.
func problem(g *routing.Routing, hidden int, seed, iter uint64) *ref.Problem {
	p := &ref.Problem{Ranks: g.Ranks, Experts: g.Experts, TopK: g.TopK, Hidden: hidden, Idx: g.Idx, Weights: g.Weights}
	for r := range g.Ranks {
		x := make([]uint16, g.Tokens(r)*hidden)
		routing.FillTokens(x, seed, iter, r, hidden)
		p.X = append(p.X, x)
	}
	return p
}

func TestLLShapes(t *testing.T) {
	for _, c := range []struct{ ranks, perNode, tokens, hidden, topk, experts int }{
		{1, 1, 3, 8, 1, 1}, {2, 1, 5, 16, 2, 3}, {2, 2, 5, 128, 2, 4}, {3, 3, 7, 24, 3, 7}, {4, 2, 16, 136, 8, 32}, {4, 4, 9, 64, 4, 5},
		{5, 1, 6, 40, 2, 3}, {6, 3, 8, 104, 9, 12}, {8, 4, 10, 256, 8, 33}, {3, 1, 2, 2880, 32, 40},
		{1, 1, 80, 7168, 1, 1}, // more than a core's caches hold
	} {
		t.Run(fmt.Sprintf("R%d-N%d-T%d-H%d-K%d-E%d", c.ranks, c.perNode, c.tokens, c.hidden, c.topk, c.experts), func(t *testing.T) {
			w := newWorld(t, c.ranks, c.perNode, moe.Options{MaxTokens: c.tokens, Hidden: c.hidden, TopK: c.topk, Experts: c.experts}, doorbell.Grid{Blocks: 2, Warps: 3, Cooperative: true})
			defer w.close()
			for iter := range 5 {
				g, err := routing.Generate(routing.Options{Seed: uint64(iter + 1), Ranks: c.ranks, Experts: c.experts, TopK: c.topk, Tokens: c.tokens, Uneven: iter%2 == 1, DropEntries: float64(iter) / 5})
				if err != nil {
					t.Fatal(err)
				}
				if err := w.check(problem(g, c.hidden, 7, uint64(iter)), ref.ExpertFn); err != nil {
					t.Fatalf("iteration %d: %v", iter, err)
				}
			}
		})
	}
}

// nodes draws how many ranks a node has: one, all, or what divides them.
func nodes(rt *rapid.T, ranks int) int {
	per := []int{1, ranks}
	for n := 2; n < ranks; n++ {
		if ranks%n == 0 {
			per = append(per, n)
		}
	}
	return rapid.SampledFrom(per).Draw(rt, "per node")
}

func TestLLProperty(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		ranks := rapid.IntRange(1, 6).Draw(rt, "ranks")
		perNode := nodes(rt, ranks)
		tokens := rapid.IntRange(1, 12).Draw(rt, "tokens")
		experts := rapid.IntRange(1, 17).Draw(rt, "experts")
		topk := rapid.IntRange(1, min(experts, 9)).Draw(rt, "topk")
		hidden := 8 * rapid.IntRange(1, 50).Draw(rt, "hidden/8")
		dups := rapid.Bool().Draw(rt, "duplicates")
		o := moe.Options{MaxTokens: tokens, Hidden: hidden, TopK: topk, Experts: experts, NoLSA: rapid.Bool().Draw(rt, "no lsa"), Contexts: rapid.IntRange(0, 3).Draw(rt, "contexts"), Deterministic: rapid.Bool().Draw(rt, "deterministic"), PerRank: rapid.Bool().Draw(rt, "per rank"),
			Format: moe.Format(rapid.IntRange(0, 3).Draw(rt, "format"))}
		if dups {
			o.Copies = topk
		}
		w := newWorld(t, ranks, perNode, o, doorbell.Grid{Blocks: rapid.IntRange(1, 3).Draw(rt, "blocks"), Warps: rapid.IntRange(1, 4).Draw(rt, "warps"), Cooperative: rapid.Bool().Draw(rt, "cooperative")})
		defer w.close()
		for iter := range rapid.IntRange(1, 4).Draw(rt, "iterations") {
			ro := routing.Options{Seed: rapid.Uint64().Draw(rt, "seed"), Ranks: ranks, Experts: experts, TopK: topk, Tokens: tokens,
				Pattern:     rapid.SampledFrom([]routing.Pattern{{}, {Kind: routing.Zipf, S: 1.2}, {Kind: routing.HotExpert, Share: 0.5}, {Kind: routing.HotRank, Share: 0.5}}).Draw(rt, "pattern"),
				Uneven:      rapid.Bool().Draw(rt, "uneven"),
				DropEntries: rapid.SampledFrom([]float64{0, 0.1, 0.5, 1}).Draw(rt, "drop"), DropTokens: rapid.SampledFrom([]float64{0, 0.3}).Draw(rt, "drop tokens"),
			}
			if dups {
				ro.Duplicates = 0.5
			}
			g, err := routing.Generate(ro)
			if err != nil {
				rt.Fatal(err)
			}
			if err := w.check(problem(g, hidden, 3, uint64(iter)), ref.ExpertFn); err != nil {
				rt.Fatalf("%v: %v", ro, err)
			}
		}
	})
}

// Ranks without tokens take part like the others, and so does one that gets none.
func TestLLEmptyRanks(t *testing.T) {
	for name, tokens := range map[string][]int{"one": {0, 4, 4}, "all but one": {0, 0, 4}, "all": {0, 0, 0}} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, 3, 1, moe.Options{MaxTokens: 4, Hidden: 24, TopK: 2, Experts: 6}, doorbell.Grid{Blocks: 1, Warps: 2})
			defer w.close()
			for iter := range 4 {
				g, err := routing.Generate(routing.Options{Seed: uint64(iter + 1), Ranks: 3, Experts: 6, TopK: 2, TokensPerRank: tokens})
				if err != nil {
					t.Fatal(err)
				}
				if err := w.check(problem(g, 24, 7, uint64(iter)), ref.ExpertFn); err != nil {
					t.Fatalf("iteration %d: %v", iter, err)
				}
			}
		})
	}
	t.Run("a rank that receives nothing", func(t *testing.T) {
		w := newWorld(t, 3, 3, moe.Options{MaxTokens: 2, Hidden: 24, TopK: 2, Experts: 6}, doorbell.Grid{Blocks: 1, Warps: 1})
		defer w.close()
		g := &routing.Routing{Ranks: 3, Experts: 6, TopK: 2, Idx: [][]int32{{0, 1, 1, 0}, {0, -1}, {1, 0, -1, -1}}, Weights: [][]float32{{1, 2, 3, 4}, {5, 6}, {7, 8, 9, 10}}}
		if err := w.check(problem(g, 24, 1, 0), ref.ExpertFn); err != nil {
			t.Error(err)
		}
	})
}

// Odd and large numbers of ranks, and experts that do not divide by them.
func TestLLManyRanks(t *testing.T) {
	for _, c := range []struct{ ranks, perNode, experts int }{{12, 4, 31}, {24, 3, 24}, {24, 24, 50}} {
		w := newWorld(t, c.ranks, c.perNode, moe.Options{MaxTokens: 3, Hidden: 16, TopK: 4, Experts: c.experts}, doorbell.Grid{Blocks: 1, Warps: 1})
		g, err := routing.Generate(routing.Options{Seed: 3, Ranks: c.ranks, Experts: c.experts, TopK: 4, Tokens: 3, Uneven: true})
		if err != nil {
			t.Fatal(err)
		}
		if err := w.check(problem(g, 16, 7, 1), ref.ExpertFn); err != nil {
			t.Errorf("%d ranks, %d a node, %d experts: %v", c.ranks, c.perNode, c.experts, err)
		}
		w.close()
	}
}
