// SPDX-License-Identifier: Apache-2.0

package moe_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/doorbell-net/doorbell"
	"github.com/doorbell-net/doorbell/gpu"
	"github.com/doorbell-net/doorbell/moe"
	"github.com/doorbell-net/doorbell/moe/ref"
	"github.com/doorbell-net/doorbell/moe/routing"
	_ "github.com/doorbell-net/doorbell/netplugin/fault"
)

// part is one of the four calls of a step.
type part struct{ step, stage int }

// schedule is an order of the parts of some steps that the rule of outstanding operations allows: every rank goes by
// it, each at its own speed.
func schedule(rt *rapid.T, steps, outstanding int) (order []part) {
	stage := make([]int, steps)
	started := 0
	for {
		var can []part
		for i, s := range stage {
			ready := s == 1 || s == 3 || s < 4 && started < outstanding
			if s == 0 { // in order, and its rows are free
				ready = ready && (i == 0 || stage[i-1] > 0) && (i < outstanding || stage[i-outstanding] == 4)
			}
			if ready {
				can = append(can, part{i, s})
			}
		}
		if len(can) == 0 {
			return order
		}
		p := rapid.SampledFrom(can).Draw(rt, "part")
		started += []int{1, -1, 1, -1}[p.stage]
		stage[p.step]++
		order = append(order, p)
	}
}

// Any order of the parts gives what one step after another gives, on ranks that run apart, over stores and puts, over a
// network that overtakes, cuts and delays, with ranks that have no expert too.
func TestSplitIsFused(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		ranks := rapid.IntRange(1, 4).Draw(rt, "ranks")
		experts := rapid.IntRange(1, 7).Draw(rt, "experts")
		d := rapid.IntRange(1, 3).Draw(rt, "outstanding")
		const tokens, hidden = 5, 40
		topk := min(experts, 3)
		o := moe.Options{MaxTokens: tokens, Hidden: hidden, TopK: topk, Experts: experts, Outstanding: d,
			NoLSA: rapid.Bool().Draw(rt, "no lsa"), PerRank: rapid.Bool().Draw(rt, "per rank"), Format: moe.Format(rapid.IntRange(0, 3).Draw(rt, "format"))}
		on := doorbell.Options{RanksPerNode: nodes(rt, ranks)}
		misbehave(rt, &on)
		w := worldOf(t, ranks, on, o, doorbell.Grid{Blocks: 1, Warps: 2})
		defer w.close()
		var all []*solved
		for i := range rapid.IntRange(1, 7).Draw(rt, "steps") {
			g, err := routing.Generate(routing.Options{Seed: rapid.Uint64().Draw(rt, "seed"), Ranks: ranks, Experts: experts, TopK: topk, Tokens: tokens, Uneven: true, DropEntries: 0.1})
			if err != nil {
				rt.Fatal(err)
			}
			s, err := solve(problem(g, hidden, 9, uint64(i)), o.Format, ref.ExpertFn)
			if err != nil {
				rt.Fatal(err)
			}
			all = append(all, s)
		}
		order := schedule(rt, len(all), d)
		seed := rapid.Uint64().Draw(rt, "skew")
		if err := each(ranks, func(r int) error { return w.run(r, all, order, rand.New(rand.NewPCG(seed, uint64(r)))) }); err != nil {
			rt.Fatalf("order %v: %v", order, err)
		}
	})
}

// misbehave draws whether the network does all that one may. On the copy engines of a device it keeps its order: nobody makes up for
// that there.
func misbehave(rt *rapid.T, on *doorbell.Options) {
	if !rapid.Bool().Draw(rt, "faults") {
		return
	}
	on.Net, on.Faults = "fault+auto", fmt.Sprintf("seed=%d,all", rapid.Uint32().Draw(rt, "fault seed"))
	if !onDevice() {
		on.Faults += ",unordered"
	}
}

func (w *world) run(r int, all []*solved, order []part, rnd *rand.Rand) error {
	st := w.comms[r].Stream()
	defer st.Close()
	return w.runOn(st, r, all, order, func(int) {
		if rnd.IntN(4) == 0 {
			time.Sleep(time.Duration(rnd.IntN(300)) * time.Microsecond) // sleep: a rank that is behind
		}
	})
}

// runOn runs parts of steps on a stream; before is called with the number of each.
func (w *world) runOn(st *doorbell.Stream, r int, all []*solved, order []part, before func(int)) error {
	steps := make([]*step, len(all))
	for i := range all {
		var err error
		if steps[i], err = w.step(all[i], r, st); err != nil {
			return err
		}
	}
	for i, p := range order {
		s := steps[p.step]
		if before != nil {
			before(i)
		}
		if err := []func() error{s.startDispatch, s.finishDispatch, s.startCombine, s.finishCombine}[p.stage](); err != nil {
			return err
		}
	}
	return nil
}

