// SPDX-License-Identifier: Apache-2.0

package moe_test

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/doorbell-net/doorbell"
	"github.com/doorbell-net/doorbell/moe"
	"github.com/doorbell-net/doorbell/moe/routing"
)

// run runs problems one after another on a rank, whose tokens choose as idx says if there is one; before is called with the
// number of each dispatch and combine.
func (w *htWorld) run(r int, all []*htSolved, idx [][]int32, before func(part int)) error {
	st := w.comms[r].Stream()
	defer st.Close()
	for i, s := range all {
		one, err := w.step(s, r, st)
		if err != nil {
			return err
		}
		if idx != nil {
			if err := doorbell.Write(one.c, one.in.Experts, idx[i]); err != nil {
				return err
			}
		}
		for part, f := range []func() error{one.dispatch, one.combine} {
			if before != nil {
				before(2*i + part)
			}
			if err := f(); err != nil {
				return err
			}
		}
	}
	return nil
}

// TestRecover for the high-throughput form: the ranks that are left go on as nodes of one rank each.
func TestHTRecover(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		ranks, experts := rapid.IntRange(2, 6).Draw(rt, "ranks"), rapid.IntRange(1, 9).Draw(rt, "experts")
		o := moe.HTOptions{MaxTokens: 7, Hidden: 40, TopK: min(experts, 3), Experts: experts, Channels: rapid.IntRange(1, 3).Draw(rt, "channels"),
			Ring: rapid.SampledFrom([]int{0, 2, 4}).Draw(rt, "ring"), NoLSA: rapid.Bool().Draw(rt, "no lsa"), Format: moe.Format(rapid.IntRange(0, 3).Draw(rt, "format"))}
		w := newHT(t, ranks, doorbell.Options{RanksPerNode: nodes(rt, ranks), Log: quiet()}, o)
		defer w.close()
		steps := rapid.IntRange(1, 4).Draw(rt, "steps")
		lost, deaths := drawDeaths(rt, ranks, 2*steps)
		left := slices.DeleteFunc(seq(ranks), func(r int) bool { return slices.Contains(lost, r) })
		var before, after []*htSolved
		chosen := make([][][]int32, ranks) // by rank and step: the experts of the lost too
		for i := range steps {
			g, err := routing.Generate(routing.Options{Seed: rapid.Uint64().Draw(rt, "seed"), Ranks: ranks, Experts: experts, TopK: o.TopK, Tokens: 7, Uneven: true, DropEntries: 0.1})
			if err != nil {
				rt.Fatal(err)
			}
			p := problem(g, o.Hidden, 9, uint64(i))
			s, err := htSolve(p, w.perNode, o.Format, 1)
			if err != nil {
				rt.Fatal(err)
			}
			q, err := htSolve(p.Without(lost...), 1, o.Format, 1)
			if err != nil {
				rt.Fatal(err)
			}
			before, after = append(before, s), append(after, q)
			for r := range ranks {
				chosen[r] = append(chosen[r], p.Idx[r])
			}
		}
		err := each(ranks, func(r int) error {
			if d, doomed := deaths[r]; doomed {
				return die(w.comms[r], w.comms[left[0]], d, func(part func(int)) error { return w.run(r, before, nil, part) })
			}
			if err := w.run(r, before, nil, nil); err != nil {
				if wrong := lostOnly(err, lost); wrong != nil {
					return wrong
				}
			}
			if err := recovered(w.bufs[r].Recover, left); err != nil {
				return err
			}
			w.last[r] = nil
			if err := w.run(r, after, chosen[r], nil); err != nil {
				return fmt.Errorf("after recovery: %w", err)
			}
			return nil
		})
		if err != nil {
			rt.Fatalf("lost %v: %v", deaths, err)
		}
	})
}

// A layout and a graph of before are refused after a recovery, and what is made by ranks of which some are missing is right.
func TestHTRecoverForgets(t *testing.T) {
	w := newHT(t, 3, doorbell.Options{RanksPerNode: 3, Log: quiet()}, moe.HTOptions{MaxTokens: 5, Hidden: 16, TopK: 2, Experts: 6})
	defer w.close()
	p := problem(spread(t, 1, 3, moe.Options{MaxTokens: 5, TopK: 2, Experts: 6}), 16, 1, 1)
	s, err := htSolve(p, 3, moe.BF16, 0)
	if err != nil {
		t.Fatal(err)
	}
	without, err := htSolve(p.Without(2), 1, moe.BF16, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := each(3, func(r int) error {
		st := w.comms[r].Stream()
		defer st.Close()
		one, err := w.step(s, r, st)
		if err != nil {
			return err
		}
		if err := one.dispatch(); err != nil {
			return err
		}
		if r == 2 {
			return w.comms[2].Close()
		}
		g, err := w.comms[r].Graph(func(st *doorbell.Stream) error {
			_, err := one.h.Dispatch(st, one.in)
			return err
		})
		if err != nil {
			return err
		}
		if err := recovered(one.h.Recover, []int{0, 1}); err != nil {
			return err
		}
		wantError(t, one.h.Combine(st, one.got, one.out), "layout 0 is gone", "recovered")
		wantError(t, st.Replay(g), "recorded before", "recovered")
		w.last[r] = nil
		if err := w.run(r, []*htSolved{without}, nil, nil); err != nil {
			return err
		}
		if w.bufs[r], err = moe.NewHT(t.Context(), w.comms[r], one.h.Options()); err != nil {
			return err
		}
		w.last[r] = nil
		return w.run(r, []*htSolved{without}, [][]int32{p.Idx[r]}, nil)
	}); err != nil {
		t.Error(err)
	}
}
