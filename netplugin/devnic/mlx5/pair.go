// SPDX-License-Identifier: Apache-2.0

package mlx5

import (
	"errors"
	"fmt"
	"math/bits"
	"math/rand/v2"
	"slices"

	"github.com/doorbell-net/doorbell/gpu"
	"github.com/doorbell-net/doorbell/netplugin"
	"github.com/doorbell-net/doorbell/netplugin/devnic"
	"github.com/doorbell-net/doorbell/netplugin/devnic/wqe"
)

const (
	lineSize = 64
	// Where records stand in their line: the queue pair's two words, of which the second is the send queue's, and the
	// completion queue's, which nobody writes.
	sendRecord = 4
	cqRecordAt = 8
	// maxLogRespond is what the fields for reads under way have room for.
	maxLogRespond = 7
	pollPairs     = 64 // looked at in a Poll
)

// pair is a queue pair and its completion queue.
type pair struct {
	devnic.QPConfig
	number uint32
	psn    uint32
	object handle
	mask   uint16
	lost   bool // its peer is
	told   bool // of its failure
	ends   undo
}

// Create makes a queue pair that may be connected.
func (n *nic) Create(c devnic.QPConfig) (devnic.QP, error) {
	line := c.Record.Addr() - sendRecord
	var err error
	switch most := n.caps.maxDepth(); {
	case c.Peer < 0 || c.Peer >= n.config.Ranks:
		err = fmt.Errorf("0 to %d is accepted", n.config.Ranks-1)
	case c.Depth < 2 || c.Depth > most || c.Depth&(c.Depth-1) != 0:
		err = fmt.Errorf("depth %d; a power of two from 2 to %d is accepted", c.Depth, most)
	case c.Send.IsNil() || c.Done.IsNil() || c.Record.IsNil() || (c.Send.Addr()|c.Done.Addr()|line)%lineSize != 0:
		err = fmt.Errorf("queues at %#x and %#x, record at %#x; multiples of %d are accepted, of the record's %d more", c.Send.Addr(), c.Done.Addr(), c.Record.Addr(), lineSize, sendRecord)
	}
	var qp devnic.QP
	if err == nil {
		qp, err = n.build(c)
	}
	if err != nil {
		return devnic.QP{}, fmt.Errorf("mlx5 on rank %d: queue pair to rank %d: %w", n.config.Rank, c.Peer, err)
	}
	return qp, nil
}

func (n *nic) build(c devnic.QPConfig) (_ devnic.QP, err error) {
	q := &pair{QPConfig: c, psn: rand.Uint32() >> 8, mask: uint16(c.Depth - 1)}
	defer func() {
		if err != nil {
			err = errors.Join(err, q.ends.run())
		}
	}()
	logSize := uint8(bits.TrailingZeros(uint(c.Depth)))
	send, err := n.place(gpu.Cast[byte](c.Send), c.Depth*wqe.Bytes, c.Far, &q.ends)
	if err != nil {
		return devnic.QP{}, fmt.Errorf("send queue: %w", err)
	}
	done, err := n.place(gpu.Cast[byte](c.Done), c.Depth*wqe.Bytes, false, &q.ends)
	if err != nil {
		return devnic.QP{}, fmt.Errorf("completion queue: %w", err)
	}
	record, err := n.place(gpu.Cast[byte](c.Record.At(-sendRecord/4)), lineSize, false, &q.ends)
	if err != nil {
		return devnic.QP{}, fmt.Errorf("doorbell record: %w", err)
	}
	cqRecord := record
	cqRecord.offset += cqRecordAt
	_, cq, err := n.make(createCQ(cqSpec{logSize: logSize, ring: done, record: cqRecord, uar: n.uar, eq: n.eqn}), &q.ends)
	if err != nil {
		return devnic.QP{}, err
	}
	q.object, q.number, err = n.make(createQP(qpSpec{
		logSize: logSize, ring: send, record: record, uar: n.uar, pd: n.pdn, cq: cq, waits: c.Peer == n.config.Rank, realTime: n.caps.realTime,
	}), &q.ends)
	if err == nil {
		err = n.change(q.object, toInit(q.number, n.port))
	}
	if err != nil {
		return devnic.QP{}, err
	}
	n.pairs[q.number] = q
	n.order = append(n.order, q)
	return devnic.QP{Number: q.number, CQ: cq, Bell: n.bell, Address: n.addressOf(q).encode()}, nil
}

// place registers memory for a queue, until u ends; far is the device's. Its pages are registered whole, and as small ones, within
// which any line is a place.
func (n *nic) place(at gpu.Ptr[byte], bytes int, far bool, u *undo) (place, error) {
	const inPage = pageBytes - 1
	off := at.Addr() & inPage
	all := (int(off) + bytes + inPage) &^ inPage
	var p place
	reg := func(addr uintptr, fd int) error {
		umem, id, err := n.regUmem(n.context, addr&^inPage, all, fd)
		if err == nil {
			u.add(func() error { return n.deregUmem(umem) })
			p = place{id, off}
		}
		return err
	}
	var err error
	if far {
		err = n.far(at, bytes, reg)
	} else {
		err = reg(uintptr(at.Addr()), noBuffer)
	}
	return p, err
}

