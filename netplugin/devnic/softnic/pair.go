// SPDX-License-Identifier: Apache-2.0

package softnic

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"

	"github.com/doorbell-net/doorbell/gpu"
	"github.com/doorbell-net/doorbell/netplugin"
	"github.com/doorbell-net/doorbell/netplugin/devnic"
	"github.com/doorbell-net/doorbell/netplugin/devnic/wqe"
)

// pair is a queue pair and its completion queue.
type pair struct {
	devnic.QPConfig
	number    uint32
	mask      uint64
	bell      gpu.Ptr[uint64]
	seen      uint64 // what the register held when it was looked at last
	connected bool
	theirs    word // where the peer is told of this end's end

	// Indices, in this order: done <= next <= end.
	done uint64 // WQEs below it have their CQE
	next uint64 // the one to be issued
	end  uint64 // doorbells told of those below it

	cut     uint64 // bytes of next that are with the wire already
	flights []flight
	flying  int  // operations of the wire under way
	broken  bool // one failed: what is issued from here on is flushed
	told    bool // of its failure
}

// flight is a WQE between its issue and its CQE.
type flight struct {
	pieces   int  // operations of the wire under way
	signal   bool // a fetch-add that is the signal of the write before it: they are one operation of the wire
	op       uint8
	syndrome wqe.Syndrome
	err      error
	value    [wqe.MaxInline]byte
}

// mark is how far a queue pair was before an operation of a batch was made.
type mark struct{ next, cut uint64 }

// rung says whether the doorbell register was written since it was looked at.
func (q *pair) rung() bool { return gpu.Load(q.bell, gpu.Relaxed, gpu.ScopeSys) != q.seen }

// answer takes in what the doorbell told of. The register says that there is something; how much, the record says.
func (n *nic) answer(q *pair) {
	q.seen = gpu.Load(q.bell, gpu.Acquire, gpu.ScopeSys)
	more := uint64(wqe.Recorded(gpu.Load(q.Record, gpu.Acquire, gpu.ScopeSys)) - uint16(q.end))
	if q.end+more-q.done > q.mask+1 {
		q.broken = true
		n.tell(q, wqe.LocalOperation, fmt.Errorf("the doorbell tells of %d WQEs without an end, and the queue has %d", q.end+more-q.done, q.Depth))
		return
	}
	q.end += more
}

// drive moves what a queue pair has, at most budget operations of the wire, and says how many it moved.
func (n *nic) drive(q *pair, budget int) (used int, worked bool) {
	if q.rung() {
		n.answer(q)
		worked = true
	}
	for before := q.next; q.next != q.end && used < budget; before = q.next {
		made, cut := 0, q.cut
		for q.next != q.end && made < min(batchOps, budget-used) && n.issue(q, &made) {
		}
		took := 0
		if made > 0 {
			took = n.post(q, made)
		}
		used += took
		n.complete(q)
		if q.next == before && q.cut == cut {
			break // it waits
		}
		worked = true
	}
	return used, worked
}

// issue looks at the next WQE, and makes it operation number *made of a batch, or a piece of it. It is false when the WQE has
// to wait.
func (n *nic) issue(q *pair, made *int) bool {
	f := &q.flights[q.next&q.mask]
	if q.cut == 0 {
		f.clear()
	}
	if q.broken {
		q.next, q.cut = q.next+1, 0 // complete flushes it
		return true
	}
	b := q.block(q.next)
	w, err := q.decode(&b, q.next)
	f.op = w.Op
	switch {
	case n.lost[q.Peer]:
		n.refuse(q, f, wqe.RetriesExceeded, netplugin.ErrPeerLost)
	case q.left():
		n.refuse(q, f, wqe.RetriesExceeded, errPeerEnded)
	case !q.connected:
		n.refuse(q, f, wqe.LocalOperation, errNotConnected)
	case err != nil:
		n.refuse(q, f, wqe.LocalOperation, err)
	case w.Op == wqe.OpNop:
		q.next++
	case w.Op == wqe.OpWait:
		return n.wait(q, f, &w)
	default:
		return n.transfer(q, f, &w, made)
	}
	return true
}

// block is WQE number index. The doorbell's record was loaded with acquire.
func (q *pair) block(index uint64) (b wqe.Block) {
	at := q.Send.At(int(index&q.mask) * wqe.Words)
	for i := range b {
		b[i] = gpu.Load(at.At(i), gpu.Relaxed, gpu.ScopeSys)
	}
	return b
}

