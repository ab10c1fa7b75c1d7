// SPDX-License-Identifier: Apache-2.0

package moe_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/doorbell-net/doorbell"
	"github.com/doorbell-net/doorbell/gin"
	"github.com/doorbell-net/doorbell/gpu"
	"github.com/doorbell-net/doorbell/internal/env"
	"github.com/doorbell-net/doorbell/moe"
	"github.com/doorbell-net/doorbell/moe/routing"
)

func TestHTOptionsRefused(t *testing.T) {
	good := moe.HTOptions{MaxTokens: 4, Hidden: 16, TopK: 2, Experts: 4}
	for _, c := range []struct {
		change func(*moe.HTOptions)
		says   []string
	}{
		{func(o *moe.HTOptions) { o.MaxTokens = 0 }, []string{"tokens is 0", "1 to"}},
		{func(o *moe.HTOptions) { o.MaxTokens = -7 }, []string{"tokens is -7"}},
		{func(o *moe.HTOptions) { o.Hidden = 100 }, []string{"hidden is 100", "multiple of 8"}},
		{func(o *moe.HTOptions) { o.TopK = 33 }, []string{"top-k is 33", "1 to 32"}},
		{func(o *moe.HTOptions) { o.Experts = 1 << 16 }, []string{"experts is 65536"}},
		{func(o *moe.HTOptions) { o.MaxRows = -1 }, []string{"rows is -1"}},
		{func(o *moe.HTOptions) { o.Format = -1 }, []string{"format is -1", "fp8-ue8m0"}},
		{func(o *moe.HTOptions) { o.Channels = 5000 }, []string{"channels is 5000"}},
		{func(o *moe.HTOptions) { o.Channels = -1 }, []string{"channels is -1"}},
		{func(o *moe.HTOptions) { o.Ring = 1 }, []string{"ring of 1", "2 or more"}},
		{func(o *moe.HTOptions) { o.Ring, o.Chunk = 6, 4 }, []string{"ring of 6", "chunks of 4", "half"}},
		{func(o *moe.HTOptions) { o.Layouts = 2000 }, []string{"layouts is 2000"}},
	} {
		cs, err := doorbell.Local(1)
		if err != nil {
			t.Fatal(err)
		}
		o := good
		c.change(&o)
		_, err = moe.NewHT(context.Background(), cs[0], o)
		wantError(t, err, append(c.says, "rank 0")...)
		if err := cs[0].Close(); err != nil {
			t.Error(err)
		}
	}
}

