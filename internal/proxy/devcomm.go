// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"fmt"

	"github.com/doorbell-net/doorbell/gpu"
	"github.com/doorbell-net/doorbell/internal/abi"
	"github.com/doorbell-net/doorbell/netplugin"
)

// DevComm is what the proxy knows of a device communicator.
type DevComm struct {
	ABI abi.DevComm
	// Stick sets the status of a queue, where the device finds it.
	Stick func(queue int, s abi.Status)
	// Blind says that the host does not reach the device's memory: it cannot see tickets that are out.
	Blind        bool
	Context      int32              // its context 0 is the endpoint's context of this number
	Signals      []netplugin.Region // by rank: the signal words there
	Net          netplugin.Endpoint // its contexts' endpoint
	MaxBytes     int                // largest single operation of Net
	DeviceMemory bool               // Net reads sources that only the device reaches
	Polled       bool               // Net has to be polled also when nothing was posted
	Unordered    bool               // Net keeps no order: what a signal covers is complete before it is posted
	Untold       bool               // Unordered, and what Net completes may not be at its target: no signal of a put that is cut
	queues       []*queue
	heads        []uint64 // of the queues, low halves, two in a word, as hints lie
	First
}

// First keeps the first reason why a queue of a device communicator ended.
type First struct{ cause abi.Record }

// Cause is that reason as the host saw it, nil if there is none. It may be called at any time.
func (f *First) Cause() *abi.Record {
	if gpu.Load(gpu.PtrTo(&f.cause.State), gpu.Acquire, gpu.ScopeSys) != 2 {
		return nil
	}
	r := f.cause
	return &r
}

// Note keeps a reason if it is the first. The holder of the owner's lock calls it.
func (f *First) Note(r abi.Record) {
	c := &f.cause
	if c.State != 0 {
		return
	}
	c.Status, c.Op, c.Peer, c.ID, c.Ctx, c.Window, c.Syndrome, c.Offset = r.Status, r.Op, r.Peer, r.ID, r.Ctx, r.Window, r.Syndrome, r.Offset
	gpu.Store(gpu.PtrTo(&c.State), 2, gpu.Release, gpu.ScopeSys)
}

// Window is what the proxy knows of a window: this rank's bytes, and where each peer's are.
type Window struct {
	ID, Gen uint32
	Bytes   []byte        // nil where the host does not reach them
	Dev     gpu.Ptr[byte] // the device's address of them, nil where it is the host's
	Size    int
	Peers   []netplugin.Region // by rank
	Signals bool               // its words are signals: nothing else is put there or got from there
}

// RemoteError is an operation that was refused after it was posted.
type RemoteError struct {
	Rank, Peer, Context int
	Op                  string
	Window              uint32
	Offset, Bytes       uint64
	Cause               error
}

func (e *RemoteError) Error() string {
	return fmt.Sprintf("rank %d: %s to rank %d, context %d, window %d, offset %d, %d bytes: %v",
		e.Rank, e.Op, e.Peer, e.Context, e.Window, e.Offset, e.Bytes, e.Cause)
}

func (e *RemoteError) Unwrap() error { return e.Cause }

// About is whose queue ended by it.
func (e *RemoteError) About() (peer, context int) { return e.Peer, e.Context }

func opName(op uint8) string {
	switch op {
	case abi.OpPut:
		return "put"
	case abi.OpPutValue:
		return "put value"
	case abi.OpPutCell:
		return "put (in cell)"
	case abi.OpSignal:
		return "signal"
	case abi.OpGet:
		return "get"
	}
	return fmt.Sprintf("operation %d", op)
}

// fail ends a queue: nothing more is taken from it, and its device threads get the status.
func (o *Owner) fail(q *queue, s abi.Status, d *abi.Desc, cause error) {
	q.drop(&o.tab)
	err := &RemoteError{Rank: o.rank, Peer: int(q.peer), Context: int(q.ctx), Op: opName(d.Op), Window: d.DstWin, Offset: d.DstOff, Bytes: d.Size, Cause: cause}
	// Before the status: who sees that asks for the cause.
	q.dc.Note(abi.Record{Status: uint32(s), Op: uint32(d.Op), Peer: q.peer, Ctx: uint32(q.ctx), Window: d.DstWin, Offset: d.DstOff, ID: d.SigID})
	q.setStatus(s)
	o.Report(err)
}

// setStatus sets the queue's status if it has none.
func (q *queue) setStatus(s abi.Status) {
	if q.status != abi.OK {
		return
	}
	q.status = s
	q.dc.Stick(q.at, s)
}
