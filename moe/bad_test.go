// SPDX-License-Identifier: Apache-2.0

package moe_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/doorbell-net/doorbell"
	"github.com/doorbell-net/doorbell/gin"
	"github.com/doorbell-net/doorbell/gpu"
	"github.com/doorbell-net/doorbell/moe"
	"github.com/doorbell-net/doorbell/moe/ref"
	"github.com/doorbell-net/doorbell/moe/routing"
)

var one = doorbell.Grid{Blocks: 1, Warps: 1}

func wantError(t *testing.T, err error, parts ...string) {
	t.Helper()
	if err == nil {
		t.Errorf("no error, want one with %q", parts)
		return
	}
	for _, p := range parts {
		if !strings.Contains(err.Error(), p) {
			t.Errorf("error %q does not say %q", err, p)
		}
	}
}

func TestOptionsRefused(t *testing.T) {
	good := moe.Options{MaxTokens: 4, Hidden: 16, TopK: 2, Experts: 4}
	for _, c := range []struct {
		change func(*moe.Options)
		says   []string
	}{
		{func(o *moe.Options) { o.MaxTokens = 0 }, []string{"tokens is 0", "1 to"}},
		{func(o *moe.Options) { o.MaxTokens = 1 << 17 }, []string{"tokens is 131072"}},
		{func(o *moe.Options) { o.Hidden = 100 }, []string{"hidden is 100", "multiple of 8"}},
		{func(o *moe.Options) { o.Hidden = 0 }, []string{"hidden is 0"}},
		{func(o *moe.Options) { o.TopK = 33 }, []string{"top-k is 33", "1 to 32"}},
		{func(o *moe.Options) { o.Experts = 0 }, []string{"experts is 0"}},
		{func(o *moe.Options) { o.Experts = 1 << 16 }, []string{"experts is 65536"}},
		{func(o *moe.Options) { o.Copies = -1 }, nil}, // 0 and less is the default
		{func(o *moe.Options) { o.Format = 4 }, []string{"format is 4", "fp8-ue8m0"}},
		{func(o *moe.Options) { o.Outstanding = 9 }, []string{"outstanding is 9", "0 to 8"}},
		{func(o *moe.Options) { o.Contexts = -1 }, []string{"contexts is -1"}},
	} {
		cs, err := doorbell.Local(1)
		if err != nil {
			t.Fatal(err)
		}
		o := good
		c.change(&o)
		_, err = moe.New(context.Background(), cs[0], o)
		if c.says == nil {
			if err != nil {
				t.Error(err)
			}
		} else {
			wantError(t, err, append(c.says, "rank 0")...)
		}
		if err := cs[0].Close(); err != nil {
			t.Error(err)
		}
	}
}

