// SPDX-License-Identifier: Apache-2.0

package moe_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/doorbell-net/doorbell"
	"github.com/doorbell-net/doorbell/gpu"
	"github.com/doorbell-net/doorbell/moe"
	"github.com/doorbell-net/doorbell/moe/ref"
	"github.com/doorbell-net/doorbell/moe/routing"
)

// routed is a routing by hand: each token of rank r, there are tokens[r], goes to the same experts.
func routed(tokens []int, experts int, to ...int32) *routing.Routing {
	g := &routing.Routing{Ranks: len(tokens), Experts: experts, TopK: len(to)}
	for r, n := range tokens {
		w := make([]float32, n*len(to))
		for i := range w {
			w[i] = float32(1 + (i+r)%3)
		}
		g.Idx, g.Weights = append(g.Idx, slices.Repeat(to, n)), append(g.Weights, w)
	}
	return g
}

// Ranks whose numbers of tokens differ: odd ones, one rank that only receives, and one batch in parts where those that
// are through take part with none.
func TestUnevenTokens(t *testing.T) {
	for name, c := range map[string]struct {
		o     moe.Options
		calls []*routing.Routing
	}{
		"odd":           {moe.Options{MaxTokens: 4097, Hidden: 8, TopK: 1, Experts: 2}, []*routing.Routing{routed([]int{4095, 4097}, 2, 1), routed([]int{4097, 1}, 2, 0)}},
		"one receives":  {moe.Options{MaxTokens: 4, Hidden: 16, TopK: 6, Experts: 24}, []*routing.Routing{routed([]int{0, 4, 4, 4}, 24, 0, 1, 2, 3, 4, 5)}},
		"parts of four": {moe.Options{MaxTokens: 4, Hidden: 16, TopK: 2, Experts: 7}, []*routing.Routing{routed([]int{0, 1, 3, 4, 4}, 7, 6, 0), routed([]int{0, 0, 0, 0, 1}, 7, 3, 2)}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, c.calls[0].Ranks, 1, c.o, doorbell.Grid{Blocks: 1, Warps: 2})
			defer w.close()
			for i, g := range c.calls {
				if err := w.check(problem(g, c.o.Hidden, 5, uint64(i)), ref.ExpertFn); err != nil {
					t.Errorf("call %d: %v", i, err)
				}
			}
		})
	}
}

// All tokens of all ranks to one expert, over stores and puts.
func TestAllToOneExpert(t *testing.T) {
	for _, ranks := range []int{3, 5, 6, 12} {
		for _, nolsa := range []bool{false, true} {
			o := moe.Options{MaxTokens: 5, Hidden: 16, TopK: 1, Experts: 2*ranks + 1, NoLSA: nolsa}
			w := newWorld(t, ranks, ranks, o, one)
			if err := w.check(problem(routed(slices.Repeat([]int{5}, ranks), o.Experts, int32(o.Experts-1)), 16, 5, 1), ref.ExpertFn); err != nil {
				t.Errorf("%d ranks, no LSA %v: %v", ranks, nolsa, err)
			}
			w.close()
		}
	}
}

// Any hidden size that is a multiple of 8 and any top-k to 32 are right; the others are refused with what is accepted.
func TestHiddenAndTopK(t *testing.T) {
	try := func(hidden, topk int) error {
		o := moe.Options{MaxTokens: 2, Hidden: hidden, TopK: topk, Experts: 40}
		g, err := routing.Generate(routing.Options{Seed: uint64(hidden + topk), Ranks: 2, Experts: 40, TopK: topk, Tokens: 2})
		if err != nil {
			return err
		}
		w := newWorld(t, 2, 1, o, one)
		defer w.close()
		return w.check(problem(g, hidden, 5, 1), ref.ExpertFn)
	}
	for _, hidden := range []int{64, 1536, 2880, 6144, 7168} {
		if err := try(hidden, 2); err != nil {
			t.Errorf("hidden %d: %v", hidden, err)
		}
	}
	for _, topk := range []int{1, 8, 10, 16, 17, 32} {
		if err := try(16, topk); err != nil {
			t.Errorf("top-k %d: %v", topk, err)
		}
	}
	for _, hidden := range []int{7, 100, 127, 7169} {
		wantError(t, moe.Options{MaxTokens: 2, Hidden: hidden, TopK: 2, Experts: 4}.Validate(), fmt.Sprintf("hidden is %d", hidden))
	}
	for _, topk := range []int{0, 33} {
		wantError(t, moe.Options{MaxTokens: 2, Hidden: 16, TopK: topk, Experts: 4}.Validate(), fmt.Sprintf("top-k is %d, 1 to 32", topk))
	}
}

