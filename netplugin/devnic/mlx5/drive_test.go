// SPDX-License-Identifier: Apache-2.0

package mlx5

import (
	"encoding/binary"

	"github.com/doorbell-net/doorbell/gpu"
	"github.com/doorbell-net/doorbell/internal/sys/ffi"
	"github.com/doorbell-net/doorbell/netplugin/devnic/wqe"
)

// drive does what doorbells told of, by what the NIC itself knows: the commands that made queues, and registered memory.
func (f *fabric) drive() (worked bool) {
	for some := true; some; {
		some = false
		for _, d := range f.nics {
			for _, q := range d.pairs() {
				for d.one(q) {
					some, worked = true, true
				}
			}
		}
	}
	return worked
}

// at is n bytes at a place in registered memory of the host.
func (d *double) at(q *thing, umem, offset field, n int) []byte {
	_, u := d.of("umem", uint32(umem.get(q.queue)))
	off := int(offset.get(q.queue))
	if off+n > u.bytes {
		d.Fatalf("%d bytes at %d of %d are registered memory", n, off, u.bytes)
	}
	return ffi.Bytes(u.addr+uintptr(off), n)
}

// key is n bytes at an address of registered memory, nil where its key is not there or has less.
func (d *double) key(key uint32, addr uint64, n uint32) []byte {
	_, m := d.of("mr", key)
	if m == nil || addr+uint64(n) > uint64(m.bytes) {
		return nil
	}
	return ffi.Bytes(m.addr+uintptr(addr), int(n))
}

// one does the next WQE; false where there is none, or it waits.
func (d *double) one(q *thing) bool {
	record := gpu.Cast[uint32](gpu.PtrOf(d.at(q, qpRecordUmem, qpRecord, 8))).At(1)
	if q.state != "send" && q.state != "error" || wqe.Recorded(gpu.Load(record, gpu.Acquire, gpu.ScopeSys)) == uint16(q.done) {
		return false
	}
	depth := uint64(1) << qpLogSize.get(q.queue)
	ring := gpu.Cast[uint64](gpu.PtrOf(d.at(q, qpUmem, qpOffset, int(depth)*wqe.Bytes)[q.done%depth*wqe.Bytes:]))
	var b wqe.Block
	for i := range b {
		b[i] = gpu.Load(ring.At(i), gpu.Relaxed, gpu.ScopeSys)
	}
	w, err := b.Decode()
	if err != nil || w.Number != q.number || w.Index != uint16(q.done) {
		d.Fatalf("WQE %d of queue pair %d is %+v: %v", q.done, q.number, w, err)
	}
	c := wqe.CQE{Index: w.Index, Number: q.number, Op: w.Op}
	if q.state == "error" {
		c.Syndrome = wqe.Flushed
	} else if w.Op == wqe.OpWait {
		if qpWaits.get(q.queue) == 0 {
			d.Fatalf("queue pair %d may not wait", q.number)
		}
		if _, cq := d.of("cq", w.CQ); int32(uint32(cq.done)-w.Until) <= 0 {
			return false
		}
	} else if w.Op != wqe.OpNop {
		c.Syndrome = d.transfer(q, &w)
	}
	if c.Syndrome != wqe.NoSyndrome {
		c.Is, c.Vendor, q.state = wqe.CQEFailed, 0x68, "error"
	}
	q.done++
	d.complete(q, &c)
	return true
}

// transfer does what moves bytes.
func (d *double) transfer(q *thing, w *wqe.WQE) wqe.Syndrome {
	peer := d.peer(q)
	if peer == nil {
		return wqe.RetriesExceeded
	}
	far := peer.key(w.RemoteKey, w.Remote, w.Bytes)
	near := binary.LittleEndian.AppendUint64(nil, w.Value)[:min(8, w.Bytes)]
	if !w.Inline {
		near = d.key(w.LocalKey, w.Local, w.Bytes)
	}
	switch {
	case near == nil:
		return wqe.LocalProtection
	case far == nil:
		return wqe.RemoteAccess
	case w.Op == wqe.OpFetchAdd:
		old := gpu.AtomicAdd(gpu.Cast[uint64](gpu.PtrOf(far)), w.Add, gpu.AcqRel, gpu.ScopeSys)
		binary.LittleEndian.PutUint64(near, old)
	case w.Op == wqe.OpRead:
		copy(near, far)
	default:
		copy(far, near)
	}
	return wqe.NoSyndrome
}

// peer is the NIC with the queue pair that q is connected to, if that one is connected to q, expects its packets, and is where
// they go.
func (d *double) peer(q *thing) *double {
	for _, n := range d.fabric.nics {
		for _, other := range n.pairs() {
			back := other.peer
			if back == nil || other.state == "error" || other.number != uint32(qpRemote.get(q.peer)) || uint32(qpRemote.get(back)) != q.number {
				continue
			}
			if pathMAC.get(q.peer) == pathMAC.get(n.mine()) && qpMTU.get(q.peer) == qpMTU.get(back) && qpReceivePSN.get(back) == qpSendPSN.get(q.sends) {
				return n
			}
		}
	}
	return nil
}

// mine is a command with this NIC's Ethernet address.
func (d *double) mine() []byte {
	c := newCommand("", 0, modifyBytes)
	c.bytes(pathMAC, d.mac[:])
	return c.in
}

// complete writes the next CQE of a queue pair.
func (d *double) complete(q *thing, c *wqe.CQE) {
	_, cq := d.of("cq", uint32(qpSendCQ.get(q.queue)))
	depth := uint64(1) << cqLogSize.get(cq.queue)
	c.Owner = uint8(cq.done / depth & 1)
	var b wqe.Block
	c.Encode(&b)
	at := gpu.Cast[uint64](gpu.PtrOf(d.at(cq, cqUmem, cqOffset, int(depth)*wqe.Bytes)[cq.done%depth*wqe.Bytes:]))
	cq.done++
	for i := range b {
		gpu.Store(at.At(i), b[i], gpu.Release, gpu.ScopeSys)
	}
}
