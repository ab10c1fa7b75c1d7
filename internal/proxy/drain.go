// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/doorbell-net/doorbell/gpu"
	"github.com/doorbell-net/doorbell/internal/abi"
	"github.com/doorbell-net/doorbell/netplugin"
)

// Refusals of descriptors. A reader takes each descriptor for hostile.
var (
	errVersion = errors.New("descriptor has another version")
	errOp      = errors.New("descriptor names no operation")
	errFlags   = errors.New("descriptor has flags that do not go together")
	errSize    = errors.New("descriptor has a size that its operation cannot have")
	errDevice  = errors.New("window is in device memory, which the network does not reach: host memory is accepted (Comm.AllocHost), and any over network staged+tcp")
	errWindow  = errors.New("window is not registered")
	errStale   = errors.New("window is stale: it was registered again")
	errSource  = errors.New("source is out of bounds")
	errSignal  = errors.New("signal is not there")
	errSignals = errors.New("window is one of signals: puts and gets do not reach it")
	errCounter = errors.New("counter is not there")
	errDied    = errors.New("a producer took a ticket and never wrote its descriptor")
)

// drain takes descriptors from one queue, at most budget, and says how much of the budget it used. A large piece
// counts for many.
func (o *Owner) drain(q *queue, budget int) (used int) {
	var w [abi.DescWords]uint64
	for more := true; more && used < budget && !q.dead; {
		n := 0
		for n < batchOps && used < budget {
			if n == 0 && q.cutEntry != none {
				o.descs[0] = q.cutDesc // as it was checked: what stands in the slot may have changed
			} else if n >= q.room() || !q.read(q.head+uint64(n), &w) {
				more = false
				break
			} else {
				o.descs[n].Decode(&w)
			}
			if !o.prepare(q, n) {
				more = false
				break // the table is full, or the descriptor was refused
			}
			cost := 1 + o.ops[n].Len()>>12
			alone := o.more[n] > 0 || q.cut > 0
			used += cost
			n++
			if alone {
				break // a piece of a large one ends the batch
			}
		}
		if n == 0 {
			return used
		}
		if !o.post(q, n) {
			return used
		}
	}
	return used
}

// post hands n operations to the network; false when it asked for patience.
func (o *Owner) post(q *queue, n int) bool {
	took := q.dc.Net.Post(o.ops[:n])
	for i := took; i < n; i++ { // they are still in their slots
		if e := o.entries[i]; e != q.cutEntry {
			o.tab.e[e].q = nil
			o.tab.give(e)
		}
	}
	for i := range took {
		op, e := &o.ops[i], o.entries[i]
		o.stats.Bytes += uint64(op.Len())
		if op.Raise {
			o.stats.Signals++
		}
		if op.Kind == netplugin.Put {
			o.stats.Puts++
		}
		if o.more[i] > 0 {
			q.cut += uint64(op.Len())
			q.cutEntry, q.cutDesc = e, o.descs[i]
			o.tab.e[e].pieces++
		} else {
			q.head++
			q.cut, q.cutEntry = 0, none
		}
		o.flown(q, 1)
		if op.State == netplugin.Failed {
			o.fail(q, o.statusOf(q.peer, op.Err), &o.descs[i], op.Err)
		}
		if op.State != netplugin.Posted {
			o.pieceEnded(e, nil)
		} else {
			o.tab.e[e].desc = o.descs[i]
		}
	}
	if !q.dead {
		q.took()
	}
	return took == n
}

// flown counts an operation that was posted; pieceEnded counts it back.
func (o *Owner) flown(q *queue, n int) { q.flying += n; o.flying += n }

// statusOf is what the error of an operation to a peer means for its queue.
func (o *Owner) statusOf(peer int32, err error) abi.Status {
	if errors.Is(err, netplugin.ErrPeerLost) || o.gone(int(peer)) {
		return abi.PeerLost
	}
	return abi.RemoteError
}

// pieceEnded ends a piece of an operation, and the operation with its last one.
func (o *Owner) pieceEnded(i int32, err error) {
	e := &o.tab.e[i]
	q := e.q
	o.flown(q, -1)
	if err != nil && !q.dead {
		o.fail(q, o.statusOf(q.peer, err), &e.desc, err)
	}
	if e.pieces--; e.pieces > 0 {
		return
	}
	if !q.dead {
		if e.counter != none {
			raiseCounter(q.dc.ABI.Counter.At(int(q.ctx)*int(q.dc.ABI.Counters) + int(e.counter)))
		}
		q.end(e.ticket)
	}
	e.q = nil
	o.tab.give(i)
}

