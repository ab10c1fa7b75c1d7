// SPDX-License-Identifier: Apache-2.0

package moe_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/doorbell-net/doorbell"
	"github.com/doorbell-net/doorbell/gin"
	"github.com/doorbell-net/doorbell/gpu"
	"github.com/doorbell-net/doorbell/internal/env"
	"github.com/doorbell-net/doorbell/moe"
	"github.com/doorbell-net/doorbell/moe/ref"
	"github.com/doorbell-net/doorbell/moe/routing"
)

// death is when a rank dies, or is expelled and lives: that long after it has begun a part of its schedule.
type death struct {
	part     int
	after    time.Duration
	expelled bool
}

// solveWithout is solve for the ranks that are left. Their tokens still name the experts of the lost ones.
func solveWithout(p *ref.Problem, f moe.Format, do ref.Expert, lost []int) (*solved, error) {
	s, err := solve(p.Without(lost...), f, do)
	if err == nil {
		s.p = p
	}
	return s, err
}

// drawSteps draws problems with an order of their parts.
func drawSteps(rt *rapid.T, o moe.Options, ranks int, lost []int) (all []*solved, order []part) {
	for i := range rapid.IntRange(1, 5).Draw(rt, "steps") {
		g, err := routing.Generate(routing.Options{Seed: rapid.Uint64().Draw(rt, "seed"), Ranks: ranks, Experts: o.Experts, TopK: o.TopK, Tokens: o.MaxTokens, Uneven: true, DropEntries: 0.1})
		if err != nil {
			rt.Fatal(err)
		}
		s, err := solveWithout(problem(g, o.Hidden, 9, uint64(i)), o.Format, ref.ExpertFn, lost)
		if err != nil {
			rt.Fatal(err)
		}
		all = append(all, s)
	}
	return all, schedule(rt, len(all), o.Outstanding)
}

// drawDeaths draws who dies, at least one and not all, and in which of so many parts.
func drawDeaths(rt *rapid.T, ranks, parts int) (lost []int, deaths map[int]death) {
	lost = rapid.Permutation(seq(ranks)).Draw(rt, "order of ranks")[:rapid.IntRange(1, ranks-1).Draw(rt, "deaths")]
	deaths = map[int]death{}
	for _, r := range lost {
		deaths[r] = death{rapid.IntRange(0, parts-1).Draw(rt, "dies in part"), time.Duration(rapid.IntRange(0, 400).Draw(rt, "us")) * time.Microsecond, rapid.Bool().Draw(rt, "expelled")}
	}
	return lost, deaths
}

// Whoever dies or is expelled, and whenever: the others' operations end by the loss and not by a deadline, they agree on who is left, and
// what they do next is right among them, with parts in any order.
func TestRecover(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		ranks := rapid.IntRange(2, 5).Draw(rt, "ranks")
		experts := rapid.IntRange(1, 9).Draw(rt, "experts")
		o := moe.Options{MaxTokens: 5, Hidden: 40, TopK: min(experts, 3), Experts: experts, Outstanding: rapid.IntRange(1, 3).Draw(rt, "outstanding"),
			NoLSA: rapid.Bool().Draw(rt, "no lsa"), PerRank: rapid.Bool().Draw(rt, "per rank"), Deterministic: rapid.Bool().Draw(rt, "deterministic"), Format: moe.Format(rapid.IntRange(0, 3).Draw(rt, "format"))}
		w := worldOf(t, ranks, doorbell.Options{RanksPerNode: nodes(rt, ranks), Log: quiet()}, o, doorbell.Grid{Blocks: 1, Warps: 2})
		defer w.close()
		before, order := drawSteps(rt, o, ranks, nil)
		lost, deaths := drawDeaths(rt, ranks, len(order))
		after, again := drawSteps(rt, o, ranks, lost)
		left := slices.DeleteFunc(seq(ranks), func(r int) bool { return slices.Contains(lost, r) })
		err := each(ranks, func(r int) error {
			d, doomed := deaths[r]
			if doomed {
				return die(w.comms[r], w.comms[left[0]], d, func(part func(int)) error { return w.runOn(w.comms[r].Stream(), r, before, order, part) })
			}
			st := w.comms[r].Stream()
			defer st.Close()
			if err := w.runOn(st, r, before, order, nil); err != nil {
				if wrong := lostOnly(err, lost); wrong != nil {
					return wrong
				}
			}
			if err := w.recover(r, left); err != nil {
				return err
			}
			if err := w.runOn(st, r, after, again, nil); err != nil {
				return fmt.Errorf("after recovery: %w", err)
			}
			return nil
		})
		if err != nil {
			rt.Fatalf("lost %v, order %v: %v", deaths, order, err)
		}
	})
}