// decode reads a block that has to be WQE number index.
func (q *pair) decode(b *wqe.Block, index uint64) (wqe.WQE, error) {
	w, err := b.Decode()
	if err == nil && (w.Index != uint16(index) || w.Number != q.number || !w.Signaled) {
		err = fmt.Errorf("it says that it is number %d of queue pair %d, with a CQE: %v", w.Index, w.Number, w.Signaled)
	}
	return w, err
}

var errNotConnected = errors.New("the queue pair is not connected")

// refuse ends a WQE with an error, before the wire has seen it.
func (n *nic) refuse(q *pair, f *flight, s wqe.Syndrome, err error) {
	f.syndrome, f.err, q.broken = s, err, true
	q.next, q.cut = q.next+1, 0
}

// wait issues a wait for a CQE; false while that is not there.
func (n *nic) wait(q *pair, f *flight, w *wqe.WQE) bool {
	of := n.pair(w.CQ)
	switch {
	case of == nil || of == q:
		n.refuse(q, f, wqe.LocalOperation, fmt.Errorf("wait for a CQE of queue %d, which is not there or its own", w.CQ))
	case int32(uint32(of.done-wqe.FirstIndex)-w.Until) <= 0 && !of.told:
		return false
	case of.told:
		n.refuse(q, f, wqe.LocalOperation, fmt.Errorf("wait for a CQE of queue %d, which has failed", w.CQ))
	default:
		q.next++
	}
	return true
}

// transfer makes an operation of the wire.
func (n *nic) transfer(q *pair, f *flight, w *wqe.WQE, made *int) bool {
	if w.Op == wqe.OpFetchAdd && !n.config.Powers.Ordered && q.flying > 0 {
		return false // what comes before is at its target first
	}
	bytes := uint64(w.Bytes)
	remote, err := n.remote(q.Peer, w.RemoteKey, w.Remote, bytes, w.Op == wqe.OpFetchAdd)
	if err != nil {
		n.refuse(q, f, wqe.RemoteAccess, err)
		return true
	}
	var near *own
	if w.Inline {
		binary.LittleEndian.PutUint64(f.value[:], w.Value)
	} else if near, err = n.local(w.LocalKey, w.Local, bytes); err != nil {
		n.refuse(q, f, wqe.LocalProtection, err)
		return true
	}
	op := &n.ops[*made]
	*op = netplugin.Op{Context: int32(q.number), Peer: int32(q.Peer)}
	n.marks[*made] = mark{q.next, q.cut}
	size := min(bytes-q.cut, uint64(n.config.Powers.MaxBytes))
	switch w.Op {
	case wqe.OpFetchAdd:
		op.Kind, size = netplugin.Signal, bytes
		raise(op, remote, w)
	case wqe.OpRead:
		op.Kind, op.Dst, op.DstOff = netplugin.Get, remote.wire, w.Remote+q.cut
	case wqe.OpWrite:
		op.Kind, op.Dst, op.DstOff = netplugin.Put, remote.wire, w.Remote+q.cut
	}
	if w.Inline {
		op.Data = f.value[:bytes]
	} else if op.Kind != netplugin.Signal {
		near.lend(op, w.Local+q.cut, size)
	}
	last := q.next
	if q.cut += size; q.cut == bytes {
		if w.Op == wqe.OpWrite && n.raiseBehind(q, op) {
			last++
		}
		q.next, q.cut = last+1, 0
	}
	op.Token = uint64(q.number)<<32 | last&q.mask
	*made++
	q.fly(last, 1)
	n.flying++
	return true
}

// raise makes a fetch-add an operation's signal.
func raise(op *netplugin.Op, at *region, w *wqe.WQE) {
	op.Raise, op.Strong, op.SigDst, op.SigOff, op.SigAdd = true, true, at.wire, w.Remote, w.Add
}