// raiseCounter adds 1. Only the holder of the owner's lock writes counters.
func raiseCounter(p gpu.Ptr[uint64]) {
	gpu.Store(p, gpu.Load(p, gpu.Relaxed, gpu.ScopeSys)+1, gpu.Release, gpu.ScopeSys)
}

// prepare checks the descriptor that was read as number n of a batch, and makes its operation, or the next piece of it.
// It is false when the table is full, a cell is not whole yet, or the descriptor was refused.
func (o *Owner) prepare(q *queue, n int) bool {
	d, op := &o.descs[n], &o.ops[n]
	ticket := q.head + uint64(n)
	dst, src, err := o.check(q, d)
	if err != nil {
		if n == 0 { // else those before it go first
			o.fail(q, abi.RemoteError, d, err)
		}
		return false
	}
	if q.dc.Unordered && q.held(d, n) {
		return false
	}
	posted, i := uint64(0), q.cutEntry
	if n == 0 && i != none {
		posted = q.cut
	} else if i = o.tab.take(); i == none {
		return false
	} else {
		e := &o.tab.e[i]
		e.q, e.ticket, e.pieces, e.counter = q, ticket, 1, none
		if d.Flags&abi.FlagCounter != 0 {
			e.counter = int32(d.Counter)
		}
	}
	// Field by field: clearing it whole took a tenth of a small put's time.
	op.Kind, op.State, op.Strong, op.Raise = netplugin.Put, netplugin.Posted, false, false
	op.Src, op.Bytes = gpu.Ptr[byte]{}, 0
	op.Context, op.Peer, op.Dst, op.DstOff, op.Token = q.dc.Context+q.ctx, q.peer, dst, d.DstOff+posted, uint64(i)
	o.entries[n], o.more[n] = i, 0
	switch d.Op {
	case abi.OpPut, abi.OpGet:
		if d.Op == abi.OpGet {
			op.Kind = netplugin.Get
		}
		size := min(d.Size-posted, uint64(q.dc.MaxBytes))
		at := d.Src + posted
		if op.Data, op.Bytes = nil, int(size); src.Bytes != nil {
			op.Data = src.Bytes[at : at+size]
		}
		if !src.Dev.IsNil() {
			op.Src = src.Dev.Byte(at)
		}
		o.more[n] = d.Size - posted - size
	case abi.OpPutValue:
		buf := o.tab.e[i].buf[:8]
		binary.LittleEndian.PutUint64(buf, d.Src)
		op.Data = buf[:d.Size]
	case abi.OpPutCell:
		op.Data = o.tab.e[i].buf[:d.Size]
		if !q.readCell(ticket, op.Data) {
			o.tab.e[i].q = nil
			o.tab.give(i)
			return false
		}
	case abi.OpSignal:
		op.Kind, op.Data = netplugin.Signal, nil
	}
	if o.more[n] == 0 && d.Flags&(abi.FlagSignalInc|abi.FlagSignalAdd) != 0 {
		op.Raise, op.Strong = true, d.Flags&abi.FlagStrong != 0
		if d.Flags&abi.FlagAtAddress != 0 {
			op.SigDst, op.SigOff = o.window(d.SigID).Peers[q.peer], d.SigOff
		} else {
			op.SigDst = q.dc.Signals[q.peer]
			op.SigOff = 8 * (uint64(q.ctx)*uint64(q.dc.ABI.SignalStride) + uint64(d.SigID))
		}
		op.SigAdd = d.SigVal
		if d.Flags&abi.FlagSignalInc != 0 {
			op.SigAdd = 1
		}
	}
	return true
}

