// SPDX-License-Identifier: Apache-2.0

package moe_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/doorbell-net/doorbell"
	"github.com/doorbell-net/doorbell/gpu"
	"github.com/doorbell-net/doorbell/internal/moetest"
	"github.com/doorbell-net/doorbell/moe"
	"github.com/doorbell-net/doorbell/moe/ref"
	"github.com/doorbell-net/doorbell/moe/routing"
)

// Ranks that run apart as far as they can overwrite nothing that another has yet to read: rows are not written before the
// receiver is done with those before, outputs may be written again as soon as their combine has ended.
func TestHTSkew(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		ranks := rapid.IntRange(2, 4).Draw(rt, "ranks")
		on := doorbell.Options{RanksPerNode: nodes(rt, ranks)}
		misbehave(rt, &on)
		w := newHT(t, ranks, on, moe.HTOptions{MaxTokens: 6, Hidden: 40, TopK: 3, Experts: 7, Ring: rapid.SampledFrom([]int{0, 2}).Draw(rt, "ring")})
		defer w.close()
		var all []*htSolved
		for i := range rapid.IntRange(2, 4).Draw(rt, "dispatches") {
			g, err := routing.Generate(routing.Options{Seed: rapid.Uint64().Draw(rt, "seed"), Ranks: ranks, Experts: 7, TopK: 3, Tokens: 6, Uneven: true})
			if err != nil {
				rt.Fatal(err)
			}
			s, err := htSolve(problem(g, 40, 9, uint64(i)), w.perNode, moe.BF16, 0)
			if err != nil {
				rt.Fatal(err)
			}
			all = append(all, s)
		}
		seed := rapid.Uint64().Draw(rt, "skew")
		if err := each(ranks, func(r int) error {
			rnd := rand.New(rand.NewPCG(seed, uint64(r)))
			st := w.comms[r].Stream()
			defer st.Close()
			behind := func() {
				if rnd.IntN(3) == 0 {
					time.Sleep(time.Duration(rnd.IntN(300)) * time.Microsecond) // sleep: a rank that is behind
				}
			}
			for _, s := range all {
				one, err := w.step(s, r, st)
				if err != nil {
					return err
				}
				behind()
				if err := one.dispatch(); err != nil {
					return err
				}
				behind()
				if err := one.combine(); err != nil {
					return err
				}
				// Once more, of other outputs: none, so that all sums are 0.
				none := make([]uint16, w.bufs[r].Options().MaxRows*s.p.Hidden)
				if err := doorbell.Write(one.c, gpu.Cast[uint16](one.got.Outputs()), none); err != nil {
					return err
				}
				nothing := &htSolved{p: s.p, y: make([][]uint16, ranks), w: make([][]float32, ranks)}
				nothing.y[r] = make([]uint16, len(s.y[r]))
				one.htSolved, one.out.Weights = nothing, gpu.Ptr[float32]{}
				behind()
				if err := one.combine(); err != nil {
					return fmt.Errorf("of nothing: %w", err)
				}
			}
			return nil
		}); err != nil {
			rt.Fatal(err)
		}
	})
}

// As many ranks as nodes are wide and more, and experts that do not divide by them.
func TestHTManyRanks(t *testing.T) {
	for _, c := range []struct{ ranks, perNode, experts int }{{12, 4, 31}, {24, 3, 24}, {24, 24, 50}} {
		w := newHT(t, c.ranks, doorbell.Options{RanksPerNode: c.perNode}, moe.HTOptions{MaxTokens: 3, Hidden: 16, TopK: 4, Experts: c.experts, Channels: 1, Ring: 2})
		g, err := routing.Generate(routing.Options{Seed: 3, Ranks: c.ranks, Experts: c.experts, TopK: 4, Tokens: 3, Uneven: true})
		if err != nil {
			t.Fatal(err)
		}
		s, err := htSolve(problem(g, 16, 7, 1), w.perNode, moe.BF16, 1)
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(w.check(s, 1), w.settled()); err != nil {
			t.Errorf("%d ranks, %d a node, %d experts: %v", c.ranks, c.perNode, c.experts, err)
		}
		w.close()
	}
}

// A graph of two dispatches, the second with the layout of the first, and their combines, replayed with other tokens and
// other numbers of them each time, brings what calls bring, and counts it; and calls between its replays do too.
func TestHTGraph(t *testing.T) { htGraph(t, 60, 2, 4) }