func (n *nic) addressOf(q *pair) address {
	return address{
		rank: uint32(n.config.Rank), number: q.number, psn: q.psn, lid: n.facts.lid, gid: n.gid.gid, mtu: n.facts.mtu,
		logRespond: min(n.caps.logRespond, maxLogRespond), ethernet: n.facts.ethernet,
	}
}

// Connect joins a queue pair to the peer's.
func (n *nic) Connect(number uint32, to []byte) error {
	q := n.pairs[number]
	if q == nil {
		return fmt.Errorf("mlx5 on rank %d: connect queue pair %d: it is not there", n.config.Rank, number)
	}
	a, err := decodeAddress(to)
	if err == nil && int(a.rank) != q.Peer {
		err = fmt.Errorf("it is of rank %d", a.rank)
	}
	if err == nil {
		err = n.connect(q, a)
	}
	if err != nil {
		return fmt.Errorf("mlx5 on rank %d: connect queue pair %d to rank %d: %w", n.config.Rank, number, q.Peer, err)
	}
	return nil
}

func (n *nic) connect(q *pair, to address) error {
	c := connection{
		remote: to.number, logMsgMax: n.caps.logMsg, sendPSN: q.psn, receivePSN: to.psn,
		logInitiate: min(n.caps.logInitiate, to.logRespond), logRespond: min(n.caps.logRespond, maxLogRespond),
	}
	if err := n.route(n.pd, q.number, to, uint8(n.config.TrafficClass), &c); err != nil {
		return err
	}
	if err := n.change(q.object, toReceive(q.number, c)); err != nil {
		return err
	}
	return n.change(q.object, toSend(q.number, c))
}

// Idle says whether the last WQE that a doorbell told of has its CQE: they come in order.
func (n *nic) Idle(number uint32) bool {
	q := n.pairs[number]
	if q == nil {
		return true
	}
	rung, tail := q.last()
	if tail.Is() == wqe.CQEInvalid {
		return rung == 0 // none was rung for: the first index's low bits are 0
	}
	return tail.Ahead(uint64(rung)-1) == 0
}

// last is up to which WQE, its low bits, a doorbell told of, and the CQE in the last one's place.
func (q *pair) last() (rung uint16, tail wqe.Tail) {
	rung = wqe.Recorded(gpu.Load(q.Record, gpu.Acquire, gpu.ScopeSys))
	return rung, q.tail(rung - 1)
}

func (q *pair) tail(index uint16) wqe.Tail {
	return wqe.Tail(gpu.Load(q.cqe(index).At(wqe.TailWord), gpu.Acquire, gpu.ScopeSys))
}

func (q *pair) cqe(index uint16) gpu.Ptr[uint64] { return q.Done.At(int(index&q.mask) * wqe.Words) }

// Destroy ends a queue pair.
func (n *nic) Destroy(number uint32) {
	q := n.pairs[number]
	if q == nil {
		return
	}
	delete(n.pairs, number)
	n.order = slices.DeleteFunc(n.order, func(p *pair) bool { return p == q })
	n.note(q.ends.run())
}

// Lose has the NIC end what is on its way to a peer.
func (n *nic) Lose(peer int) {
	for _, q := range n.order {
		if q.Peer == peer && !q.lost {
			q.lost = true
			n.note(n.change(q.object, toError(q.number)))
		}
	}
}

// Quiet says that nothing wakes Poll: it looks for failures, which kernels see by themselves.
func (n *nic) Quiet() bool { return true }

// Poll tells of queue pairs that failed. It looks at a few of them each time.
func (n *nic) Poll() (worked bool) {
	for range min(pollPairs, len(n.order)) {
		n.next = (n.next + 1) % len(n.order)
		if q := n.order[n.next]; !q.told && n.failed(q) {
			q.told, worked = true, true
		}
	}
	return worked
}

// failed tells of a queue pair whose last CQE says that it ended with an error. The first one that does has the reason; those
// behind it were flushed.
func (n *nic) failed(q *pair) bool {
	rung, tail := q.last()
	if tail.Is() != wqe.CQEFailed {
		return false
	}
	at := rung - 1
	for range q.mask {
		if q.tail(at-1).Is() != wqe.CQEFailed {
			break
		}
		at--
	}
	var b wqe.Block
	for i := range b {
		b[i] = gpu.Load(q.cqe(at).At(i), gpu.Relaxed, gpu.ScopeSys)
	}
	c := b.DecodeCQE()
	f := devnic.Failure{QP: q.number, Peer: q.Peer, Syndrome: uint8(c.Syndrome), PeerGone: q.lost || c.Syndrome.PeerGone()}
	f.Err = fmt.Errorf("WQE %d, operation %#x: %v (syndrome %#x, vendor %#x)", c.Index, c.Op, c.Syndrome, uint8(c.Syndrome), c.Vendor)
	if f.PeerGone {
		f.Err = fmt.Errorf("%w: %w", netplugin.ErrPeerLost, f.Err)
	}
	n.config.Failed(f)
	return true
}