// check refuses what a descriptor must not say, and finds its window and source.
func (o *Owner) check(q *queue, d *abi.Desc) (dst netplugin.Region, src *Window, err error) {
	a := &q.dc.ABI
	if d.Version != abi.DescVersion {
		return 0, nil, fmt.Errorf("%w: %d, this build reads %d", errVersion, d.Version, abi.DescVersion)
	}
	const signals, all = abi.FlagSignalInc | abi.FlagSignalAdd, 1<<6 - 1
	if d.Flags&signals == signals || d.Flags&signals == 0 && d.Flags&abi.FlagAtAddress != 0 || d.Flags&^all != 0 ||
		d.Flags&signals != 0 && d.Op == abi.OpGet || uint32(d.Flags)&a.Refused != 0 {
		return 0, nil, fmt.Errorf("%w: %#x", errFlags, d.Flags)
	}
	if d.Flags&abi.FlagAtAddress != 0 {
		if err := o.checkAddress(q, d); err != nil {
			return 0, nil, err
		}
	} else if d.Flags&signals != 0 && d.SigID >= a.SignalStride {
		return 0, nil, fmt.Errorf("%w: %d of %d", errSignal, d.SigID, a.SignalStride)
	}
	if d.Flags&abi.FlagCounter != 0 && d.Counter >= uint32(a.Counters) {
		return 0, nil, fmt.Errorf("%w: %d of %d", errCounter, d.Counter, a.Counters)
	}
	switch d.Op {
	case abi.OpSignal:
		if d.Size != 0 {
			return 0, nil, fmt.Errorf("%w: %d bytes", errSize, d.Size)
		}
		return 0, nil, nil
	case abi.OpPut, abi.OpGet:
		if q.dc.Untold && d.Flags&signals != 0 && d.Size > uint64(q.dc.MaxBytes) {
			return 0, nil, fmt.Errorf("%w: %d bytes with a signal, at most %d on a network that keeps no order and does not tell what is complete", errSize, d.Size, q.dc.MaxBytes)
		}
	case abi.OpPutValue:
		if d.Size > 8 {
			return 0, nil, fmt.Errorf("%w: %d bytes, at most 8", errSize, d.Size)
		}
	case abi.OpPutCell:
		if d.Size > abi.CellPayload || q.cells.IsNil() {
			return 0, nil, fmt.Errorf("%w: %d bytes, at most %d, cells %v", errSize, d.Size, abi.CellPayload, !q.cells.IsNil())
		}
	default:
		return 0, nil, fmt.Errorf("%w: %d", errOp, d.Op)
	}
	w := o.window(d.DstWin)
	if w == nil {
		return 0, nil, fmt.Errorf("%w: id %d", errWindow, d.DstWin)
	}
	if w.Gen&abi.GenMask != d.DstGen {
		return 0, nil, fmt.Errorf("%w: id %d has generation %d, the descriptor %d", errStale, d.DstWin, w.Gen, d.DstGen)
	}
	if w.Signals {
		return 0, nil, fmt.Errorf("%w: id %d", errSignals, d.DstWin)
	}
	if d.Op == abi.OpPut || d.Op == abi.OpGet {
		s := o.window(d.SrcWin)
		if s == nil {
			return 0, nil, fmt.Errorf("%w: id %d at this end", errWindow, d.SrcWin)
		}
		if s.Signals {
			return 0, nil, fmt.Errorf("%w: id %d at this end", errSignals, d.SrcWin)
		}
		if !netplugin.InBounds(d.Src, d.Size, uint64(s.Size)) {
			return 0, nil, fmt.Errorf("%w: %d bytes at %d of %d", errSource, d.Size, d.Src, s.Size)
		}
		if s.Bytes == nil && !q.dc.DeviceMemory && d.Size > 0 {
			return 0, nil, fmt.Errorf("%w: id %d at this end", errDevice, d.SrcWin)
		}
		src = s
	}
	if w.Peers[q.peer] == 0 && d.Size > 0 {
		return 0, nil, fmt.Errorf("%w: id %d", errDevice, d.DstWin)
	}
	return w.Peers[q.peer], src, nil
}

// checkAddress refuses a signal at an address that cannot be.
func (o *Owner) checkAddress(q *queue, d *abi.Desc) error {
	w := o.window(d.SigID)
	switch {
	case w == nil:
		return fmt.Errorf("%w: id %d, of a signal", errWindow, d.SigID)
	case !w.Signals || d.SigOff&7 != 0 || w.Peers[q.peer] == 0:
		return fmt.Errorf("%w: offset %d of window %d, which is one of signals: %v", errSignal, d.SigOff, d.SigID, w.Signals)
	case w.Gen&abi.SigGenMask != d.SigGen:
		return fmt.Errorf("%w: id %d has generation %d, the descriptor %d", errStale, d.SigID, w.Gen&abi.SigGenMask, d.SigGen)
	}
	return nil
}

// held says whether the next operation has to wait on a network without order: a strong signal for all before it, and the
// signal of a put that was cut for its other pieces.
func (q *queue) held(d *abi.Desc, n int) bool {
	if d.Flags&(abi.FlagSignalInc|abi.FlagSignalAdd) == 0 || n == 0 && q.flying == 0 {
		return false
	}
	last := d.Op != abi.OpPut || d.Size-q.cut <= uint64(q.dc.MaxBytes)
	return last && (d.Flags&abi.FlagStrong != 0 || q.cut > 0)
}

func (o *Owner) window(id uint32) *Window {
	if int(id) >= len(o.windows) {
		return nil
	}
	return o.windows[id]
}
