// SPDX-License-Identifier: Apache-2.0

// Package layers has two layers of a model whose ranks exchange what they compute, each in three forms.
//
//   - RMSNormAllGather: each rank normalises rows (tokens) of its own, and all ranks get all rows.
//   - GEMVAllReduce: each rank has some columns of a matrix, and the elements of the vector that belong to them. All ranks
//     get the product, which is the sum of the ranks' parts.
//
// What a rank computes is cut into tiles, a warp's work each. The forms differ in when they leave, and in nothing else:
//
//   - Fused: one kernel, which sends each tile as soon as it is computed.
//   - Unfused: a kernel that computes all, and after it one that sends all. The host queues both and waits once.
//   - Host: as Unfused, but the host waits between any two kernels, and one that only communicates stands for what the host
//     itself does: post the transfer to the network, and wait for the completion. There is no put of the host here, so that
//     the cost of a launch is in that of this form.
//
// Sums have a fixed order, so that all forms, all devices and a plain loop on the host come to the same bits.
//
//gpu:cubin sm_90
package layers

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"

	"github.com/doorbell-net/doorbell"
	"github.com/doorbell-net/doorbell/gin"
	"github.com/doorbell-net/doorbell/gpu"
)

// Work is a layer.
type Work int

// Layers.
const (
	RMSNormAllGather Work = iota
	GEMVAllReduce
)

func (w Work) String() string { return [...]string{"rmsnorm-allgather", "gemv-allreduce"}[w] }

// Works lists the layers.
var Works = []Work{RMSNormAllGather, GEMVAllReduce}

// Form is how it is done.
type Form int

// Forms.
const (
	Fused Form = iota
	Unfused
	Host
)

func (f Form) String() string { return [...]string{"fused", "unfused", "host"}[f] }

// Forms lists them.
var Forms = []Form{Fused, Unfused, Host}

// plans is the kernels of each work and form, in their order.
var plans = [...][3][]gpu.Kernel[Args]{
	RMSNormAllGather: {
		Fused:   {NormGatherKernel},
		Unfused: {NormKernel, GatherKernel},
		Host:    {NormKernel, GatherKernel},
	},
	GEMVAllReduce: {
		Fused:   {MultiplyReduceKernel},
		Unfused: {MultiplyKernel, GatherReduceKernel},
		Host:    {MultiplyKernel, GatherKernel, ReduceKernel},
	},
}

// Options of a Layer, the same on all ranks.
type Options struct {
	Tiles int    // of each rank; at least 1
	Width int    // elements of a tile: of a row that is normalised, or rows of the matrix; at least 1
	Depth int    // columns of the matrix on each rank; 1 to Tiles*Width
	Seed  uint64 // of all values
	// Grid of all kernels. It is Cooperative: a block waits for tiles that other blocks send.
	Grid doorbell.Grid
	// Stores has ranks of one node store into each other's windows. Otherwise all is put.
	Stores bool
	// HostWindow has the window in memory of the host.
	HostWindow bool
}

func (o *Options) check() error {
	switch {
	case o.Tiles < 1 || o.Width < 1 || o.Tiles > math.MaxInt32/o.Width:
		return fmt.Errorf("layers: %d tiles of %d elements asked for: 1 to %d elements in all are accepted", o.Tiles, o.Width, math.MaxInt32)
	case o.Depth < 1 || o.Depth > o.Tiles*o.Width:
		return fmt.Errorf("layers: depth %d asked for, 1 to %d (tiles*width) are accepted", o.Depth, o.Tiles*o.Width)
	case !o.Grid.Cooperative:
		return errors.New("layers: a grid that is not cooperative asked for: its blocks wait for one another")
	}
	return nil
}

// Layer is both works on one rank, with what they compute from and into. One goroutine uses it.
type Layer struct {
	o    Options
	comm *doorbell.Comm
	st   *doorbell.Stream
	dc   *doorbell.DevComm
	out  *doorbell.Window

	in, weights, sum, failed *doorbell.Buffer

	round uint64
	iter  uint64 // of the values in in
}

// New makes a Layer. Collective.
func New(ctx context.Context, c *doorbell.Comm, o Options) (*Layer, error) {
	if err := o.check(); err != nil {
		return nil, fmt.Errorf("rank %d: %w", c.Rank(), err)
	}
	l := &Layer{o: o, comm: c, st: c.Stream()}
	elements := o.Tiles * o.Width
	alloc := c.Alloc
	if o.HostWindow {
		alloc = c.AllocHost
	}
	slots, err1 := alloc(2 * c.Size() * 4 * elements)
	var err2, err3, err4, err5 error
	l.in, err2 = c.Alloc(4 * elements)
	l.weights, err3 = c.Alloc(4 * elements * o.Depth)
	l.sum, err4 = c.Alloc(4 * elements)
	l.failed, err5 = c.AllocHost(4)
	err := errors.Join(err1, err2, err3, err4, err5)
	if err == nil {
		l.out, err = c.Register(ctx, slots)
	}
	if err == nil {
		l.dc, err = c.DevComm(ctx, doorbell.Needs{Signals: c.Size()})
	}
	if err == nil {
		err = l.writeWeights()
	}
	return l, err
}

// DevComm has the signals: that of number p counts the tiles that rank p has sent here.
func (l *Layer) DevComm() *doorbell.DevComm { return l.dc }

// Sent is how many tiles each rank has sent to each other.
func (l *Layer) Sent() uint64 { return l.round * uint64(l.o.Tiles) }

// Run does a work once, and returns when the result is there. Collective: all ranks run the same works in the same order.
//
// The rounds use the halves of the window in turn. That is enough for no rank to write what another still reads: who
// begins round i+2 has all tiles of round i+1, and each rank sent those after its own round i was over.
func (l *Layer) Run(ctx context.Context, w Work, f Form) error {
	l.round++
	a := l.args()
	for _, k := range plans[w][f] {
		if err := doorbell.Launch(l.st, k, l.o.Grid, a); err != nil {
			return err
		}
		if f == Host {
			if err := l.st.Wait(ctx); err != nil {
				return err
			}
		}
	}
	if err := l.st.Wait(ctx); err != nil {
		return err
	}
	if s := gin.Status(binary.NativeEndian.Uint32(l.failed.Bytes())); s != gin.OK {
		return errors.Join(fmt.Errorf("rank %d: %v, %v, round %d ended with %v", l.comm.Rank(), w, f, l.round, s), l.dc.Cause())
	}
	return nil
}

func (l *Layer) args() Args {
	a := Args{
		DC: l.dc.Device(), Out: l.out.Device(), In: gpu.Cast[float32](l.in.Ptr()), Weights: gpu.Cast[float32](l.weights.Ptr()),
		Sum: gpu.Cast[float32](l.sum.Ptr()), Failed: gpu.Cast[uint32](l.failed.Ptr()), Half: uint64(l.half()), Sent: l.Sent(),
		Tiles: int32(l.o.Tiles), Width: int32(l.o.Width), Depth: int32(l.o.Depth),
	}
	if l.o.Stores {
		a.Stores = 1
	}
	return a
}

// half is where the last round's half of the window begins.
func (l *Layer) half() int { return int(l.round%2) * l.comm.Size() * 4 * l.o.Tiles * l.o.Width }

// Close gives all back. Each rank has ended its rounds before any closes: a barrier of the host stands between.
func (l *Layer) Close() error {
	slots := l.out.Buffer()
	return errors.Join(l.st.Close(), l.dc.Close(), l.out.Close(), slots.Free(), l.in.Free(), l.weights.Free(), l.sum.Free(), l.failed.Free())
}
