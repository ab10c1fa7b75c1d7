// SPDX-License-Identifier: Apache-2.0

// Moelayer is a layer of a mixture of experts: a router, dispatch, the experts, combine. It runs three steps with other tokens
// and other numbers of them, the first by calls and the others as replays of a graph, and compares each with a reference that
// shares nothing with the kernels. 4 ranks here, or "doorbell run -n N -- ./moelayer".
package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"

	"github.com/doorbell-net/doorbell"
	"github.com/doorbell-net/doorbell/gpu"
	"github.com/doorbell-net/doorbell/moe"
)

const (
	most    = 16 // tokens of a rank
	hidden  = 64 // elements of a token
	inner   = 32 // and inside an expert
	experts = 10 // in the world: the ranks need not have as many each
	topK    = 3
	warps   = 4
)

// layer is one rank's part.
type layer struct {
	c                *doorbell.Comm
	buf              *moe.Buffer
	count, x, y      *doorbell.Buffer
	chosen, scores   *doorbell.Buffer
	router, up, down gpu.Ptr[float32]
}

func newLayer(ctx context.Context, c *doorbell.Comm) (*layer, error) {
	buf, err := moe.New(ctx, c, moe.Options{MaxTokens: most, Hidden: hidden, TopK: topK, Experts: experts})
	if err != nil {
		return nil, err
	}
	buf.SetGrid(doorbell.Grid{Blocks: 2, Warps: warps, Cooperative: true})
	l, errs := &layer{c: c, buf: buf}, make([]error, 8)
	l.count, errs[0] = c.Alloc(4)
	l.x, errs[1] = c.Alloc(2 * most * hidden)
	l.y, errs[2] = c.Alloc(2 * most * hidden)
	l.chosen, errs[3] = c.Alloc(4 * most * topK)
	l.scores, errs[4] = c.Alloc(4 * most * topK)
	first, locals := buf.FirstExpert(), buf.LocalExperts()
	l.router, errs[5] = upload(c, experts*hidden, func(i int) float32 { return routing(i/hidden, i%hidden) })
	l.up, errs[6] = upload(c, locals*inner*hidden, func(i int) float32 { return upward(first+i/hidden/inner, i/hidden%inner, i%hidden) })
	l.down, errs[7] = upload(c, locals*hidden*inner, func(i int) float32 { return downward(first+i/inner/hidden, i/inner%hidden, i%inner) })
	return l, errors.Join(errs...)
}

// upload makes n weights in the device's memory.
func upload(c *doorbell.Comm, n int, weight func(i int) float32) (p gpu.Ptr[float32], err error) {
	var bytes []byte
	for i := range n {
		bytes = binary.NativeEndian.AppendUint32(bytes, math.Float32bits(weight(i)))
	}
	b, err := c.Alloc(max(len(bytes), 1)) // a rank may have no expert
	if err != nil {
		return p, err
	}
	return gpu.Cast[float32](b.Ptr()), b.Write(0, bytes)
}

// forward queues the layer, or records it. How many tokens there are is in the device's memory, so that replays may differ.
func (l *layer) forward(st *doorbell.Stream) error {
	grid, count := doorbell.Grid{Blocks: 2, Warps: warps}, gpu.Cast[uint32](l.count.Ptr())
	chosen, scores := gpu.Cast[int32](l.chosen.Ptr()), gpu.Cast[float32](l.scores.Ptr())
	if err := doorbell.Launch(st, RouterKernel, grid, RouterArgs{count, gpu.Cast[uint32](l.x.Ptr()), l.router, chosen, scores}); err != nil {
		return err
	}
	got, err := l.buf.Dispatch(st, moe.Tokens{N: most, Count: count, X: l.x.Ptr(), Experts: chosen, Weights: scores})
	if err != nil {
		return err
	}
	err = doorbell.Launch(st, ExpertsKernel, grid, ExpertsArgs{
		Rows: gpu.Cast[uint32](got.Rows()), Counts: got.Counts(), Outputs: gpu.Cast[uint32](got.Outputs()),
		Up: l.up, Down: l.down, Locals: int32(l.buf.LocalExperts()), Capacity: int32(got.Capacity()),
	})
	if err != nil {
		return err
	}
	return l.buf.Combine(st, got, l.y.Ptr())
}

// tokens is how many a rank has in a step.
func tokens(rank, step int) int { return max(most-rank-step, 0) }

// step gives the layer its tokens, runs it, and compares what becomes of them.
func (l *layer) step(ctx context.Context, st *doorbell.Stream, step int, run func() error) error {
	r, n := l.c.Rank(), tokens(l.c.Rank(), step)
	x := make([]byte, 2*n*hidden)
	for i := range n * hidden {
		binary.NativeEndian.PutUint16(x[2*i:], uint16(math.Float32bits(element(r, step, i/hidden, i%hidden))>>16)) // exact
	}
	count := binary.NativeEndian.AppendUint32(nil, uint32(n))
	if err := errors.Join(l.count.Write(0, count), l.x.Write(0, x), run(), l.buf.Wait(ctx, st), l.y.Read(0, x)); err != nil {
		return err
	}
	for token := range n {
		want, far := reference(r, step, token)
		for j := range want {
			got := float64(gpu.BF16Lo(uint32(binary.NativeEndian.Uint16(x[2*(token*hidden+j):]))))
			if !(math.Abs(got-want[j]) <= far[j]) {
				return fmt.Errorf("rank %d of %d: step %d, token %d, element %d is wrong: %g, must be %g within %g", r, l.c.Size(), step, token, j, got, want[j], far[j])
			}
		}
	}
	return nil
}

func rank(ctx context.Context, c *doorbell.Comm) error {
	l, err := newLayer(ctx, c)
	if err != nil {
		return err
	}
	st := c.Stream()
	g, err := c.Graph(l.forward)
	if err := errors.Join(err, c.Barrier(ctx)); err != nil { // no kernel runs while others record
		return err
	}
	sum := 0
	for step, run := range []func() error{func() error { return l.forward(st) }, func() error { return st.Replay(g) }, func() error { return st.Replay(g) }} {
		if err := l.step(ctx, st, step, run); err != nil {
			return err
		}
		sum += tokens(c.Rank(), step)
	}
	_, err = fmt.Printf("rank %d of %d: %d tokens in 3 steps, 2 of them replayed, %d elements compared, all right\n", c.Rank(), c.Size(), sum, sum*hidden)
	return errors.Join(err, l.buf.Close())
}

func main() { doorbell.Main(4, rank) }