// More memory than there is is refused before any is taken, with what is needed.
func TestTooLittleMemory(t *testing.T) {
	cs, err := doorbell.Local(2, doorbell.Options{Timeout: 5 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range []moe.Options{
		{MaxTokens: 1 << 16, Hidden: 1 << 20, TopK: 32, Experts: 65535},
		{MaxTokens: 1 << 14, Hidden: 1 << 16, TopK: 8, Experts: 1 << 9},
	} {
		err = each(2, func(r int) error {
			_, err := moe.New(context.Background(), cs[r], o)
			if !errors.Is(err, doorbell.ErrOutOfMemory) {
				return errors.Join(errors.New("not refused for memory"), err)
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	}
	for _, c := range cs {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}
}

func TestMemoryFormulaIsExact(t *testing.T) {
	// What is reserved for the benchmark's defaults, by hand: slots of dispatch and combine, staging, rows with what is known
	// of each and outputs.
	o := moe.Options{MaxTokens: 64, Hidden: 7168, TopK: 8, Experts: 32}
	perRank := o
	perRank.Format, perRank.PerRank, perRank.Outstanding = moe.FP8, true, 3
	for _, c := range []struct {
		o    moe.Options
		data int
	}{
		{o, 2*8*4*64*14368 + 2*64*8*14336 + 2*64*14368 + 8*4*64*(14336+16+14336)},
		{perRank, 6*4*64*7424 + 6*64*8*14336 + 6*64*7424 + 3*8*4*64*(7392+16+14336)},
	} {
		if got := c.o.MemoryBytes(4, 4); got < c.data || got > c.data+4<<20 {
			t.Errorf("%+v: got %d bytes, want %d and at most 4 MiB for queues and tables", c.o, got, c.data)
		}
	}
}

// TestRanksThatDisagree: one rank's options differ from the others' in one field, each in turn: all are refused at once,
// with both.
func TestRanksThatDisagree(t *testing.T) {
	good := moe.Options{MaxTokens: 4, Hidden: 16, TopK: 2, Experts: 4, Copies: 1, Contexts: 1, Outstanding: 1}
	fields := reflect.TypeFor[moe.Options]()
	for i := range fields.NumField() {
		other := good
		switch f := reflect.ValueOf(&other).Elem().Field(i); {
		case fields.Field(i).Name == "Hidden":
			other.Hidden = 24
		case f.Kind() == reflect.Bool:
			f.SetBool(true)
		default:
			f.SetInt(f.Int() + 1)
		}
		cs, err := doorbell.Local(3, doorbell.Options{Timeout: 20 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		if err := each(3, func(r int) error {
			o := good
			if r == 1 {
				o = other
			}
			_, err := moe.New(context.Background(), cs[r], o)
			if !errors.Is(err, doorbell.ErrDisagree) {
				t.Errorf("is not ErrDisagree: %v", err)
			}
			wantError(t, err, fmt.Sprintf("rank %d", r), fmt.Sprintf("%+v", good), fmt.Sprintf("%+v", other))
			return nil
		}); err != nil {
			t.Error(err)
		}
		if time.Since(start) > 10*time.Second {
			t.Errorf("%s: it took a timeout to notice", fields.Field(i).Name)
		}
		for _, c := range cs {
			if err := c.Close(); err != nil {
				t.Error(err)
			}
		}
	}
}

// tokens puts a rank's part of a problem into its device's memory.
func tokens(t *testing.T, c *doorbell.Comm, p *ref.Problem, r int) (moe.Tokens, gpu.Ptr[byte]) {
	t.Helper()
	x, err1 := memory(c, p.X[r])
	idx, err2 := memory(c, p.Idx[r])
	w, err3 := memory(c, p.Weights[r])
	y, err4 := memory(c, make([]uint16, len(p.X[r])))
	if err := errors.Join(err1, err2, err3, err4); err != nil {
		t.Fatal(err)
	}
	return moe.Tokens{N: p.Tokens(r), X: gpu.Cast[byte](x), Experts: idx, Weights: w}, gpu.Cast[byte](y)
}

func small(t *testing.T, seed uint64, tokens int) *ref.Problem {
	t.Helper()
	g, err := routing.Generate(routing.Options{Seed: seed, Ranks: 2, Experts: 4, TopK: 2, Tokens: tokens})
	if err != nil {
		t.Fatal(err)
	}
	return problem(g, 16, seed, 0)
}

// What names no expert is reported, what does is delivered, nobody waits, and the buffer stays usable.
func TestSelectionsThatNameNoExpert(t *testing.T) {
	w := newWorld(t, 2, 2, moe.Options{MaxTokens: 4, Hidden: 16, TopK: 2, Experts: 4}, one)
	defer w.close()
	for _, bad := range []int32{-2, math.MinInt32, 4, 5, math.MaxInt32} {
		p := small(t, 3, 4)
		p.Idx[0][5] = bad
		err := each(2, func(r int) error {
			x, _ := tokens(t, w.comms[r], p, r)
			st := w.comms[r].Stream()
			defer st.Close()
			if _, err := w.bufs[r].Dispatch(st, x); err != nil {
				return err
			}
			err := w.bufs[r].Wait(context.Background(), st)
			if r == 1 {
				return err
			}
			var e *moe.Error
			if !errors.As(err, &e) || e.Status != gin.Invalid {
				t.Errorf("%d: got %v", bad, err)
			}
			wantError(t, err, "token 2", "selection 1", "0 to 3 and -1 are accepted", "rank 0")
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := w.check(small(t, 9, 4), ref.ExpertFn); err != nil {
		t.Errorf("afterwards: %v", err)
	}
}

func TestCalls(t *testing.T) {
	w := newWorld(t, 1, 1, moe.Options{MaxTokens: 4, Hidden: 16, TopK: 2, Experts: 4}, one)
	defer w.close()
	c, b := w.comms[0], w.bufs[0]
	st := c.Stream()
	g, err := routing.Generate(routing.Options{Seed: 1, Ranks: 1, Experts: 4, TopK: 2, Tokens: 4})
	if err != nil {
		t.Fatal(err)
	}
	x, y := tokens(t, c, problem(g, 16, 1, 0), 0)
	many := x
	many.N = 5
	_, err = b.Dispatch(st, many)
	wantError(t, err, "5 tokens", "0 to 4", "rank 0")
	crooked := x
	crooked.X = x.X.Byte(8)
	_, err = b.Dispatch(st, crooked)
	wantError(t, err, "multiple of 16")
	_, err = b.Dispatch(st, moe.Tokens{N: 1})
	wantError(t, err, "1 tokens need")
	wantError(t, b.Combine(st, nil, y), "no dispatch", "rank 0")
	wantError(t, b.Combine(st, new(moe.Received), y), "another buffer's", "rank 0")
	got, err := b.Dispatch(st, x)
	if err != nil {
		t.Fatal(err)
	}
	wantError(t, b.Combine(st, got, y.Byte(8)), "multiple of 16")
	if err := b.Combine(st, got, y); err != nil {
		t.Fatal(err)
	}
	wantError(t, b.Combine(st, got, y), "dispatch 0: its combine is finished")
	if err := b.Wait(context.Background(), st); err != nil {
		t.Error(err)
	}
	if err := b.Close(); err != nil {
		t.Error(err)
	}
	_, dispatched := b.Dispatch(st, x)
	_, signals := b.Signals(t.Context(), st)
	_, stats := b.Stats()
	_, recovered := b.Recover(t.Context())
	for _, err := range []error{dispatched, b.Combine(st, got, y), b.Wait(t.Context(), st), signals, stats, recovered} {
		if wantError(t, err, "rank 0"); !errors.Is(err, doorbell.ErrClosed) {
			t.Errorf("a call of a closed buffer: %v", err)
		}
	}
	if err := b.Close(); err != nil {
		t.Errorf("second close: %v", err)
	}
}

// A grid that the device refuses begins no operation: each call may be made again with another, and the peers do not notice.
func TestBadGrid(t *testing.T) {
	w := newWorld(t, 2, 1, moe.Options{MaxTokens: 4, Hidden: 16, TopK: 2, Experts: 4, Outstanding: 1}, one)
	defer w.close()
	s, err := solve(small(t, 6, 4), moe.BF16, ref.ExpertFn)
	if err != nil {
		t.Fatal(err)
	}
	err = w.eachStep(s, func(x *step) error {
		twice := func(call func() error) func() error {
			return func() error {
				if x.r == 1 {
					x.b.SetGrid(doorbell.Grid{Blocks: 2, Warps: 33})
					wantError(t, call(), "rank 1", "33 warps")
					if err := x.b.Check(); err != nil {
						return err
					}
					x.b.SetGrid(one)
				}
				return call()
			}
		}
		dispatch := func() (err error) { x.got, err = x.b.Dispatch(x.st, x.in); return err }
		combine := func() error { return x.b.Combine(x.st, x.got, gpu.Cast[byte](x.y)) }
		for range 2 {
			for _, call := range []func() error{
				twice(dispatch), x.dispatched, twice(combine), x.combined,
				twice(x.startDispatch), twice(func() error { return x.b.FinishDispatch(x.st, x.got) }), x.dispatched,
				twice(x.startCombine), twice(func() error { return x.b.FinishCombine(x.st, x.got) }), x.combined,
			} {
				if err := call(); err != nil {
					return err
				}
			}
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// The same expert twice is two selections as long as there is room, and refused beyond it.
func TestCopies(t *testing.T) {
	g := &routing.Routing{Ranks: 2, Experts: 4, TopK: 2, Idx: [][]int32{{3, 3, 3, 3, 1, 3}, {0, 0}}, Weights: [][]float32{{1, 2, 3, 4, 5, 6}, {7, 8}}}
	for _, perRank := range []bool{false, true} {
		copiesOf(t, g, perRank)
	}
}

func copiesOf(t *testing.T, g *routing.Routing, perRank bool) {
	roomy := newWorld(t, 2, 1, moe.Options{MaxTokens: 3, Hidden: 16, TopK: 2, Experts: 4, Copies: 2, PerRank: perRank}, one)
	defer roomy.close()
	if err := roomy.check(problem(g, 16, 1, 0), ref.ExpertFn); err != nil {
		t.Error(err)
	}
	tight := newWorld(t, 2, 1, moe.Options{MaxTokens: 3, Hidden: 16, TopK: 2, Experts: 4, PerRank: perRank}, one)
	defer tight.close()
	p := problem(g, 16, 1, 0)
	if err := each(2, func(r int) error {
		x, _ := tokens(t, tight.comms[r], p, r)
		st := tight.comms[r].Stream()
		defer st.Close()
		if _, err := tight.bufs[r].Dispatch(st, x); err != nil {
			return err
		}
		err := tight.bufs[r].Wait(context.Background(), st)
		if r == 0 {
			wantError(t, err, "5 selections name expert 3", "3 fit")
			return nil
		}
		return err
	}); err != nil {
		t.Error(err)
	}
}

// patient is a context for making buffers whose operations are to end soon: Options.Timeout is of both, unless the context has a
// deadline of its own.
func patient(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// A rank that makes fewer calls is named by those that wait for it; nobody waits for ever.
func TestFewerCalls(t *testing.T) {
	cs, err := doorbell.Local(2, doorbell.Options{Timeout: 300 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		for _, c := range cs {
			if err := c.Close(); err != nil {
				t.Error(err)
			}
		}
	}()
	bufs := make([]*moe.Buffer, 2)
	if err := each(2, func(r int) (err error) {
		bufs[r], err = moe.New(patient(t), cs[r], moe.Options{MaxTokens: 4, Hidden: 16, TopK: 2, Experts: 4})
		return err
	}); err != nil {
		t.Fatal(err)
	}
	p := small(t, 5, 4)
	st := cs[0].Stream()
	x, _ := tokens(t, cs[0], p, 0)
	if _, err := bufs[0].Dispatch(st, x); err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	err = bufs[0].Wait(context.Background(), st)
	wantError(t, err, "wait for rank 1", "dispatch 0", "Timeout", "rank 0")
	if d := time.Since(start); d > 3*time.Second {
		t.Errorf("it took %v, for a deadline of 300 ms", d)
	}
	_, err = bufs[0].Dispatch(st, x)
	wantError(t, err, "an earlier operation failed")
}

// A rank whose wait for a late one failed sends it nothing more, whatever it has queued: the late one gets what was sent
// before, and neither takes rows that did not come for answers nor a later dispatch for the next.
func TestNothingAfterFailure(t *testing.T) {
	for _, next := range []string{"combine", "dispatch"} {
		cs, err := doorbell.Local(2, doorbell.Options{Timeout: 300 * time.Millisecond})
		if err != nil {
			t.Fatal(err)
		}
		w := &world{tb: t, comms: cs, bufs: make([]*moe.Buffer, 2), opt: moe.Options{MaxTokens: 4, Hidden: 16, TopK: 2, Experts: 4}}
		s, err := solve(small(t, 5, 4), moe.BF16, ref.ExpertFn)
		if err != nil {
			t.Fatal(err)
		}
		if err := each(2, func(r int) (err error) {
			w.bufs[r], err = moe.New(patient(t), cs[r], w.opt)
			return err
		}); err != nil {
			t.Fatal(err)
		}
		var steps [2]*step
		for r := range steps {
			if steps[r], err = w.step(s, r, cs[r].Stream()); err != nil {
				t.Fatal(err)
			}
		}
		early, late := steps[0], steps[1]
		err = errors.Join(early.startDispatch(), early.b.FinishDispatch(early.st, early.got), early.startCombine(), early.b.FinishCombine(early.st, early.got))
		if err == nil {
			_, err = early.b.Dispatch(early.st, early.in)
		}
		if err != nil {
			t.Fatal(err)
		}
		wantError(t, early.b.Wait(t.Context(), early.st), "wait for rank 1", "Timeout", "dispatch 0")
		if err := errors.Join(late.startDispatch(), late.finishDispatch()); err != nil {
			t.Errorf("what was sent before: %v", err)
		}
		if next == "combine" {
			err = errors.Join(late.startCombine(), late.finishCombine())
			wantError(t, err, "wait for the answer of rank 0", "combine of dispatch 0", "Timeout", "rank 1")
		} else {
			err = errors.Join(late.startDispatch(), late.finishDispatch())
			wantError(t, err, "wait for rank 0", "(dispatch 1)", "Timeout", "rank 1")
		}
		w.close()
	}
}

// A rank that goes away ends the waits for it at once, and is named.
func TestPeerLeaves(t *testing.T) {
	w := newWorld(t, 2, 2, moe.Options{MaxTokens: 4, Hidden: 16, TopK: 2, Experts: 4}, one)
	p := small(t, 5, 4)
	x, _ := tokens(t, w.comms[0], p, 0)
	st := w.comms[0].Stream()
	if _, err := w.bufs[0].Dispatch(st, x); err != nil {
		t.Fatal(err)
	}
	if err := w.comms[1].Close(); err != nil {
		t.Error(err)
	}
	start := time.Now()
	err := w.bufs[0].Wait(context.Background(), st)
	if wantError(t, err, "PeerLost", "rank 1"); !errors.Is(err, doorbell.ErrPeerLost) {
		t.Errorf("is not ErrPeerLost: %v", err)
	}
	if d := time.Since(start); d > 5*time.Second {
		t.Errorf("it took %v", d)
	}
	if err := w.comms[0].Close(); err != nil {
		t.Error(err)
	}
}
