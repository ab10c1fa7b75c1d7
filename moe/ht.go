// SPDX-License-Identifier: Apache-2.0

package moe

import (
	"context"
	"errors"
	"fmt"

	"github.com/doorbell-net/doorbell"
	"github.com/doorbell-net/doorbell/gpu"
)

// HTBuffer is one rank's memory and state for dispatch and combine in the high-throughput form, for thousands of tokens. A
// token goes once to each rank that has experts of it, into a row that both know before it is sent: rows stand in the order
// of their sources, those of a source in the order of its tokens. Between nodes a token is sent once to each, to the rank
// with its source's place there, which passes it on.
//
// Calls are made from one goroutine at a time, by all ranks in the same order, and queue kernels on one stream: another one
// is taken after Wait or Check. No kernel waits for a host: how many rows have come is known to the device, and to the host
// after Wait. Graphs may record the calls: see the package's comment. A layout is then what each replay makes anew.
type HTBuffer struct {
	comm  *doorbell.Comm
	opt   HTOptions
	asked HTOptions // opt before what was left open was filled in
	lay   htLayout
	dc    *doorbell.DevComm
	win   *doorbell.Window
	own   *doorbell.Buffer // layouts, tables
	host  *doorbell.Buffer // two results, in memory of the host

	stream     *doorbell.Stream // that operations may still be on
	layouts    []*HTReceived    // of dispatch n at n % Layouts
	dispatches uint64           // that made a layout, or do so in a graph
	newest     *HTReceived      // whose rows came last
	tape       *htTape          // of the graph that was recorded last
	broken     error            // why no further operation can be right

	ranks   []int // that take part
	life    int   // how often it was recovered
	measure bool
	closed  bool
}

// NewHT makes a rank's part. Collective: all ranks give the same options. Memory is refused before it is taken: the
// error wraps doorbell.ErrOutOfMemory and says what is needed and what there is.
func NewHT(ctx context.Context, c *doorbell.Comm, o HTOptions) (*HTBuffer, error) {
	h := &HTBuffer{comm: c, asked: o, ranks: c.Members()}
	o = h.filled()
	if err := agree(ctx, c, o, o.Validate()); err != nil {
		return nil, err
	}
	h.begin()
	if err := h.make(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("rank %d: moe: %w", c.Rank(), err), h.Close())
	}
	return h, nil
}

func (h *HTBuffer) make(ctx context.Context) error {
	c := h.comm
	if err := c.Reserve(ctx, h.opt.MemoryBytes(c.Size(), h.nodeSize(), c.Info().Device)); err != nil {
		return err
	}
	buf, err := h.comm.Alloc(h.lay.window)
	if err != nil {
		return err
	}
	if h.win, err = h.comm.Register(ctx, buf); err != nil {
		return errors.Join(err, buf.Free())
	}
	if h.own, err = h.comm.Alloc(h.lay.own); err != nil {
		return err
	}
	if h.host, err = h.comm.AllocHost(resultBytes); err != nil {
		return err
	}
	if err = writeMissing(h.own, h.lay.missing, h.lay.ranks, h.ranks); err != nil {
		return err
	}
	h.dc, err = h.comm.DevComm(ctx, h.opt.needs(&h.lay))
	return err
}

// Options are those it was made with, with defaults filled in.
func (h *HTBuffer) Options() HTOptions { return h.opt }

// LocalExperts is the number of experts on this rank.
func (h *HTBuffer) LocalExperts() int {
	return localExperts(h.opt.Experts, h.comm.Rank(), h.comm.Size())
}

// FirstExpert is the number of this rank's first expert in the world.
func (h *HTBuffer) FirstExpert() int {
	return int(spreadOf(int32(h.opt.Experts), int32(h.comm.Size())).first(int32(h.comm.Rank())))
}

// Close ends it on this rank and gives its memory back. Its stream must be done.
func (h *HTBuffer) Close() error {
	h.closed = true
	return h.free()
}

