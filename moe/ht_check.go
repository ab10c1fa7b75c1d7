// SPDX-License-Identifier: Apache-2.0

package moe

import (
	"context"
	"fmt"
	"slices"

	"github.com/doorbell-net/doorbell"
	"github.com/doorbell-net/doorbell/gin"
	"github.com/doorbell-net/doorbell/gpu"
)

// Wait waits for the stream and says whether the operations on it were right.
func (h *HTBuffer) Wait(ctx context.Context, st *doorbell.Stream) error {
	if err := st.Wait(ctx); err != nil {
		h.broken = err
		return err
	}
	if h.stream != nil && h.stream != st {
		return fmt.Errorf("rank %d: moe: wait for a stream that this buffer's operations are not on", h.comm.Rank())
	}
	return h.Check()
}

// Check says whether the operations were right, when their stream is done. An Invalid input is reported once, of many the
// first, and all stays usable: of a selection that names no expert and of a count that is too large the rest was sent; of
// rows that have no room on some rank (MaxRows) nothing was, on any rank, and all ranks say so. After any other failure it
// is not: the other ranks' state is not known.
func (h *HTBuffer) Check() error {
	h.stream = nil
	return checked(h.comm, h.host, &h.broken, h.explain, func() error { return h.own.Write(h.lay.told, make([]byte, 4)) })
}

// readOwn copies Ts from this rank's own memory.
func readOwn[T any](h *HTBuffer, into []T, off int) error {
	if h.own == nil {
		return closed(h.comm, "read")
	}
	return doorbell.Read(h.comm, into, gpu.Cast[T](h.own.Ptr().Byte(uint64(off))))
}

func readOne[T any](h *HTBuffer, off int) (T, error) {
	one := make([]T, 1)
	err := readOwn(h, one, off)
	return one[0], err
}

func (h *HTBuffer) explain(r *Result) error {
	e := &Error{Rank: h.comm.Rank(), Peer: int(r.Rank), Status: r.Status}
	switch r.What {
	case FaultSend:
		e.Text = fmt.Sprintf("send to rank %d", r.Rank)
	case FaultWait:
		e.Text = fmt.Sprintf("wait for rank %d", r.Rank)
	case FaultTokens:
		e.Text = fmt.Sprintf("the count says %d tokens; 0 to %d are accepted (N)", r.A, r.B)
	case FaultSelection:
		e.Text = fmt.Sprintf("token %d, selection %d names expert %d; 0 to %d and -1 are accepted", int(r.A)/h.opt.TopK, int(r.A)%h.opt.TopK, r.B, h.opt.Experts-1)
	case FaultRows:
		e.Text = fmt.Sprintf("rank %d would get %d rows, and has room for %d (MaxRows): nothing was sent", r.Rank, r.A, r.B)
	case FaultLayout:
		e.Text = fmt.Sprintf("rank %d told %d of its layout, where %d is the most", r.Rank, r.A, r.B)
	case FaultMessages:
		e.Text = fmt.Sprintf("rank %d has put %d messages, where %d are to come", r.Rank, r.A, r.B)
	case FaultHeader:
		e.Text = fmt.Sprintf("message %d of rank %d has a header that does not fit: the ranks are not at the same call, or bytes are wrong", r.A, r.Rank)
	}
	e.Text += fmt.Sprintf(" (dispatch %d)", r.Op)
	if r.Status != gin.Invalid {
		e.Cause, e.Lost = causeOf(h.dc, r.Status), lostOf(h.comm, h.ranks)
	}
	return e
}

// Times is how long the parts of the last dispatch took on this rank, by the device's clock, in nanoseconds: telling each
// other the layout, sending, and waiting for what others send.
func (h *HTBuffer) Times() (told, sent, waited uint64, err error) {
	s, err := readOne[HTState](h, h.lay.state)
	return s.Known - s.Begin, s.Sent - s.Known, s.Done - s.Sent, err
}

// Count is the number of rows that a dispatch brought, when it is done; 0 where it was refused.
func (h *HTBuffer) Count(r *HTReceived) (int, error) {
	if err := h.handle("count", r); err != nil {
		return 0, err
	}
	p, err := readOne[HTPlan](h, h.lay.layouts+r.slot()*h.lay.layoutBytes)
	return int(p.Rows), err
}

// HTSignals are the values of all signals, and what they must be when all operations of all ranks are done.
type HTSignals struct{ Got, Want []uint64 }

// Signals reads them.
func (h *HTBuffer) Signals(ctx context.Context, st *doorbell.Stream) (s HTSignals, err error) {
	if h.dc == nil {
		return s, closed(h.comm, "signals")
	}
	n := h.opt.needs(&h.lay).Signals
	mem, err := h.comm.Alloc(8 * n)
	if err != nil {
		return s, err
	}
	defer mem.Free()
	a := HTValuesArgs{A: h.args(&HTReceived{h: h}), Values: gpu.Cast[uint64](mem.Ptr())}
	if err := doorbell.Launch(st, HTValuesKernel, doorbell.Grid{Blocks: 1, Warps: 1}, a); err != nil {
		return s, err
	}
	if err := st.Wait(ctx); err != nil {
		return s, err
	}
	s.Got = make([]uint64, n)
	if err := doorbell.Read(h.comm, s.Got, a.Values); err != nil {
		return s, err
	}
	s.Want, err = h.expected()
	return s, err
}

// expected is what the signals must be, by this rank's own account.
func (h *HTBuffer) expected() ([]uint64, error) {
	l := &h.lay
	state, err := readOne[HTState](h, l.state)
	if err != nil {
		return nil, err
	}
	want := make([]uint64, l.ranks)
	for _, r := range h.ranks {
		want[r] = state.Dispatches
	}
	want = append(want, slices.Repeat([]uint64{state.Dispatches * uint64(h.opt.Channels)}, l.ranks)...)
	warps := h.opt.Channels * min(l.nodes, 2)
	node := h.comm.Rank() / l.node
	for _, each := range []uint64{state.Combines, state.Combines * uint64(warps)} {
		for r := range l.ranks {
			if r/l.node == node {
				want = append(want, each)
			} else {
				want = append(want, 0)
			}
		}
	}
	ways, err := h.ways()
	if err != nil {
		return nil, err
	}
	for _, w := range ways {
		want = append(want, w.Taken)
	}
	for _, w := range ways {
		want = append(want, w.Put)
	}
	return want, nil
}

func (h *HTBuffer) ways() ([]HTWay, error) {
	ways := make([]HTWay, h.opt.Channels*h.lay.nodes)
	return ways, readOwn(h, ways, h.lay.ways)
}

// Messages is how many messages this rank has put to other nodes, in all dispatches and combines so far.
func (h *HTBuffer) Messages() (n uint64, err error) {
	ways, err := h.ways()
	for _, w := range ways {
		n += w.Put
	}
	return n, err
}
