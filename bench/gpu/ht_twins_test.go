// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package gpu_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/doorbell-net/doorbell"
	"github.com/doorbell-net/doorbell/gpu"
	"github.com/doorbell-net/doorbell/moe"
	"github.com/doorbell-net/doorbell/moe/routing"
)

// htShape is what ranks of one node dispatch and combine.
type htShape struct {
	ranks, tokens, hidden, topk, experts, channels int // channels 0: the default
	format                                         moe.Format
	weights                                        bool // also combined, and biases
}

// htRank is one rank of it.
type htRank struct {
	htShape
	ctx context.Context
	c   *doorbell.Comm
	h   *moe.HTBuffer
	st  *doorbell.Stream
	in  moe.Tokens
	out moe.HTCombined
	got *moe.HTReceived
}

// TestHTTwins is TestLLTwins of the high-throughput form.
func TestHTTwins(t *testing.T) {
	shapes := map[string][]htShape{
		"soft": {
			{1, 40, 8, 1, 1, 1, moe.BF16, false}, {2, 70, 264, 5, 7, 2, moe.BF16, true}, {3, 9, 1032, 3, 8, 3, moe.FP8, true}, {2, 33, 1160, 32, 5, 16, moe.FP8UE8M0, false}, {9, 6, 136, 4, 9, 2, moe.BF16, true},
		},
		"cuda": {
			{1, 300, 7168, 8, 32, 0, moe.FP8, true}, {2, 100, 2888, 17, 40, 0, moe.FP8Pow2, false}, {4, 500, 7168, 8, 256, 0, moe.BF16, true}, {8, 200, 7168, 8, 256, 0, moe.FP8, true},
		},
	}
	onDevices(t, "ht", func(t *testing.T, w *twins, device string) {
		twin(t, w, &moe.HTLayoutKernel, moe.HTLayout)
		twin(t, w, &moe.HTTellKernel, moe.HTTell)
		twin(t, w, &moe.HTDispatchKernel, moe.HTDispatch)
		twin(t, w, &moe.HTReadyKernel, moe.HTReady)
		twin(t, w, &moe.HTCombineKernel, moe.HTCombine)
		for _, s := range shapes[device] {
			t.Run(fmt.Sprintf("%+v", s), func(t *testing.T) { w.compareHT(t, device, s) })
		}
		if device == "cuda" {
			w.timesHT(t)
		} else { // not for its figures
			w.timeHT(t, device, "", htShape{2, 40, 136, 2, 4, 2, moe.FP8, false}, htPhases)
		}
	})
}

// compareHT runs a shape with our kernels and then with the twins, several times in the same buffers.
func (w *twins) compareHT(t *testing.T, device string, s htShape) {
	experts := anyExperts(t, s.ranks, s.tokens*s.topk, s.experts)
	all := htRanks(t, device, s, experts)
	w.compare(t, s.ranks, func(r int, round uint64) ([]byte, error) { return all[r].whole(round) })
}

// htRanks makes the ranks, whose tokens select those experts.
func htRanks(t *testing.T, device string, s htShape, experts [][]int32) []*htRank {
	all := make([]*htRank, s.ranks)
	for i, c := range open(t, s.ranks, device) {
		r := &htRank{htShape: s, ctx: t.Context(), c: c, st: c.Stream()}
		row, n := 2*s.hidden, s.tokens*s.topk
		take := func(bytes int) gpu.Ptr[byte] { return must(c.Alloc(max(bytes, 64)))(t).Ptr() }
		r.in = moe.Tokens{N: s.tokens, X: take(s.tokens * row), Experts: gpu.Cast[int32](take(4 * n))}
		r.out.Y = take(s.tokens * row)
		check(t, doorbell.Write(c, r.in.Experts, experts[i]))
		if s.weights {
			r.in.Weights, r.out.Weights = gpu.Cast[float32](take(4*n)), gpu.Cast[float32](take(4*n))
			weights := make([]float32, n)
			for i := range weights {
				weights[i] = 1 / float32(1+i%7)
			}
			check(t, doorbell.Write(c, r.in.Weights, weights))
			for b := range r.out.Bias {
				r.out.Bias[b] = take(s.tokens * row)
				bias := make([]uint16, s.tokens*s.hidden)
				routing.FillTokens(bias, 5, uint64(b), i, s.hidden)
				check(t, doorbell.Write(c, gpu.Cast[uint16](r.out.Bias[b]), bias))
			}
		}
		all[i] = r
	}
	check(t, ranks(s.ranks, func(i int) (err error) {
		r := all[i]
		r.h, err = moe.NewHT(t.Context(), r.c, moe.HTOptions{MaxTokens: s.tokens, Hidden: s.hidden, TopK: s.topk, Experts: s.experts, Format: s.format, Channels: s.channels, Align: 4})
		return err
	}))
	t.Cleanup(func() {
		for _, r := range all {
			if err := r.h.Close(); err != nil {
				t.Error(err)
			}
		}
	})
	return all
}

