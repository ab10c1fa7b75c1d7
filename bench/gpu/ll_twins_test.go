// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package gpu_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/doorbell-net/doorbell"
	"github.com/doorbell-net/doorbell/gpu"
	"github.com/doorbell-net/doorbell/moe"
	"github.com/doorbell-net/doorbell/moe/routing"
)

// llShape is what ranks of one process dispatch and combine, by stores.
type llShape struct {
	ranks, tokens, hidden, topk, experts int
	format                               moe.Format
	deterministic                        bool
}

// llRank is one rank of it.
type llRank struct {
	llShape
	ctx context.Context
	c   *doorbell.Comm
	b   *moe.Buffer
	st  *doorbell.Stream
	in  moe.Tokens
	y   gpu.Ptr[byte]
	got *moe.Received
}

// TestLLTwins: dispatch and combine with the twins of our kernels bring what they bring with ours, to the byte, whatever the
// selections, with infinities and NaN. On the CPU the twins' warps have 32 lanes, too. On a GPU lines for tools/measure say how long
// the kernels of each phase take, in turn.
func TestLLTwins(t *testing.T) {
	shapes := map[string][]llShape{
		"soft": {
			{1, 5, 8, 1, 1, moe.BF16, true}, {2, 7, 264, 5, 7, moe.BF16, true}, {2, 7, 264, 5, 7, moe.FP8, true},
			{3, 3, 1416, 3, 8, moe.FP8Pow2, true}, {2, 6, 1032, 9, 5, moe.FP8UE8M0, false}, {2, 5, 4104, 2, 3, moe.FP8, false},
		},
		"cuda": {
			{1, 128, 7168, 8, 288, moe.FP8, true}, {4, 33, 7168, 8, 62, moe.BF16, true}, {3, 50, 2888, 17, 40, moe.FP8Pow2, true},
			{2, 128, 1032, 32, 24, moe.FP8UE8M0, false}, {8, 32, 7168, 8, 256, moe.FP8, false},
		},
	}
	onDevices(t, "ll", func(t *testing.T, w *twins, device string) {
		twin(t, w, &moe.LLDispatchKernel, moe.LLDispatch)
		twin(t, w, &moe.LLCombineKernel, moe.LLCombine)
		for _, s := range shapes[device] {
			t.Run(fmt.Sprintf("%+v", s), func(t *testing.T) { w.compareLL(t, device, s) })
		}
		if device == "cuda" {
			w.timesLL(t)
		} else { // not for its figures
			w.timeLL(t, device, "", llShape{2, 3, 136, 2, 4, moe.FP8, false}, llPhases, [][]int32{{0, 1, 2, 3, 0, 3}, {1, 3, -1, -1, 2, 1}})
		}
	})
}

// compareLL runs a shape with our kernels and then with the twins, several times in the same buffers.
func (w *twins) compareLL(t *testing.T, device string, s llShape) {
	experts := anyExperts(t, s.ranks, s.tokens*s.topk, s.experts)
	all := llRanks(t, device, s, s.topk, experts)
	if device == "soft" {
		for _, r := range all {
			r.b.SetGrid(doorbell.Grid{Blocks: 2, Warps: 5, Cooperative: true})
		}
	}
	w.compare(t, s.ranks, func(r int, round uint64) ([]byte, error) { return all[r].whole(round) })
}

// llRanks makes the ranks, whose tokens select those experts, one of them so often at most.
func llRanks(t *testing.T, device string, s llShape, copies int, experts [][]int32) []*llRank {
	all := make([]*llRank, s.ranks)
	for i, c := range open(t, s.ranks, device) {
		r := &llRank{llShape: s, ctx: t.Context(), c: c, st: c.Stream()}
		row, n := 2*s.hidden, s.tokens*s.topk
		take := func(bytes int) *doorbell.Buffer { return must(c.Alloc(max(bytes, 64)))(t) }
		r.y = take(s.tokens * row).Ptr()
		r.in = moe.Tokens{N: s.tokens, X: take(s.tokens * row).Ptr(), Experts: gpu.Cast[int32](take(4 * n).Ptr()), Weights: gpu.Cast[float32](take(4 * n).Ptr())}
		weights := make([]float32, n)
		for i := range weights {
			weights[i] = 1 / float32(1+i%7)
		}
		check(t, errors.Join(doorbell.Write(c, r.in.Experts, experts[i]), doorbell.Write(c, r.in.Weights, weights)))
		all[i] = r
	}
	check(t, ranks(s.ranks, func(i int) (err error) {
		r := all[i]
		r.b, err = moe.New(t.Context(), r.c, moe.Options{MaxTokens: s.tokens, Hidden: s.hidden, TopK: s.topk, Experts: s.experts,
			Copies: copies, Format: s.format, Deterministic: s.deterministic})
		return err
	}))
	t.Cleanup(func() {
		for _, r := range all {
			if err := r.b.Close(); err != nil {
				t.Error(err)
			}
		}
	})
	return all
}