// raiseBehind has the last operation of a write carry the fetch-add behind it, if there is one and nothing is wrong with it: a
// wire sends one in less time than two. It is false where the fetch-add goes by itself.
func (n *nic) raiseBehind(q *pair, op *netplugin.Op) bool {
	at := q.next + 1
	if at == q.end || !n.config.Powers.Ordered {
		return false // without order the fetch-add holds up what follows until the write is there
	}
	b := q.block(at)
	if b.Op() != wqe.OpFetchAdd {
		return false
	}
	w, err := q.decode(&b, at)
	remote, err2 := n.remote(q.Peer, w.RemoteKey, w.Remote, uint64(w.Bytes), true)
	_, err3 := n.local(w.LocalKey, w.Local, uint64(w.Bytes))
	if err != nil || err2 != nil || err3 != nil {
		return false
	}
	raise(op, remote, &w)
	f := &q.flights[at&q.mask]
	f.clear()
	f.op, f.signal = wqe.OpFetchAdd, true
	return true
}

func (f *flight) clear() { f.pieces, f.signal, f.syndrome, f.err = 0, false, wqe.NoSyndrome, nil }

// post hands a batch to the wire. What the wire does not take is made again later.
func (n *nic) post(q *pair, made int) (took int) {
	took = n.config.Wire.Post(n.ops[:made])
	for i := range made {
		op := &n.ops[i]
		switch {
		case i >= took || op.State == netplugin.Done:
			n.pieceEnded(q, op.Token, nil)
		case op.State == netplugin.Failed:
			n.pieceEnded(q, op.Token, op.Err)
		}
	}
	if took < made {
		q.next, q.cut = n.marks[took].next, n.marks[took].cut
		// What was refused behind it is looked at again.
		q.broken = took > 0 && n.ops[took-1].State == netplugin.Failed
	}
	return took
}

// fly counts n operations of the wire more that are under way of WQE number index, and of the write whose signal it is.
func (q *pair) fly(index uint64, n int) {
	q.flying += n
	f := &q.flights[index&q.mask]
	if f.pieces += n; f.signal {
		q.flights[(index-1)&q.mask].pieces += n
	}
}

// pieceEnded counts an operation of the wire that has ended, or was not taken. Of a write and its signal the write has failed.
func (n *nic) pieceEnded(q *pair, token uint64, err error) {
	q.fly(token, -1)
	n.flying--
	f := &q.flights[token&q.mask]
	if f.signal {
		f = &q.flights[(token-1)&q.mask]
	}
	if err == nil || f.syndrome != wqe.NoSyndrome {
		return
	}
	f.err, f.syndrome, q.broken = err, wqe.RemoteAccess, true
	if errors.Is(err, netplugin.ErrPeerLost) {
		f.syndrome = wqe.RetriesExceeded
	}
}

// complete writes the CQEs that are due, in order.
func (n *nic) complete(q *pair) {
	for ; q.done != q.next; q.done++ {
		f := &q.flights[q.done&q.mask]
		if f.pieces > 0 {
			return
		}
		c := wqe.CQE{Is: wqe.CQEDone, Owner: uint8(q.done >> bits.TrailingZeros(uint(q.Depth)) & 1), Index: uint16(q.done), Number: q.number}
		if q.told {
			f.syndrome = wqe.Flushed // also what the wire had done already
		}
		if f.syndrome != wqe.NoSyndrome {
			c.Is, c.Op, c.Syndrome = wqe.CQEFailed, f.op, f.syndrome
		}
		var b wqe.Block
		c.Encode(&b)
		at := q.Done.At(int(q.done&q.mask) * wqe.Words)
		for i := range wqe.TailWord {
			gpu.Store(at.At(i), b[i], gpu.Relaxed, gpu.ScopeSys)
		}
		gpu.Store(at.At(wqe.TailWord), b[wqe.TailWord], gpu.Release, gpu.ScopeSys)
		if c.Is == wqe.CQEFailed {
			n.tell(q, f.syndrome, fmt.Errorf("WQE %d, operation %#x: %v: %w", q.done-wqe.FirstIndex, f.op, f.syndrome, f.err))
		}
	}
}

// tell tells once of a queue pair that has failed.
func (n *nic) tell(q *pair, s wqe.Syndrome, err error) {
	if q.told {
		return
	}
	q.told = true
	err = fmt.Errorf("softnic on rank %d: queue pair %d to rank %d: %w", n.config.Rank, q.number, q.Peer, err)
	n.config.Failed(devnic.Failure{QP: q.number, Peer: q.Peer, Syndrome: uint8(s), PeerGone: s.PeerGone(), Err: err})
}