func htGraph(t *testing.T, replays int, perNode ...int) {
	const ranks, tokens, hidden, topk, experts = 4, 9, 24, 3, 10
	for _, perNode := range perNode {
		w := newHT(t, ranks, doorbell.Options{RanksPerNode: perNode}, moe.HTOptions{MaxTokens: tokens, Hidden: hidden, TopK: topk, Experts: experts, Layouts: 2, Channels: 9, Ring: 4}) // of 9 a warp has two
		var all []*htSolved
		for i := range replays {
			g, err := routing.Generate(routing.Options{Seed: uint64(i + 1), Ranks: ranks, Experts: experts, TopK: topk, Tokens: i % (tokens + 1), Uneven: i%2 == 1})
			if err != nil {
				t.Fatal(err)
			}
			s, err := htSolve(problem(g, hidden, 9, uint64(i)), w.perNode, moe.BF16, 0)
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, s)
		}
		if err := each(ranks, func(r int) error { return w.replay(r, all, tokens) }); err != nil {
			t.Fatalf("%d ranks a node: %v", perNode, err)
		}
		if err := w.settled(); err != nil {
			t.Error(err)
		}
		w.close()
	}
}

func (w *htWorld) replay(r int, all []*htSolved, tokens int) error {
	c, h := w.comms[r], w.bufs[r]
	o := h.Options()
	x, err1 := memory(c, make([]uint16, tokens*o.Hidden))
	idx, err2 := memory(c, make([]int32, tokens*o.TopK))
	weights, err3 := memory(c, make([]float32, tokens*o.TopK))
	count, err4 := memory(c, make([]uint32, 1))
	in := moe.Tokens{N: tokens, Count: count, X: gpu.Cast[byte](x), Experts: idx, Weights: weights}
	var y [2]gpu.Ptr[uint16]
	var yw [2]gpu.Ptr[float32]
	var err5 error
	for i := range y {
		var err6, err7 error
		y[i], err6 = memory(c, make([]uint16, tokens*o.Hidden))
		yw[i], err7 = memory(c, make([]float32, tokens*o.TopK))
		err5 = errors.Join(err5, err6, err7)
	}
	if err := errors.Join(err1, err2, err3, err4, err5); err != nil {
		return err
	}
	h.Measure(true)
	counted := newHTCounted(w)[r]
	var got *moe.HTReceived
	g, err := c.Graph(func(st *doorbell.Stream) (err error) {
		for i := range y {
			if i == 0 {
				got, err = h.Dispatch(st, in)
			} else {
				err = h.DispatchAgain(st, got, in.X)
			}
			if err != nil {
				return err
			}
			err = doorbell.Launch(st, moetest.HTExpertsKernel, one, moetest.HTExpertsArgs{Rows: gpu.Cast[uint16](got.Rows()), Weights: gpu.Cast[byte](got.Weights()),
				Count: got.Count(), Outs: gpu.Cast[uint16](got.Outputs()), OutWeights: got.OutputWeights(), Rank: int32(r), Hidden: int32(o.Hidden), TopK: int32(o.TopK), Gap: int32(got.InfoBytes())})
			if err == nil {
				err = h.Combine(st, got, moe.HTCombined{Y: gpu.Cast[byte](y[i]), Weights: yw[i]})
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
	if err := errors.Join(err, c.Barrier(context.Background())); err != nil { // no kernel runs while others record
		return err
	}
	w.last[r] = got
	st := c.Stream()
	defer st.Close()
	for n, s := range all {
		if n%7 == 3 { // a call in between
			one, err := w.step(s, r, st)
			if err != nil {
				return err
			}
			counted.add(s.p, w, r, 1, true)
			if err := errors.Join(one.dispatch(), one.combine(), counted.compare(h)); err != nil {
				return err
			}
			continue
		}
		if err := errors.Join(doorbell.Write(c, count, []uint32{uint32(s.p.Tokens(r))}), doorbell.Write(c, x, s.p.X[r]), doorbell.Write(c, idx, s.p.Idx[r]),
			doorbell.Write(c, weights, s.p.Weights[r]), st.Replay(g)); err != nil {
			return err
		}
		if err := h.Wait(context.Background(), st); err != nil {
			return fmt.Errorf("replay %d: %w", n, err)
		}
		counted.add(s.p, w, r, 2, true)
		if err := counted.compare(h); err != nil {
			return fmt.Errorf("rank %d, replay %d: %w", r, n, err)
		}
		for i := range y {
			sums, err1 := values(c, y[i], len(s.y[r]))
			got, err2 := values(c, yw[i], len(s.w[r]))
			if err := errors.Join(err1, err2, ref.DiffBits(s.y[r], sums)); err != nil {
				return fmt.Errorf("rank %d, replay %d, combine %d: %w", r, n, i, err)
			}
			if !slices.Equal(got, s.w[r]) {
				return fmt.Errorf("rank %d, replay %d, combine %d: weights %v, must be %v", r, n, i, got, s.w[r])
			}
		}
	}
	// What is wrong with a replay's input is told.
	if err := errors.Join(doorbell.Write(c, count, []uint32{uint32(tokens + 1)}), st.Replay(g)); err != nil {
		return err
	}
	err = h.Wait(context.Background(), st)
	if want := fmt.Sprintf("the count says %d tokens; 0 to %d are accepted", tokens+1, tokens); err == nil || !strings.Contains(err.Error(), want) {
		return fmt.Errorf("rank %d: a count of too many: got %v, want %q", r, err, want)
	}
	return g.Close()
}