// Options that are not the same are refused on all ranks, at once.
func TestHTRanksThatDisagree(t *testing.T) {
	for name, change := range map[string]func(*moe.HTOptions){
		"rows": func(o *moe.HTOptions) { o.MaxRows = 5 }, "ring": func(o *moe.HTOptions) { o.Ring = 4 }, "refused": func(o *moe.HTOptions) { o.Hidden = 7 },
	} {
		cs, err := doorbell.Local(3, doorbell.Options{Timeout: 20 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		if err := each(3, func(r int) error {
			o := moe.HTOptions{MaxTokens: 4, Hidden: 16, TopK: 2, Experts: 4}
			if r == 1 {
				change(&o)
			}
			_, err := moe.NewHT(context.Background(), cs[r], o)
			if err == nil || !errors.Is(err, doorbell.ErrDisagree) && !errors.Is(err, doorbell.ErrRefused) && r != 1 {
				return fmt.Errorf("%s: refused with %w", name, err)
			}
			return nil
		}); err != nil {
			t.Error(err)
		}
		if time.Since(start) > 10*time.Second {
			t.Error("it took a timeout to notice")
		}
		for _, c := range cs {
			if err := c.Close(); err != nil {
				t.Error(err)
			}
		}
	}
}

func TestHTTooLittleMemory(t *testing.T) {
	cs, err := doorbell.Local(2, doorbell.Options{Timeout: 5 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	if err := each(2, func(r int) error {
		_, err := moe.NewHT(context.Background(), cs[r], moe.HTOptions{MaxTokens: 1 << 16, Hidden: 1 << 20, TopK: 32, Experts: 64})
		if !errors.Is(err, doorbell.ErrOutOfMemory) {
			return fmt.Errorf("not refused for memory: %w", err)
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
	for _, c := range cs {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}
}

// htSmall is a world of two ranks, and a problem for it.
func htSmall(t *testing.T, on doorbell.Options, o moe.HTOptions) (*htWorld, *htSolved) {
	t.Helper()
	o.MaxTokens, o.Hidden, o.TopK, o.Experts = 4, 16, 2, 4
	w := newHT(t, 2, on, o)
	s, err := htSolve(small(t, 5, 4), w.perNode, moe.BF16, 0)
	if err != nil {
		t.Fatal(err)
	}
	return w, s
}

// Rows that have no room on one rank are refused on all, with what is needed and what there is; nothing is written, nothing
// is lost, and what fits is delivered after.
func TestHTRowsThatDoNotFit(t *testing.T) {
	for _, perNode := range []int{1, 2} {
		w, _ := htSmall(t, doorbell.Options{RanksPerNode: perNode}, moe.HTOptions{MaxRows: 7})
		g := &routing.Routing{Ranks: 2, Experts: 4, TopK: 2, Idx: [][]int32{{2, 0, 2, -1, 3, 1, 2, 3}, {2, -1, 3, -1, 2, -1, 2, 1}},
			Weights: [][]float32{{1, 2, 3, 4, 5, 6, 7, 8}, {1, 2, 3, 4, 5, 6, 7, 8}}}
		many, err := htSolve(problem(g, 16, 1, 0), w.perNode, moe.BF16, 0)
		if err != nil {
			t.Fatal(err)
		}
		g.Idx = [][]int32{g.Idx[0][:6], g.Idx[1]}
		g.Weights = [][]float32{g.Weights[0][:6], g.Weights[1]}
		fits, err := htSolve(problem(g, 16, 1, 0), w.perNode, moe.BF16, 0)
		if err != nil {
			t.Fatal(err)
		}
		if err := w.check(fits, 0); err != nil {
			t.Fatal(err)
		}
		if err := w.eachStep(many, func(s *htStep) error {
			if err := s.spoil(); err != nil {
				return err
			}
			got, err := s.h.Dispatch(s.st, s.in)
			if err != nil {
				return err
			}
			if err := s.h.Combine(s.st, got, s.out); err != nil { // queued before anybody knows: it does nothing
				return err
			}
			err = s.h.Wait(context.Background(), s.st)
			wantError(t, err, "rank 1 would get 8 rows", "room for 7", fmt.Sprintf("rank %d: ", s.r))
			if n, err := s.h.Count(got); n != 0 || err != nil {
				return fmt.Errorf("rank %d: %d rows came, %w", s.r, n, err)
			}
			rows, infos, err := s.rowsOf(got)
			if err != nil {
				return err
			}
			for _, b := range append(rows, infos...) {
				if b != htCanary {
					return fmt.Errorf("rank %d: something was written", s.r)
				}
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		if err := w.check(fits, 1); err != nil {
			t.Errorf("afterwards: %v", err)
		}
		if err := w.settled(); err != nil {
			t.Error(err)
		}
		w.close()
	}
}

// What names no expert is reported, what does is delivered, nobody waits, and all stays usable.
func TestHTSelectionsThatNameNoExpert(t *testing.T) {
	w, good := htSmall(t, doorbell.Options{}, moe.HTOptions{})
	defer w.close()
	for _, bad := range []int32{-2, math.MinInt32, 4, 5, math.MaxInt32} {
		p := small(t, 3, 4)
		p.Idx[0][5] = -1
		s, err := htSolve(p, w.perNode, moe.BF16, 0)
		if err != nil {
			t.Fatal(err)
		}
		if err := w.eachStep(s, func(one *htStep) (err error) {
			if one.r == 0 {
				one.in.Experts.At(5).Store(bad)
			}
			if one.got, err = one.h.Dispatch(one.st, one.in); err != nil {
				return err
			}
			w.last[one.r] = one.got
			if err = one.h.Wait(context.Background(), one.st); one.r == 0 {
				var e *moe.Error
				if !errors.As(err, &e) || e.Status != gin.Invalid {
					return fmt.Errorf("%d: got %w", bad, err)
				}
				wantError(t, err, "token 2", "selection 1", fmt.Sprint(bad), "0 to 3 and -1 are accepted", "rank 0")
			} else if err != nil {
				return err
			}
			return one.compare()
		}); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.check(good, 0); err != nil {
		t.Errorf("afterwards: %v", err)
	}
}

// What a stream refuses begins nothing, and may be asked for again on another; a graph that lacks it is not replayed.
func TestHTRefusedLaunch(t *testing.T) {
	w := newHT(t, 2, doorbell.Options{}, moe.HTOptions{MaxTokens: 4, Hidden: 16, TopK: 2, Experts: 4})
	defer w.close()
	s, err := htSolve(small(t, 7, 4), 2, moe.BF16, 0)
	if err != nil {
		t.Fatal(err)
	}
	err = each(2, func(r int) error {
		h, c := w.bufs[r], w.comms[r]
		st, over := c.Stream(), c.Stream()
		defer st.Close()
		x, err := w.step(s, r, st)
		if err = errors.Join(err, over.Close(), x.dispatch()); err != nil {
			return err
		}
		_, bad := h.Dispatch(over, x.in)
		for _, err := range []error{bad, h.DispatchAgain(over, x.got, x.in.X), h.Combine(over, x.got, x.out)} {
			wantError(t, err, fmt.Sprintf("rank %d", r), "kernel HT", "closed")
		}
		if err := errors.Join(x.combine(), x.dispatch(), x.combine(), h.Wait(t.Context(), st)); err != nil {
			return err
		}
		var on *doorbell.Stream
		var got *moe.HTReceived
		g, err := c.Graph(func(st *doorbell.Stream) (err error) {
			on = st
			got, err = h.Dispatch(st, x.in)
			return err
		})
		if err != nil {
			return err
		}
		wantError(t, h.DispatchAgain(on, got, x.in.X), "kernel HTDispatch")
		wantError(t, st.Replay(g), "an operation was not recorded", "HTDispatch")
		return g.Close()
	})
	if err != nil {
		t.Error(err)
	}
}

// A layout is of its buffer, and is there until as many others were made. It may be used any number of times till then.
func TestHTLayoutMisuse(t *testing.T) {
	o := moe.HTOptions{MaxTokens: 4, Hidden: 16, TopK: 2, Experts: 4, Layouts: 2}
	w, other := newHT(t, 1, doorbell.Options{}, o), newHT(t, 1, doorbell.Options{}, o)
	defer w.close()
	defer other.close()
	g, err := routing.Generate(routing.Options{Seed: 1, Ranks: 1, Experts: 4, TopK: 2, Tokens: 4})
	if err != nil {
		t.Fatal(err)
	}
	s, err := htSolve(problem(g, 16, 1, 0), 1, moe.BF16, 0)
	if err != nil {
		t.Fatal(err)
	}
	h, st, ctx := w.bufs[0], w.comms[0].Stream(), context.Background()
	x, err := w.step(s, 0, st)
	if err != nil {
		t.Fatal(err)
	}
	many, crooked := x.in, x.in
	many.N = 5
	crooked.X = x.in.X.Byte(8)
	_, err = h.Dispatch(st, many)
	wantError(t, err, "5 tokens", "0 to 4", "rank 0")
	_, err = h.Dispatch(st, crooked)
	wantError(t, err, "multiple of 16")
	crooked = x.in
	crooked.Count = gpu.Cast[uint32](x.in.X.Byte(2))
	_, err = h.Dispatch(st, crooked)
	wantError(t, err, "a count at", "a multiple of 4 is accepted", "rank 0")
	_, err = h.Dispatch(st, moe.Tokens{N: 1})
	wantError(t, err, "1 tokens need")
	wantError(t, h.Combine(st, nil, x.out), "no dispatch", "rank 0")
	if err := errors.Join(x.dispatch(), x.combine(), x.combine(), x.dispatch(), x.combine()); err != nil {
		t.Fatal(err)
	}
	wantError(t, h.Combine(st, x.got, moe.HTCombined{Y: x.out.Y.Byte(8)}), "output at a multiple of 16")
	wantError(t, h.Combine(st, x.got, moe.HTCombined{Y: x.out.Y, Bias: [2]gpu.Ptr[byte]{x.out.Y.Byte(2)}}), "bias at", "multiple of 16")
	wantError(t, h.DispatchAgain(st, x.got, gpu.Ptr[byte]{}), "rows at a multiple of 16")
	far := other.comms[0].Stream()
	wantError(t, other.bufs[0].Combine(far, x.got, x.out), "layout 0 is another buffer's")
	second := w.comms[0].Stream()
	if _, err := h.Dispatch(st, x.in); err != nil {
		t.Fatal(err)
	}
	wantError(t, h.Combine(second, x.got, x.out), "another stream")
	wantError(t, h.Wait(ctx, second), "not on")
	if err := errors.Join(h.Wait(ctx, st), x.combine()); err != nil { // the first of two layouts is there
		t.Fatal(err)
	}
	last, err := h.Dispatch(st, x.in)
	if err != nil {
		t.Fatal(err)
	}
	for _, err := range []error{h.Combine(st, x.got, x.out), h.DispatchAgain(st, x.got, x.in.X)} {
		wantError(t, err, "layout 0 is forgotten", "2 are kept", "dispatch 2")
	}
	if err := errors.Join(h.Wait(ctx, st), h.Close(), h.Close()); err != nil {
		t.Fatal(err)
	}
	_, err = h.Dispatch(st, x.in)
	_, signals := h.Signals(ctx, st)
	_, stats := h.Stats()
	_, count := h.Count(last)
	_, messages := h.Messages()
	_, _, _, times := h.Times()
	_, recovered := h.Recover(ctx)
	for _, err := range []error{
		err, h.Combine(st, last, x.out), h.DispatchAgain(st, last, x.in.X), signals, stats, count, messages, times, recovered,
	} {
		if !errors.Is(err, doorbell.ErrClosed) {
			t.Errorf("on a closed buffer: %v", err)
		}
	}
	for _, st := range []*doorbell.Stream{st, second, far} {
		st.Close()
	}
}

// A rank that makes fewer calls, as one whose tokens were refused, is named by those that wait for it, within the deadline.
func TestHTFewerCalls(t *testing.T) {
	cs, err := doorbell.Local(2, doorbell.Options{Timeout: 300 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	w := &htWorld{tb: t, comms: cs, bufs: make([]*moe.HTBuffer, 2), last: make([]*moe.HTReceived, 2)}
	defer w.close()
	if err := each(2, func(r int) (err error) {
		w.bufs[r], err = moe.NewHT(patient(t), cs[r], moe.HTOptions{MaxTokens: 4, Hidden: 16, TopK: 2, Experts: 4})
		return err
	}); err != nil {
		t.Fatal(err)
	}
	s, err := htSolve(small(t, 5, 4), 2, moe.BF16, 0)
	if err != nil {
		t.Fatal(err)
	}
	st := cs[0].Stream()
	x, err := w.step(s, 0, st)
	if err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	wantError(t, x.dispatch(), "wait for rank 1", "Timeout", "rank 0")
	if d := time.Since(start); d > 5*time.Second {
		t.Errorf("it took %v, for a deadline of 300 ms", d)
	}
	_, err = x.h.Dispatch(st, x.in)
	wantError(t, err, "an earlier operation failed")
}

// A rank that goes away ends the waits for it at once, and is named, whatever was waited for and wherever its memory was.
func TestHTPeerLeaves(t *testing.T) {
	for _, at := range []struct {
		perNode int
		far     string
	}{{1, "0"}, {2, "0"}, {1, "1"}} {
		t.Setenv(env.Far.Name(), at.far)
		w, s := htSmall(t, doorbell.Options{RanksPerNode: at.perNode}, moe.HTOptions{})
		if err := w.check(s, 0); err != nil {
			t.Fatal(err)
		}
		st := w.comms[0].Stream()
		x, err := w.step(s, 0, st)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := x.h.Dispatch(st, x.in); err != nil {
			t.Fatal(err)
		}
		if err := w.comms[1].Close(); err != nil {
			t.Error(err)
		}
		start := time.Now()
		wantError(t, x.h.Wait(context.Background(), st), "PeerLost", "rank 1")
		if d := time.Since(start); d > 10*time.Second {
			t.Errorf("it took %v", d)
		}
		if err := w.comms[0].Close(); err != nil {
			t.Error(err)
		}
	}
}

// The loss of one rank ends a wait for another that lives, which would last until the deadline.
func TestHTLossOfAnother(t *testing.T) {
	for _, perNode := range []int{1, 3} {
		cs, err := doorbell.Local(3, doorbell.Options{RanksPerNode: perNode, Timeout: 20 * time.Second, Log: quiet()})
		if err != nil {
			t.Fatal(err)
		}
		o := moe.HTOptions{MaxTokens: 4, Hidden: 16, TopK: 2, Experts: 6}
		var waits, ended sync.WaitGroup
		waits.Add(1)
		ended.Add(1)
		err = each(3, func(r int) error {
			h, err := moe.NewHT(t.Context(), cs[r], o)
			if err != nil {
				return err
			}
			st := cs[r].Stream()
			switch r {
			case 0:
				_, err = h.Dispatch(st, moe.Tokens{})
				waits.Done()
				var e *moe.Error
				if got := h.Wait(t.Context(), st); !errors.As(got, &e) || e.Status != gin.PeerLost || !slices.Equal(e.Lost, []int{2}) {
					err = errors.Join(err, fmt.Errorf("a dispatch that rank 1 does not call, when rank 2 is lost: %w", got))
				}
				ended.Done()
			case 1:
				ended.Wait() // it lives, and does not call
			case 2:
				waits.Wait()
				return cs[2].Close()
			}
			return err
		})
		if err != nil {
			t.Errorf("%d a node: %v", perNode, err)
		}
		for _, c := range cs {
			if err := c.Close(); err != nil {
				t.Error(err)
			}
		}
	}
}