// die ends a rank in the middle of a part of what it runs, or when another has died before. Who is expelled, by one that stays,
// goes on as long as it can.
func die(c, stays *doorbell.Comm, d death, run func(before func(part int)) error) error {
	end := func() { c.Abort(errors.New("it dies")) }
	if d.expelled {
		end = func() { stays.Expel(c.Rank(), errors.New("it is of no use")) }
	}
	_ = run(func(part int) {
		if part == d.part {
			time.AfterFunc(d.after, end)
		}
	})
	end()
	return c.Close()
}

// lostOnly says what is wrong with the error of an operation that the loss of ranks has ended.
func lostOnly(err error, lost []int) error {
	var e *moe.Error
	switch {
	case !errors.As(err, &e):
		return fmt.Errorf("an operation ended with: %w", err)
	case e.Status != gin.PeerLost || len(e.Lost) == 0:
		return fmt.Errorf("it was not ended by the loss: %w", err)
	}
	for _, r := range e.Lost {
		if !slices.Contains(lost, r) {
			return fmt.Errorf("rank %d lives: %w", r, err)
		}
	}
	return nil
}

// recover calls Recover until all that die have died.
func (w *world) recover(r int, left []int) error { return recovered(w.bufs[r].Recover, left) }

func recovered(recover func(context.Context) ([]int, error), left []int) error {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	for {
		got, err := recover(ctx)
		if err == nil && slices.Equal(got, left) {
			return nil
		}
		if ctx.Err() != nil {
			return fmt.Errorf("recovered with %v, want %v: %w", got, left, err)
		}
	}
}

func seq(n int) (s []int) {
	for i := range n {
		s = append(s, i)
	}
	return s
}

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

// What was dispatched or recorded before a recovery is refused after it; a recovery of which nobody is lost lets all go on.
func TestRecoverForgets(t *testing.T) {
	w := newWorld(t, 2, 2, moe.Options{MaxTokens: 4, Hidden: 16, TopK: 2, Experts: 4}, one)
	defer w.close()
	s, err := solve(small(t, 5, 4), moe.BF16, ref.ExpertFn)
	if err != nil {
		t.Fatal(err)
	}
	err = each(2, func(r int) error {
		b, st := w.bufs[r], w.comms[r].Stream()
		old, err := w.step(s, r, st)
		if err != nil {
			return err
		}
		if old.got, err = b.Dispatch(st, old.in); err != nil {
			return err
		}
		g, err := w.comms[r].Graph(func(st *doorbell.Stream) error {
			got, err := b.Dispatch(st, old.in)
			if err == nil {
				err = b.Combine(st, got, gpu.Cast[byte](old.y))
			}
			return err
		})
		if err != nil {
			return err
		}
		if got, err := b.Recover(t.Context()); err != nil || len(got) != 2 {
			return fmt.Errorf("recovered with %v: %w", got, err)
		}
		wantError(t, b.Combine(st, old.got, gpu.Cast[byte](old.y)), "dispatch 0 is gone", "recovered")
		wantError(t, st.Replay(g), "recorded before", "recovered")
		if old.got, err = b.Dispatch(st, old.in); err != nil {
			return err
		}
		if err := old.dispatched(); err != nil {
			return err
		}
		return errors.Join(b.Combine(st, old.got, gpu.Cast[byte](old.y)), old.combined())
	})
	if err != nil {
		t.Error(err)
	}
}