// More tokens than the maximum on one rank alone: the call is refused there with both numbers and nothing was sent, so
// that the others wait for the call that the rank makes then.
func TestTooManyTokensOnOneRank(t *testing.T) {
	w := newWorld(t, 2, 2, moe.Options{MaxTokens: 4, Hidden: 16, TopK: 2, Experts: 4}, one)
	defer w.close()
	for range 3 {
		s, err := solve(small(t, 7, 4), moe.BF16, ref.ExpertFn)
		if err != nil {
			t.Fatal(err)
		}
		err = w.eachStep(s, func(x *step) error {
			if x.r == 0 {
				many := x.in
				many.N = 5
				_, err := x.b.Dispatch(x.st, many)
				wantError(t, err, "5 tokens", "0 to 4 are accepted (MaxTokens)", "rank 0")
				many = x.in
				many.Count = gpu.Cast[uint32](x.in.X.Byte(2))
				_, err = x.b.Dispatch(x.st, many)
				wantError(t, err, "a count at", "a multiple of 4 is accepted", "rank 0")
			}
			return x.fused()
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

// One buffer with as many tokens as fit and with fewer in turn, by calls and by graphs that were recorded for each.
func TestNumbersOfTokensInTurn(t *testing.T) {
	numbers := []int{1, 8, 244}
	w := newWorld(t, 2, 1, moe.Options{MaxTokens: 244, Hidden: 16, TopK: 2, Experts: 4}, doorbell.Grid{Blocks: 1, Warps: 2})
	defer w.close()
	var all []*solved
	for _, n := range numbers {
		s, err := solve(small(t, uint64(n), n), moe.BF16, ref.ExpertFn)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, s)
	}
	err := each(2, func(r int) error {
		st := w.comms[r].Stream()
		defer st.Close()
		var graphs []*recording
		for _, n := range numbers {
			g, err := w.record(r, whole, n)
			if err != nil {
				return err
			}
			graphs = append(graphs, g)
		}
		for round := range 4 {
			for i := range numbers {
				i := (i*(round+1) + round) % len(numbers)
				if err := graphs[i].replay(st, all[i:i+1]); err != nil {
					return err
				}
				x, err := w.step(all[i], r, st)
				if err == nil {
					err = x.fused()
				}
				if err != nil {
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

// Tokens without a selection cost no message: signals count as many as of the other tokens alone.
func TestPaddingIsNotSent(t *testing.T) {
	for _, perRank := range []bool{false, true} {
		var sums [2]moe.Signals
		for i, tokens := range []int{512, 256} {
			w := newWorld(t, 1, 1, moe.Options{MaxTokens: 512, Hidden: 8, TopK: 2, Experts: 3, PerRank: perRank}, one)
			g, err := routing.Generate(routing.Options{Seed: 2, Ranks: 1, Experts: 3, TopK: 2, Tokens: 256})
			if err != nil {
				t.Fatal(err)
			}
			for range 2 * (tokens - 256) { // behind the others, and each with two selections
				g.Idx[0], g.Weights[0] = append(g.Idx[0], -1), append(g.Weights[0], 1)
			}
			if err := w.check(problem(g, 8, 5, 1), ref.ExpertFn); err != nil {
				t.Error(err)
			}
			st := w.comms[0].Stream()
			if sums[i], err = w.bufs[0].Signals(context.Background(), st); err != nil {
				t.Error(err)
			}
			w.close()
		}
		if a, b := fmt.Sprint(sums[0]), fmt.Sprint(sums[1]); a != b {
			t.Errorf("per rank %v: with padding %v, without %v", perRank, a, b)
		}
	}
}

// What is behind an expert's count stays as it was: a dispatch writes no more rows than it says.
func TestRowsBehindTheCount(t *testing.T) {
	for _, o := range []moe.Options{{}, {PerRank: true}, {Deterministic: true, Format: moe.FP8}} {
		o.MaxTokens, o.Hidden, o.TopK, o.Experts, o.Copies = 4, 16, 2, 4, 2
		w := newWorld(t, 2, 1, o, one)
		s, err := solve(small(t, 3, 4), o.Format, ref.ExpertFn)
		if err != nil {
			t.Fatal(err)
		}
		err = w.eachStep(s, func(x *step) error {
			if err := x.fused(); err != nil {
				return err
			}
			n, size := x.b.LocalExperts()*x.got.Capacity(), x.got.RowBytes()
			rows, infos := x.got.Rows(), gpu.Cast[byte](x.got.Infos())
			old := bytes.Repeat([]byte{0xa5}, n*max(size, 16))
			if err := errors.Join(doorbell.Write(x.c, rows, old[:n*size]), doorbell.Write(x.c, infos, old[:n*16])); err != nil {
				return err
			}
			if err := x.fused(); err != nil {
				return err
			}
			counts, err := values(x.c, x.got.Counts(), x.b.LocalExperts())
			for l, count := range counts {
				from, behind := l*x.got.Capacity()+int(count), x.got.Capacity()-int(count)
				b, err1 := values(x.c, rows.Byte(uint64(from*size)), behind*size)
				i, err2 := values(x.c, infos.Byte(uint64(from*16)), behind*16)
				err = errors.Join(err, err1, err2)
				if len(bytes.Trim(append(b, i...), "\xa5")) != 0 {
					return fmt.Errorf("local expert %d: something was written behind its %d rows", l, count)
				}
			}
			return err
		})
		if err != nil {
			t.Errorf("%+v: %v", o, err)
		}
		w.close()
	}
}

// NaN and infinities in weights go through the sums, and stay with their token.
func TestWeightsOfAnyBits(t *testing.T) {
	w := newWorld(t, 1, 1, moe.Options{MaxTokens: 5, Hidden: 16, TopK: 2, Experts: 2}, one)
	defer w.close()
	g := routed([]int{5}, 2, 0, 1)
	nan, inf := float32(math.NaN()), float32(math.Inf(1))
	copy(g.Weights[0], []float32{nan, 1, inf, 1, inf, -inf, 0, 1, math.SmallestNonzeroFloat32, -inf})
	s, err := solve(problem(g, 16, 5, 1), moe.BF16, ref.ExpertFn)
	if err != nil {
		t.Fatal(err)
	}
	st := w.comms[0].Stream()
	defer st.Close()
	x, err := w.step(s, 0, st)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(x.startDispatch(), x.finishDispatch(), x.startCombine(), x.b.FinishCombine(st, x.got), x.b.Wait(t.Context(), st)); err != nil {
		t.Fatal(err)
	}
	isNaN := func(v uint16) bool { return v&0x7fff > 0x7f80 }
	nans := 0
	y, err := values(x.c, x.y, 5*16)
	if err != nil {
		t.Fatal(err)
	}
	for j, got := range y {
		if want := s.want[0][j]; got != want && !(isNaN(got) && isNaN(want)) {
			t.Errorf("token %d, element %d: %#04x, want %#04x", j/16, j%16, got, want)
		}
		if isNaN(got) {
			nans++
		}
	}
	if nans < 16 || nans > 4*16 {
		t.Errorf("%d elements are NaN: want those of token 0 at least, and none of token 3", nans)
	}
}
