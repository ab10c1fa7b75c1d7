// SPDX-License-Identifier: Apache-2.0

package moe_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"pgregory.net/rapid"

	"github.com/doorbell-net/doorbell"
	"github.com/doorbell-net/doorbell/gpu"
	"github.com/doorbell-net/doorbell/internal/moetest"
	"github.com/doorbell-net/doorbell/moe"
	"github.com/doorbell-net/doorbell/moe/ref"
	"github.com/doorbell-net/doorbell/moe/routing"
)

// recording is a graph of some steps on one rank, and the memory that they get their input from at each replay.
type recording struct {
	*doorbell.Graph
	c     *doorbell.Comm
	b     *moe.Buffer
	steps []*recorded
}

type recorded struct {
	in  moe.Tokens
	y   gpu.Ptr[uint16]
	got *moe.Received
}

// record records parts of steps in an order, with the experts after each dispatch. All steps have at most so many tokens;
// how many there are is in memory. All ranks record: no kernel may run meanwhile.
func (w *world) record(r int, order []part, most int) (*recording, error) {
	c, o := w.comms[r], w.opt
	rec := &recording{c: c, b: w.bufs[r]}
	for _, p := range order {
		if p.stage != 0 && p.stage != bothOfDispatch {
			continue
		}
		x, err1 := memory(c, make([]uint16, o.MaxTokens*o.Hidden))
		idx, err2 := memory(c, make([]int32, o.MaxTokens*o.TopK))
		weights, err3 := memory(c, make([]float32, o.MaxTokens*o.TopK))
		count, err4 := memory(c, make([]uint32, 1))
		y, err5 := memory(c, make([]uint16, o.MaxTokens*o.Hidden))
		for _, err := range []error{err1, err2, err3, err4, err5} {
			if err != nil {
				return nil, err
			}
		}
		rec.steps = append(rec.steps, &recorded{in: moe.Tokens{N: most, Count: count, X: gpu.Cast[byte](x), Experts: idx, Weights: weights}, y: y})
	}
	var err error
	rec.Graph, err = c.Graph(func(st *doorbell.Stream) (err error) {
		for _, p := range order {
			s := rec.steps[p.step]
			switch p.stage {
			case 0:
				s.got, err = rec.b.StartDispatch(st, s.in)
			case 1:
				if err = rec.b.FinishDispatch(st, s.got); err == nil {
					err = launchExperts(st, rec.b, s.got)
				}
			case 2:
				err = rec.b.StartCombine(st, s.got, gpu.Cast[byte](s.y))
			case 3:
				err = rec.b.FinishCombine(st, s.got)
			case bothOfDispatch:
				if s.got, err = rec.b.Dispatch(st, s.in); err == nil {
					err = launchExperts(st, rec.b, s.got)
				}
			case bothOfCombine:
				err = rec.b.Combine(st, s.got, gpu.Cast[byte](s.y))
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
	return rec, errors.Join(err, c.Barrier(context.Background()))
}

func launchExperts(st *doorbell.Stream, b *moe.Buffer, got *moe.Received) error {
	o := b.Options()
	scales := map[moe.Format]int32{moe.BF16: moetest.None, moe.FP8: moetest.Floats, moe.FP8Pow2: moetest.Floats, moe.FP8UE8M0: moetest.Exponents}
	return doorbell.Launch(st, moetest.ExpertsKernel, one, moetest.ExpertsArgs{Rows: got.Rows(), Counts: got.Counts(), Outs: gpu.Cast[uint16](got.Outputs()),
		First: int32(b.FirstExpert()), Locals: int32(b.LocalExperts()), Cap: int32(got.Capacity()), Hidden: int32(o.Hidden), Row: int32(got.RowBytes()),
		Scales: scales[o.Format], Values: int32(o.Format.ValueBytes(o.Hidden))})
}

// fill gives the steps their input: of each as many tokens as its problem has. What is behind them is none of anybody's.
func (rec *recording) fill(all []*solved) error {
	c, r, o := rec.c, rec.c.Rank(), rec.b.Options()
	idx, y := make([]int32, o.MaxTokens*o.TopK), make([]uint16, o.MaxTokens*o.Hidden)
	for j := range y {
		y[j] = canary
	}
	for i, s := range all {
		for j := copy(idx, s.p.Idx[r]); j < len(idx); j++ {
			idx[j] = int32(j % o.Experts)
		}
		in := rec.steps[i].in
		if err := errors.Join(
			doorbell.Write(c, in.Count, []uint32{uint32(s.p.Tokens(r))}), doorbell.Write(c, gpu.Cast[uint16](in.X), s.p.X[r]),
			doorbell.Write(c, in.Experts, idx), doorbell.Write(c, in.Weights, s.p.Weights[r]), doorbell.Write(c, rec.steps[i].y, y),
		); err != nil {
			return err
		}
	}
	return nil
}

const canary = 0x7fff // a NaN that no sum is

// compare wants what the reference makes of it, bit by bit, and nothing behind it.
func (rec *recording) compare(all []*solved) error {
	r, o := rec.c.Rank(), rec.b.Options()
	for i, s := range all {
		y, err := values(rec.c, rec.steps[i].y, o.MaxTokens*o.Hidden)
		if err != nil {
			return err
		}
		if err := ref.DiffBits(s.want[r], y[:len(s.want[r])]); err != nil {
			return fmt.Errorf("rank %d, step %d: combine: %w", r, i, err)
		}
		for j, v := range y[len(s.want[r]):] {
			if v != canary {
				return fmt.Errorf("rank %d, step %d: element %d behind the tokens was written", r, i, j)
			}
		}
	}
	return nil
}

// replay fills, replays, waits and compares; of a graph of one step, its rows too.
func (rec *recording) replay(st *doorbell.Stream, all []*solved) error {
	r := rec.c.Rank()
	if err := rec.fill(all); err != nil {
		return err
	}
	if err := st.Replay(rec.Graph); err != nil {
		return err
	}
	if err := rec.b.Wait(context.Background(), st); err != nil {
		return err
	}
	if s := all[0]; len(all) == 1 {
		if err := compareRows(rec.c, s.p, rec.b.Options(), rec.steps[0].got, s.rows[r], nil); err != nil {
			return fmt.Errorf("rank %d: dispatch: %w", r, err)
		}
	}
	return rec.compare(all)
}

// Stages of a recording beside the four: the calls that do two of them.
const (
	bothOfDispatch = 4 + iota
	bothOfCombine
)

var whole = []part{{0, bothOfDispatch}, {0, bothOfCombine}}

// TestReplays: a captured dispatch and combine is replayed 1,000 times, each time with another routing and other numbers of
// tokens, none too, and each time it is what the reference says.
func TestReplays(t *testing.T) {
	const ranks = 3
	times := 1000
	if gpu.WarpSize > 1 {
		times = 20 // lanes are goroutines
	}
	for name, o := range map[string]moe.Options{
		"per expert": {MaxTokens: 3, Hidden: 16, TopK: 2, Experts: 5, Copies: 2},
		"per rank":   {MaxTokens: 3, Hidden: 24, TopK: 2, Experts: 5, Copies: 2, PerRank: true, Format: moe.FP8, NoLSA: true, Outstanding: 2},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, ranks, 1, o, doorbell.Grid{Blocks: 1, Warps: 2})
			defer w.close()
			all, seen := make([][]*solved, times), make(map[int]bool)
			for i := range all {
				s := draw(t, w, uint64(i+1))
				for r := range ranks {
					seen[s.p.Tokens(r)] = true
				}
				all[i] = []*solved{s}
			}
			if len(seen) != o.MaxTokens+1 {
				t.Fatalf("numbers of tokens %v, want 0 to %d", seen, o.MaxTokens)
			}
			err := each(ranks, func(r int) error {
				rec, err := w.record(r, whole, o.MaxTokens)
				if err != nil {
					return err
				}
				st := w.comms[r].Stream()
				defer st.Close()
				for i := range all {
					if err := rec.replay(st, all[i]); err != nil {
						return fmt.Errorf("replay %d: %w", i, err)
					}
				}
				return rec.Close()
			})
			if err != nil {
				t.Fatal(err)
			}
		})
	}
}

// draw makes a problem for a world, with what the reference makes of it.
func draw(tb rapid.TB, w *world, seed uint64) *solved {
	g, err := routing.Generate(routing.Options{Seed: seed, Ranks: len(w.comms), Experts: w.opt.Experts, TopK: w.opt.TopK, Tokens: w.opt.MaxTokens,
		TokensPerRank: counts(len(w.comms), w.opt.MaxTokens, seed), DropEntries: 0.2, Duplicates: 0.3})
	if err != nil {
		tb.Fatal(err)
	}
	s, err := solve(problem(g, w.opt.Hidden, 9, seed), w.opt.Format, ref.ExpertFn)
	if err != nil {
		tb.Fatal(err)
	}
	return s
}

// counts is how many tokens each rank has: 0 to the most.
func counts(ranks, most int, seed uint64) (n []int) {
	rnd := rand.New(rand.NewPCG(seed, 1))
	for range ranks {
		n = append(n, rnd.IntN(most+1))
	}
	return n
}

// TestReplaysAmongCalls: graphs of several steps in any order of their parts, replayed in any order with calls between
// them; to its peers a rank that replays is as one that calls.
func TestReplaysAmongCalls(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		ranks, d := rapid.IntRange(1, 3).Draw(rt, "ranks"), rapid.IntRange(1, 3).Draw(rt, "outstanding")
		nexp := rapid.IntRange(1, 5).Draw(rt, "experts")
		o := moe.Options{MaxTokens: 3, Hidden: 16, TopK: 2, Experts: nexp, Copies: 2, Outstanding: d,
			NoLSA: rapid.Bool().Draw(rt, "no lsa"), PerRank: rapid.Bool().Draw(rt, "per rank"), Format: moe.Format(rapid.IntRange(0, 3).Draw(rt, "format"))}
		on := doorbell.Options{RanksPerNode: nodes(rt, ranks)}
		misbehave(rt, &on)
		w := worldOf(t, ranks, on, o, doorbell.Grid{Blocks: 1, Warps: 2})
		defer w.close()
		orders := make([][]part, rapid.IntRange(1, 2).Draw(rt, "graphs"))
		for i := range orders {
			orders[i] = schedule(rt, rapid.IntRange(1, 4).Draw(rt, "steps"), d)
		}
		type turn struct {
			graph int
			all   []*solved
			calls []bool // by rank: it calls, and does not replay
		}
		turns := make([]turn, rapid.IntRange(1, 8).Draw(rt, "turns"))
		for i := range turns {
			u := &turns[i]
			u.graph = rapid.IntRange(0, len(orders)-1).Draw(rt, "graph")
			for range len(orders[u.graph]) / 4 {
				u.all = append(u.all, draw(rt, w, rapid.Uint64().Draw(rt, "seed")))
			}
			u.calls = rapid.SliceOfN(rapid.Bool(), ranks, ranks).Draw(rt, "calls")
		}
		err := each(ranks, func(r int) error {
			st := w.comms[r].Stream()
			defer st.Close()
			recs := make([]*recording, len(orders))
			for i := range recs {
				var err error
				if recs[i], err = w.record(r, orders[i], o.MaxTokens); err != nil {
					return err
				}
			}
			for i, u := range turns {
				var err error
				if u.calls[r] {
					err = w.runOn(st, r, u.all, orders[u.graph], nil)
				} else {
					err = recs[u.graph].replay(st, u.all)
				}
				if err != nil {
					return fmt.Errorf("turn %d: %w", i, err)
				}
			}
			return nil
		})
		if err != nil {
			rt.Fatalf("orders %v: %v", orders, err)
		}
	})
}