// A rank that is as far ahead as it can be overwrites nothing that another has yet to read. (Dispatches alone: what a
// combine waits for would hold it back.)
func TestAheadOfReader(t *testing.T) {
	for _, nolsa := range []bool{false, true} {
		for _, d := range []int{1, 2, 3} {
			w := newWorld(t, 2, 2, moe.Options{MaxTokens: 4, Hidden: 16, TopK: 2, Experts: 4, Outstanding: d, NoLSA: nolsa}, one)
			st := []*doorbell.Stream{w.comms[0].Stream(), w.comms[1].Stream()}
			var steps [6][2]*step
			for i := range steps {
				s, err := solve(small(t, uint64(i+1), 4), moe.BF16, ref.ExpertFn)
				for r := range 2 {
					if err == nil {
						steps[i][r], err = w.step(s, r, st[r])
					}
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			must := func(err error) {
				t.Helper()
				if err != nil {
					t.Fatalf("outstanding %d, no lsa %v: %v", d, nolsa, err)
				}
			}
			sent := func(s *step) {
				t.Helper()
				must(s.startDispatch())
				must(s.b.Wait(context.Background(), s.st))
			}
			for i := range d {
				sent(steps[i][1])
			}
			for i := range d {
				sent(steps[i][0])
				must(steps[i][0].finishDispatch())
			}
			for i := d; i < 2*d; i++ {
				sent(steps[i][0])
			}
			for i := range d {
				must(steps[i][1].finishDispatch())
			}
			for _, s := range st {
				must(s.Close())
			}
			w.close()
		}
	}
}

// One operation more than Outstanding is refused, of either kind, and so is a dispatch whose rows are in use. What was
// refused has done nothing: all goes on as if it had not been asked for.
func TestOutstanding(t *testing.T) {
	w := newWorld(t, 1, 1, moe.Options{MaxTokens: 4, Hidden: 16, TopK: 2, Experts: 4, Outstanding: 2}, one)
	defer w.close()
	g, err := routing.Generate(routing.Options{Seed: 1, Ranks: 1, Experts: 4, TopK: 2, Tokens: 4})
	if err != nil {
		t.Fatal(err)
	}
	s, err := solve(problem(g, 16, 1, 0), moe.BF16, ref.ExpertFn)
	if err != nil {
		t.Fatal(err)
	}
	st := w.comms[0].Stream()
	defer st.Close()
	var steps [4]*step
	for i := range steps {
		if steps[i], err = w.step(s, 0, st); err != nil {
			t.Fatal(err)
		}
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(steps[0].startDispatch())
	must(steps[1].startDispatch())
	wantError(t, steps[2].startDispatch(), "2 operations are started", "2 may be", "rank 0")
	wantError(t, steps[0].startCombine(), "its dispatch is not finished")
	must(steps[1].finishDispatch()) // out of order
	wantError(t, steps[2].startDispatch(), "gets the rows of dispatch 0", "its dispatch is not finished")
	must(steps[0].finishDispatch())
	must(steps[0].startCombine())
	must(steps[1].startCombine())
	wantError(t, steps[2].startDispatch(), "2 operations are started")
	must(steps[1].finishCombine())
	wantError(t, steps[2].startDispatch(), "gets the rows of dispatch 0", "its combine is started")
	wantError(t, steps[1].finishCombine(), "dispatch 1: its combine is finished")
	must(steps[0].finishCombine())
	must(steps[2].fused())
}

// A handle is of its buffer, for one dispatch and one combine, while its rows are there.
func TestHandleMisuse(t *testing.T) {
	o := moe.Options{MaxTokens: 4, Hidden: 16, TopK: 2, Experts: 4}
	w, other := newWorld(t, 1, 1, o, one), newWorld(t, 1, 1, o, one)
	defer w.close()
	defer other.close()
	g, err := routing.Generate(routing.Options{Seed: 1, Ranks: 1, Experts: 4, TopK: 2, Tokens: 4})
	if err != nil {
		t.Fatal(err)
	}
	s, err := solve(problem(g, 16, 1, 0), moe.BF16, ref.ExpertFn)
	if err != nil {
		t.Fatal(err)
	}
	b, st, ctx := w.bufs[0], w.comms[0].Stream(), context.Background()
	x, err := w.step(s, 0, st)
	if err != nil {
		t.Fatal(err)
	}
	y := gpu.Cast[byte](x.y)
	got, err := b.Dispatch(st, x.in)
	if err != nil {
		t.Fatal(err)
	}
	far := other.comms[0].Stream()
	wantError(t, other.bufs[0].Combine(far, got, y), "dispatch 0 is another buffer's")
	wantError(t, b.FinishDispatch(st, got), "its dispatch is finished")
	wantError(t, b.FinishCombine(st, got), "its combine not started")
	second := w.comms[0].Stream()
	wantError(t, b.Combine(second, got, y), "another stream")
	wantError(t, b.Wait(ctx, second), "not on")
	if err := b.Wait(ctx, st); err != nil {
		t.Fatal(err)
	}
	next, err := b.Dispatch(second, x.in) // the first is never combined
	if err != nil {
		t.Fatal(err)
	}
	wantError(t, b.Combine(second, got, y), "dispatch 0: its rows are dispatch 1's now")
	if err := b.Wait(ctx, second); err != nil {
		t.Fatal(err)
	}
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	for _, err := range []error{b.Combine(second, next, y), b.FinishDispatch(second, next), b.FinishCombine(second, next)} {
		wantError(t, err, "closed", "rank 0")
	}
	for _, st := range []*doorbell.Stream{st, second, far} {
		st.Close()
	}
}