// whole dispatches and combines, and returns what came of both.
func (r *llRank) whole(round uint64) ([]byte, error) {
	x := make([]uint16, r.tokens*r.hidden)
	routing.FillTokens(x, 3, round, r.c.Rank(), r.hidden)
	x[0], x[r.hidden/2], x[r.hidden-1] = 0x7f80, 0xffc1, 0xff80 // infinities, a NaN
	for i := len(x) - r.hidden; i < len(x); i++ {
		x[i] = 0xc3e0 // -448, so that the scale is a power of two
	}
	if err := doorbell.Write(r.c, gpu.Cast[uint16](r.in.X), x); err != nil {
		return nil, err
	}
	var err error
	if r.got, err = r.b.Dispatch(r.st, r.in); err != nil {
		return nil, err
	}
	if err := r.b.Wait(r.ctx, r.st); err != nil {
		return nil, err
	}
	left, err := r.rows(round)
	if err != nil {
		return nil, err
	}
	if err := errors.Join(r.b.Combine(r.st, r.got, r.y), r.b.Wait(r.ctx, r.st)); err != nil {
		return nil, err
	}
	y := make([]byte, 2*r.tokens*r.hidden)
	err = doorbell.Read(r.c, y, r.y)
	return append(left, y...), err
}

// rows is what a dispatch brought, sorted where its order is not fixed, and writes what the experts make of it.
func (r *llRank) rows(round uint64) (left []byte, err error) {
	room, size := r.got.Capacity(), r.got.RowBytes()
	counts := make([]uint32, r.b.LocalExperts())
	if err := doorbell.Read(r.c, counts, r.got.Counts()); err != nil {
		return nil, err
	}
	for e, n := range counts {
		if int(n) > room {
			return nil, fmt.Errorf("expert %d got %d rows of %d", e, n, room)
		}
		infos, rows, outs := make([]moe.RowInfo, n), make([]byte, int(n)*size), make([]uint16, int(n)*r.hidden)
		if err := errors.Join(doorbell.Read(r.c, infos, r.got.Infos().At(e*room)), doorbell.Read(r.c, rows, r.got.Rows().At(e*room*size))); err != nil {
			return nil, err
		}
		var texts []string
		for i, f := range infos {
			routing.FillRow(outs[i*r.hidden:][:r.hidden], routing.RowKey(round<<32|uint64(f.Expert), uint64(f.K), int(f.Rank), int(f.Token)))
			texts = append(texts, fmt.Sprintf("%06d %06d %06d %06d %s", f.Rank, f.Token, f.K, f.Expert, rows[i*size:][:size]))
		}
		if !r.deterministic {
			slices.Sort(texts)
		}
		left = fmt.Appendf(left, "%d %q", n, texts)
		if err := doorbell.Write(r.c, gpu.Cast[uint16](r.got.Outputs()).At(e*room*r.hidden), outs); err != nil {
			return nil, err
		}
	}
	return left, nil
}

var llPhases = []string{"send", "receive", "return", "combine", "whole dispatch", "whole combine"}

// timesLL measures the phases at the shapes of published figures.
func (w *twins) timesLL(t *testing.T) {
	for _, x := range []struct {
		name   string
		shape  llShape
		phases []string
	}{
		{"1 rank, 1 token, FP8", llShape{1, 1, 7168, 8, 288, moe.FP8, false}, llPhases},
		{"1 rank, 128 tokens, FP8", llShape{1, 128, 7168, 8, 288, moe.FP8, false}, llPhases},
		{"1 rank, 128 tokens, BF16", llShape{1, 128, 7168, 8, 288, moe.BF16, false}, llPhases[:2]},
		{"4 ranks, 128 tokens, FP8", llShape{4, 128, 7168, 8, 256, moe.FP8, false}, llPhases},
		{"8 ranks, 128 tokens, FP8", llShape{8, 128, 7168, 8, 256, moe.FP8, false}, llPhases},
	} {
		t.Run(x.name, func(t *testing.T) {
			s := x.shape
			g := must(routing.Generate(routing.Options{Seed: 1, Ranks: s.ranks, Experts: s.experts, TopK: s.topk, Tokens: s.tokens}))(t)
			w.timeLL(t, "cuda", "LL, "+x.name, s, x.phases, g.Idx)
		})
	}
	t.Run("quantised", func(t *testing.T) { // rows are made also where nobody is sent them
		s := llShape{1, 4096, 7168, 1, 8, moe.FP8, false}
		w.timeLL(t, "cuda", "FP8, 4,096 rows", s, []string{"quantise"}, [][]int32{slices.Repeat([]int32{-1}, s.tokens)})
	})
}

// timeLL measures all phases, and prints the first ones.
func (w *twins) timeLL(t *testing.T, device, name string, s llShape, phases []string, experts [][]int32) {
	all := llRanks(t, device, s, 1, experts)
	watches := make([]*stopwatch, s.ranks)
	check(t, ranks(s.ranks, func(r int) (err error) {
		watches[r], err = w.newStopwatch(all[r].ctx, all[r].c, all[r].st)
		return err
	}))
	w.pairs(t, s.ranks, name, phases, func(r int) ([]time.Duration, error) {
		one := all[r]
		return watches[r].times([]func() error{
			func() (err error) { one.got, err = one.b.StartDispatch(one.st, one.in); return err },
			func() error { return one.b.FinishDispatch(one.st, one.got) },
			func() error { return one.b.StartCombine(one.st, one.got, one.y) },
			func() error { return one.b.FinishCombine(one.st, one.got) },
			func() (err error) { one.got, err = one.b.Dispatch(one.st, one.in); return err },
			func() error { return one.b.Combine(one.st, one.got, one.y) },
		}, func() error { return one.b.Wait(one.ctx, one.st) })
	})
}