// whole dispatches twice, once by the layout of the first, combines, and returns what came.
func (r *htRank) whole(round uint64) ([]byte, error) {
	var left []byte
	for again := range uint64(2) {
		x := make([]uint16, r.tokens*r.hidden)
		routing.FillTokens(x, 3, 2*round+again, r.c.Rank(), r.hidden)
		x[0], x[r.hidden/2], x[r.hidden-1] = 0x7f80, 0xffc1, 0xff80 // infinities, a NaN
		err := doorbell.Write(r.c, gpu.Cast[uint16](r.in.X), x)
		switch {
		case err != nil:
		case again == 0:
			r.got, err = r.h.Dispatch(r.st, r.in)
		default:
			err = r.h.DispatchAgain(r.st, r.got, r.in.X)
		}
		if err == nil {
			err = r.h.Wait(r.ctx, r.st)
		}
		if err == nil {
			left, err = r.rows(left, round)
		}
		if err != nil {
			return nil, err
		}
	}
	if err := errors.Join(r.h.Combine(r.st, r.got, r.out), r.h.Wait(r.ctx, r.st)); err != nil {
		return nil, err
	}
	y := make([]byte, 2*r.tokens*r.hidden)
	err := doorbell.Read(r.c, y, r.out.Y)
	left = append(left, y...)
	if r.weights {
		w := make([]byte, 4*r.tokens*r.topk)
		err = errors.Join(err, doorbell.Read(r.c, w, gpu.Cast[byte](r.out.Weights)))
		left = append(left, w...)
	}
	return left, err
}

// rows adds what a dispatch brought, and writes what the experts make of it: outputs and weights, by whose each row is.
func (r *htRank) rows(left []byte, round uint64) ([]byte, error) {
	n, err := r.h.Count(r.got)
	if err != nil || n == 0 {
		return append(left, "no rows"...), err
	}
	rows, infos, per := make([]byte, n*r.got.RowBytes()), make([]byte, n*r.got.InfoBytes()), make([]int32, r.h.LocalExperts())
	if err := errors.Join(doorbell.Read(r.c, rows, r.got.Rows()), doorbell.Read(r.c, infos, gpu.Cast[byte](r.got.Infos())), doorbell.Read(r.c, per, r.got.ExpertRows())); err != nil {
		return nil, err
	}
	outs, weights := make([]uint16, n*r.hidden), make([]float32, n*r.topk)
	for i := range n {
		routing.FillRow(outs[i*r.hidden:][:r.hidden], routing.RowKey(round, 0, r.c.Rank(), i))
		for k := range r.topk {
			weights[i*r.topk+k] = float32(i) + 1/float32(3+k+int(round))
		}
	}
	left = fmt.Appendf(append(append(left, rows...), infos...), "%v", per)
	return left, errors.Join(doorbell.Write(r.c, gpu.Cast[uint16](r.got.Outputs()), outs), doorbell.Write(r.c, r.got.OutputWeights(), weights))
}

var htPhases = []string{"dispatch", "dispatch again", "combine"}

// timesHT measures the phases at the normal size.
func (w *twins) timesHT(t *testing.T) {
	for _, x := range []struct {
		name   string
		shape  htShape
		phases []string
	}{
		{"4 ranks, BF16", htShape{4, 4096, 7168, 8, 256, 0, moe.BF16, false}, htPhases},
		{"4 ranks, FP8", htShape{4, 4096, 7168, 8, 256, 0, moe.FP8, false}, htPhases[:2]},
		{"8 ranks, BF16", htShape{8, 4096, 7168, 8, 256, 0, moe.BF16, false}, htPhases},
		{"4 ranks, BF16, 256 channels", htShape{4, 4096, 7168, 8, 256, 256, moe.BF16, false}, htPhases},
		{"8 ranks, BF16, 128 channels", htShape{8, 4096, 7168, 8, 256, 128, moe.BF16, false}, htPhases},
	} {
		t.Run(x.name, func(t *testing.T) { w.timeHT(t, "cuda", "HT, "+x.name, x.shape, x.phases) })
	}
}

// timeHT measures all phases, and prints the first ones.
func (w *twins) timeHT(t *testing.T, device, name string, s htShape, phases []string) {
	g := must(routing.Generate(routing.Options{Seed: 1, Ranks: s.ranks, Experts: s.experts, TopK: s.topk, Tokens: s.tokens}))(t)
	all := htRanks(t, device, s, g.Idx)
	if room := all[0].c.Warps() / 64 * 16; device == "cuda" && s.channels > room {
		t.Skipf("%d channels of a rank, and its multiprocessors have room for %d, a block of 16 warps each", s.channels, room)
	}
	watches := make([]*stopwatch, s.ranks)
	check(t, ranks(s.ranks, func(r int) (err error) {
		watches[r], err = w.newStopwatch(all[r].ctx, all[r].c, all[r].st)
		return err
	}))
	w.pairs(t, s.ranks, name, phases, func(r int) ([]time.Duration, error) {
		one := all[r]
		return watches[r].times([]func() error{
			func() (err error) { one.got, err = one.h.Dispatch(one.st, one.in); return err },
			func() error { return one.h.DispatchAgain(one.st, one.got, one.in.X) },
			func() error { return one.h.Combine(one.st, one.got, one.out) },
		}, func() error { return one.h.Wait(one.ctx, one.st) })
	})
}
