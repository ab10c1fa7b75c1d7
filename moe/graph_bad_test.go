// SPDX-License-Identifier: Apache-2.0

package moe_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/doorbell-net/doorbell"
	"github.com/doorbell-net/doorbell/gin"
	"github.com/doorbell-net/doorbell/gpu"
	"github.com/doorbell-net/doorbell/moe"
	"github.com/doorbell-net/doorbell/moe/ref"
)

// graphOf records f, which must go well.
func graphOf(t *testing.T, c *doorbell.Comm, f func(*doorbell.Stream) error) *doorbell.Graph {
	t.Helper()
	g, err := c.Graph(f)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// TestReplayRefused: what a recording and what the calls between replays may not do. What was refused has done nothing.
func TestReplayRefused(t *testing.T) {
	w := newWorld(t, 1, 1, moe.Options{MaxTokens: 4, Hidden: 16, TopK: 2, Experts: 4, Outstanding: 2}, one)
	defer w.close()
	c, b := w.comms[0], w.bufs[0]
	rec, err := w.record(0, whole, 4)
	if err != nil {
		t.Fatal(err)
	}
	s := draw(t, w, 4)
	st, second := c.Stream(), c.Stream()
	defer st.Close()
	defer second.Close()
	call, err := w.step(s, 0, st)
	if err != nil {
		t.Fatal(err)
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	// Handles of a recording are of it alone.
	recorded, y := rec.steps[0].got, gpu.Cast[byte](call.y)
	wantError(t, b.Combine(st, recorded, y), "dispatch 0 of a graph", "queued of those that were queued", "rank 0")
	must(call.startDispatch())
	must(call.finishDispatch())
	var plain, other error
	graphOf(t, c, func(g *doorbell.Stream) error {
		plain, other = b.Combine(g, call.got, y), b.Combine(g, recorded, y)
		return nil
	})
	wantError(t, plain, "dispatch 0:", "of its own dispatches")
	wantError(t, other, "dispatch 0 of a graph:", "of its own dispatches")
	// It obeys the rules of calls, and has an account of its own.
	var third, early error
	open := graphOf(t, c, func(g *doorbell.Stream) error {
		first, err := b.StartDispatch(g, call.in)
		if err == nil {
			_, err = b.StartDispatch(g, call.in)
		}
		_, third = b.StartDispatch(g, call.in)
		early = b.Combine(g, first, y)
		return err
	})
	wantError(t, third, "2 operations are started", "2 may be")
	wantError(t, early, "dispatch 0 of a graph: its dispatch is not finished")
	wantError(t, st.Replay(open), "the graph starts 2 operations that it does not finish", "rank 0")
	// A launch that was not taken is no recording.
	b.SetGrid(doorbell.Grid{Blocks: 1, Warps: 33})
	var warps error
	bad := graphOf(t, c, func(g *doorbell.Stream) error { _, warps = b.Dispatch(g, call.in); return nil })
	wantError(t, warps, "33 warps")
	wantError(t, st.Replay(bad), "an operation was not recorded", "33 warps")
	b.SetGrid(one)
	// Replays come between whole operations, on the stream that the others are on.
	must(call.startCombine())
	wantError(t, st.Replay(rec.Graph), "1 operations are started and not finished")
	must(b.FinishCombine(st, call.got))
	wantError(t, second.Replay(rec.Graph), "another stream")
	must(call.combined())
	must(rec.replay(second, []*solved{s}))
	must(call.fused())
	must(call.fused())
	// Rows of before a replay that has their turn: that of dispatch 4, the first of 2.
	must(call.startDispatch())
	must(call.finishDispatch())
	must(rec.replay(st, []*solved{s}))
	wantError(t, call.startCombine(), "its rows are dispatch 0 of a graph's now")
	must(call.fused()) // and all goes on
	must(b.Close())
	if err := st.Replay(rec.Graph); !errors.Is(err, doorbell.ErrClosed) {
		t.Errorf("a replay after the buffer was closed: %v", err)
	}
}

// TestReplayBadInput: what is wrong with one replay's input is reported with the dispatch's number; the rest was sent, and
// the next replays are right.
func TestReplayBadInput(t *testing.T) {
	w := newWorld(t, 2, 2, moe.Options{MaxTokens: 4, Hidden: 16, TopK: 2, Experts: 4}, one)
	defer w.close()
	s, err := solve(small(t, 3, 4), moe.BF16, ref.ExpertFn)
	if err != nil {
		t.Fatal(err)
	}
	all := []*solved{s}
	err = each(2, func(r int) error {
		rec, err := w.record(r, whole, 4)
		if err != nil {
			return err
		}
		st := w.comms[r].Stream()
		defer st.Close()
		nothing := func(moe.Tokens) error { return nil }
		count := func(n uint32) func(moe.Tokens) error {
			return func(in moe.Tokens) error { return doorbell.Write(rec.c, in.Count, []uint32{n}) }
		}
		expert := func(in moe.Tokens) error { return doorbell.Write(rec.c, in.Experts.At(5), []int32{4}) }
		for i, spoil := range []func(moe.Tokens) error{nothing, expert, nothing, count(5), count(1 << 31)} {
			if err := rec.replay(st, all); err != nil {
				return err
			}
			if err := rec.fill(all); err != nil {
				return err
			}
			if r == 0 {
				if err := spoil(rec.steps[0].in); err != nil {
					return err
				}
			}
			for range 2 { // of two the first is told
				if err := st.Replay(rec.Graph); err != nil {
					return err
				}
			}
			err := rec.b.Wait(context.Background(), st)
			if says := []string{"", "token 2, selection 1 names expert 4", "", "the count says 5 tokens; 0 to 4", "2147483648 tokens"}[i]; r == 0 && says != "" {
				var e *moe.Error
				if !errors.As(err, &e) || e.Status != gin.Invalid {
					t.Errorf("got %v", err)
				}
				wantError(t, err, says, "rank 0", []string{"", "(dispatch 4)", "", "(dispatch 10)", "(dispatch 13)"}[i])
			} else if err != nil {
				return err
			}
			if i != 1 { // all tokens were sent
				if err := rec.compare(all); err != nil {
					return err
				}
			}
		}
		return rec.replay(st, all)
	})
	if err != nil {
		t.Error(err)
	}
}

// TestReplayAlone: replays that wait for a rank that replays no more end with one deadline, not one for each, and name the
// rank and the dispatch. After that the buffer refuses replays too.
func TestReplayAlone(t *testing.T) {
	const times, theirs, deadline = 50, 10, time.Second
	cs, err := doorbell.Local(2, doorbell.Options{Timeout: deadline})
	if err != nil {
		t.Fatal(err)
	}
	w := &world{tb: t, comms: cs, bufs: make([]*moe.Buffer, 2), opt: moe.Options{MaxTokens: 4, Hidden: 16, TopK: 2, Experts: 4}}
	defer w.close()
	s := small(t, 5, 4)
	err = each(2, func(r int) (err error) {
		if w.bufs[r], err = moe.New(patient(t), cs[r], w.opt); err != nil {
			return err
		}
		rec, err := w.record(r, whole, 4)
		if err != nil {
			return err
		}
		in, err := solve(s, moe.BF16, ref.ExpertFn)
		if err != nil {
			return err
		}
		if err := rec.fill([]*solved{in}); err != nil {
			return err
		}
		st := cs[r].Stream()
		for range []int{times, theirs}[r] {
			if err := st.Replay(rec.Graph); err != nil {
				return err
			}
		}
		start := time.Now()
		err = w.bufs[r].Wait(context.Background(), st)
		if r == 1 {
			return err
		}
		wantError(t, err, "wait for rank 1", "(dispatch 10)", "Timeout", "rank 0")
		if d := time.Since(start); d > (times-theirs)*deadline/2 {
			t.Errorf("it took %v, for a deadline of %v", d, deadline)
		}
		wantError(t, st.Replay(rec.Graph), "replay", "an earlier operation failed", "wait for rank 1")
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}