// A rank that is only late ends the others' operation by the deadline, and nobody is lost: all recover.
func TestRecoverFromLate(t *testing.T) {
	cs, err := doorbell.Local(3, doorbell.Options{Timeout: time.Second, Log: quiet()})
	if err != nil {
		t.Fatal(err)
	}
	w := &world{tb: t, comms: cs, bufs: make([]*moe.Buffer, 3), opt: moe.Options{MaxTokens: 4, Hidden: 16, TopK: 2, Experts: 4}}
	defer w.close()
	s, err := solve(problem(spread(t, 1, 3, w.opt), 16, 1, 1), moe.BF16, ref.ExpertFn)
	if err != nil {
		t.Fatal(err)
	}
	var late sync.WaitGroup
	late.Add(2)
	err = each(3, func(r int) (err error) {
		if w.bufs[r], err = moe.New(patient(t), cs[r], w.opt); err != nil {
			return err
		}
		st := cs[r].Stream()
		one, err := w.step(s, r, st)
		if err != nil {
			return err
		}
		if r == 2 {
			late.Wait()
		} else {
			err := one.fused()
			late.Done()
			var e *moe.Error
			if !errors.As(err, &e) || e.Status != gin.Timeout || len(e.Lost) > 0 {
				return fmt.Errorf("the operation without rank 2: %w", err)
			}
		}
		if err := w.recover(r, seq(3)); err != nil {
			return err
		}
		return one.fused()
	})
	if err != nil {
		t.Error(err)
	}
}

// What a warp could not send changes nothing of whose the rows are that follow: no two warps write one, as the race detector would see.
func TestLostWhileAnswering(t *testing.T) {
	for _, backend := range []string{"proxy", "gdaki"} {
		t.Run(backend, func(t *testing.T) {
			t.Setenv(env.Backend.Name(), backend)
			o := moe.Options{MaxTokens: 1, Hidden: 512, TopK: 8, Experts: 8}
			w := worldOf(t, 4, doorbell.Options{RanksPerNode: 2, Log: quiet()}, o, doorbell.Grid{Blocks: 1, Warps: 3})
			defer w.close()
			g, err := routing.Generate(routing.Options{Seed: 1, Ranks: 4, Experts: o.Experts, TopK: o.TopK, Tokens: 1})
			if err != nil {
				t.Fatal(err)
			}
			s, err := solve(problem(g, o.Hidden, 9, 0), o.Format, ref.ExpertFn)
			if err != nil {
				t.Fatal(err)
			}
			steps := make([]*step, 4)
			err = each(4, func(r int) (err error) {
				if steps[r], err = w.step(s, r, w.comms[r].Stream()); err != nil {
					return err
				}
				if err = steps[r].startDispatch(); err != nil {
					return err
				}
				return steps[r].finishDispatch()
			})
			if err != nil {
				t.Fatal(err)
			}
			if err := w.comms[3].Close(); err != nil {
				t.Error(err)
			}
			err = each(3, func(r int) error { // each expert has a row of each rank; a block's warps take those for ranks 3, 0 and 1 at once
				if err := w.comms[r].Barrier(t.Context()); !errors.Is(err, doorbell.ErrPeerLost) {
					return fmt.Errorf("rank %d: barrier: %w", r, err)
				}
				if err := errors.Join(steps[r].startCombine(), steps[r].finishCombine()); !errors.Is(err, doorbell.ErrPeerLost) {
					return fmt.Errorf("rank %d: combine: %w", r, err)
				}
				return nil
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
}