func (h *HTBuffer) free() error {
	errs := []error{closeDevComm(&h.dc)}
	if h.win != nil {
		errs = append(errs, h.win.Close(), h.win.Buffer().Free())
	}
	for _, m := range []*doorbell.Buffer{h.own, h.host} {
		if m != nil {
			errs = append(errs, m.Free())
		}
	}
	h.win, h.own, h.host = nil, nil, nil
	return errors.Join(errs...)
}

// HTReceived is a dispatch's layout, and where its rows are. It may be combined, and dispatched again, any number of times,
// until Layouts further dispatches have made layouts of their own. Rows and outputs are one place for all: the next
// dispatch, of whatever layout, overwrites the rows. It is not used after HTBuffer.Close: there is no memory then.
type HTReceived struct {
	h      *HTBuffer
	tokens Tokens
	op     uint64 // number of the layout
	life   int    // the buffer's when it was made
}

func (h *HTBuffer) at(off int) gpu.Ptr[byte] { return h.win.Device().Base.Byte(uint64(off)) }

// Rows is [MaxRows] rows of RowBytes, the received ones first: by source, then by token. What stands behind them is
// left as it is.
func (r *HTReceived) Rows() gpu.Ptr[byte] { return r.h.at(r.h.lay.rows) }

// RowBytes is from one row to the next, a multiple of 16: Format.RowBytes.
func (r *HTReceived) RowBytes() int { return r.h.lay.payload }

// Scales is where the scales of the first row are; those of the next are RowBytes further. BF16 has none.
func (r *HTReceived) Scales() gpu.Ptr[byte] {
	return r.Rows().Byte(uint64(r.h.opt.Format.ValueBytes(r.h.opt.Hidden)))
}

// Infos is whose the first row is; that of the next row is InfoBytes further.
func (r *HTReceived) Infos() gpu.Ptr[HTInfo] { return gpu.Cast[HTInfo](r.h.at(r.h.lay.infos)) }

// InfoBytes is from what is known of one row to the next, a multiple of 16.
func (r *HTReceived) InfoBytes() int { return r.h.lay.info }

// Experts is the TopK local experts of the first row, -1 for a selection of none or of another rank's; those of the next
// are InfoBytes further.
func (r *HTReceived) Experts() gpu.Ptr[int32] {
	return gpu.Cast[int32](gpu.Cast[byte](r.Infos()).Byte(htInfoBytes))
}

// Weights is the first row's weights of its Experts, 0 where that is -1; those of the next row are InfoBytes further.
func (r *HTReceived) Weights() gpu.Ptr[float32] {
	return gpu.Cast[float32](r.Experts().At(r.h.opt.TopK))
}

// Count is how many rows there are: the plan's first word. Go looks at what it takes the address of a field of, and the host may not.
func (r *HTReceived) Count() gpu.Ptr[uint32] { return gpu.Cast[uint32](r.plan()) }

// ExpertRows is [LocalExperts]: how many selections name each, rounded up to a multiple of Align.
func (r *HTReceived) ExpertRows() gpu.Ptr[int32] {
	return gpu.Cast[int32](r.layout(r.h.lay.expertRows))
}

// Outputs is [MaxRows][Hidden] BF16: where the experts write what they make of Rows, each row at its place, before
// Combine. Peers read it there: nothing is copied before.
func (r *HTReceived) Outputs() gpu.Ptr[byte] { return r.h.at(r.h.lay.outs) }

// OutputWeights is [MaxRows][TopK]: what Combine adds up to HTCombined.Weights.
func (r *HTReceived) OutputWeights() gpu.Ptr[float32] {
	return gpu.Cast[float32](r.h.at(r.h.lay.outWeights))
}

func (r *HTReceived) plan() gpu.Ptr[HTPlan] { return gpu.Cast[HTPlan](r.layout(0)) }

func (r *HTReceived) layout(off int) gpu.Ptr[byte] {
	l := &r.h.lay
	return r.h.own.Ptr().Byte(uint64(l.layouts + r.slot()*l.layoutBytes + off))
}

func (r *HTReceived) slot() int { return int(r.op % uint64(r.h.opt.Layouts)) }
