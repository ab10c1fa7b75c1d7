// SPDX-License-Identifier: Apache-2.0

// Package softnic emulates a NIC that kernels drive: it reads the mlx5 WQEs that they wrote when a doorbell rings, and writes
// CQEs. It is a program and no device; what is measured over it says so.
//
// It refuses what hardware refuses, by the same syndromes: keys that are not there or were withdrawn, addresses past a region,
// WQEs that are none, a doorbell ahead of its queue. A queue pair keeps the order of a reliable connection, and after an error
// flushes the rest. Its wire is a network plugin, so it has that one's faults too. Queues and doorbells are memory of the host;
// bytes of a device's memory are the wire's to move, where that carries them.
//
// A queue pair that has ended answers no more, and its peer's WQEs end as those whose retries ran out, from when the peer's NIC has
// been told: by a signal of the wire.
//
// Four things differ from hardware. Each queue pair has a doorbell register of its own, since a register that is memory keeps
// the last store only. What a fetch-add returns is not carried by the wire: its sink is checked and left alone. A wait for a
// CQE of a queue pair that has failed fails too. And a write takes the fetch-add behind it along, in one operation of the wire: where
// that is refused, the write has failed, and the fetch-add is flushed.
package softnic

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/doorbell-net/doorbell/gpu"
	"github.com/doorbell-net/doorbell/netplugin"
	"github.com/doorbell-net/doorbell/netplugin/devnic"
	"github.com/doorbell-net/doorbell/netplugin/devnic/wqe"
)

func init() { devnic.Register(Provider{}) }

// Provider makes emulated NICs.
type Provider struct{}

// Name is "softnic".
func (Provider) Name() string { return "softnic" }

// MaxDepth is the deepest queue pair: the index of a WQE has 16 bits, and half of them tell late from early.
const MaxDepth = 1 << 15

// Bounds of a Poll.
const (
	pollOps  = 64
	batchOps = 32
	bellsIn  = 64 // doorbell registers in a page, a line each
	lineSize = 64
)

// The number of a queue pair is its place, from 1, and how often that was taken before: whoever still names one that was
// destroyed finds nothing.
const (
	placeBits = 16
	maxPairs  = 1<<placeBits - 1
	useMask   = 1<<8 - 1
)

// Open makes a rank's NIC over the wire.
func (Provider) Open(c devnic.Config) (devnic.NIC, error) {
	switch {
	case c.Ranks < 1 || c.Rank < 0 || c.Rank >= c.Ranks:
		return nil, fmt.Errorf("open softnic: rank %d of %d ranks; 0 to ranks-1 is accepted", c.Rank, c.Ranks)
	case c.Wire == nil || c.Pinned == nil || c.Failed == nil:
		return nil, fmt.Errorf("open softnic on rank %d: wire, memory and whom to tell of failures must be given", c.Rank)
	case !c.Powers.Ordered && !c.Powers.RemoteCompletion:
		return nil, fmt.Errorf("open softnic on rank %d: its wire keeps no order and does not tell what is complete; either is accepted", c.Rank)
	case c.Powers.MaxBytes < 8:
		return nil, fmt.Errorf("open softnic on rank %d: its wire moves at most %d bytes at once, 8 or more are accepted", c.Rank, c.Powers.MaxBytes)
	}
	conn, _ := c.Wire.(netplugin.Connector)
	return &nic{config: c, conn: conn, lost: make([]bool, c.Ranks), own: map[uint32]*own{}, regions: []*region{nil}}, nil
}

// nic is one rank's NIC. All of it belongs to whoever calls its methods, one at a time.
type nic struct {
	config devnic.Config
	conn   netplugin.Connector // the wire, nil if it needs none
	lost   []bool              // by rank

	own     map[uint32]*own // by the number in its export
	nextOwn uint32
	regions []*region // by key, nil once forgotten; 0 is none's

	qps    []*pair // by place-1; nil once destroyed
	free   []int   // places of those
	uses   []uint32
	cursor int // whose turn it is
	flying int // operations of the wire under way

	farewells []farewell
	bids      uint32 // of them that went ever
	bidding   int    // and are under way

	pages []page
	ops   [batchOps]netplugin.Op
	marks [batchOps]mark
	ended [pollOps]netplugin.Completion
}

// page is doorbell registers.
type page struct {
	mem  gpu.Ptr[byte]
	free func() error
}

// Facts are those of the format.
func (n *nic) Facts() devnic.Facts {
	return devnic.Facts{Emulated: true, MaxMessage: wqe.MaxMessage, MaxDepth: MaxDepth}
}

// Create makes a queue pair.
func (n *nic) Create(c devnic.QPConfig) (devnic.QP, error) {
	refuse := func(format string, args ...any) (devnic.QP, error) {
		return devnic.QP{}, fmt.Errorf("softnic on rank %d: queue pair to rank %d: %s", n.config.Rank, c.Peer, fmt.Sprintf(format, args...))
	}
	switch {
	case c.Peer < 0 || c.Peer >= n.config.Ranks:
		return refuse("0 to %d is accepted", n.config.Ranks-1)
	case c.Depth < 2 || c.Depth > MaxDepth || c.Depth&(c.Depth-1) != 0:
		return refuse("depth %d; a power of two from 2 to %d is accepted", c.Depth, MaxDepth)
	case c.Send.IsNil() || c.Done.IsNil() || c.Record.IsNil() || (c.Send.Addr()|c.Done.Addr())%lineSize != 0 || c.Record.Addr()%4 != 0:
		return refuse("queues at %#x and %#x, record at %#x; multiples of %d and 4 are accepted", c.Send.Addr(), c.Done.Addr(), c.Record.Addr(), lineSize)
	case c.Far:
		return refuse("a send queue in memory of the device: one that the host sees is accepted")
	}
	number, off, err := n.nameWord(c.Ended)
	if err != nil {
		return refuse("%v", err)
	}
	at, err := n.place()
	if err != nil {
		return refuse("%v", err)
	}
	q := &pair{
		QPConfig: c, number: uint32(at+1) | n.uses[at]&useMask<<placeBits, mask: uint64(c.Depth - 1),
		done: wqe.FirstIndex, next: wqe.FirstIndex, end: wqe.FirstIndex,
		bell:    gpu.Cast[uint64](n.pages[at/bellsIn].mem.Byte(uint64(at % bellsIn * lineSize))),
		flights: make([]flight, c.Depth),
	}
	gpu.Store(q.bell, 0, gpu.Relaxed, gpu.ScopeSys)
	n.qps[at] = q
	n.uses[at]++
	return devnic.QP{Number: q.number, CQ: q.number, Bell: q.bell, Address: address{uint32(n.config.Rank), q.number, number, off}.encode()}, nil
}

// place finds room for a queue pair, and a doorbell register.
func (n *nic) place() (int, error) {
	if last := len(n.free) - 1; last >= 0 {
		at := n.free[last]
		n.free = n.free[:last]
		return at, nil
	}
	if len(n.qps) == maxPairs {
		return 0, fmt.Errorf("%d are there, as many as are accepted", maxPairs)
	}
	if len(n.qps)%bellsIn == 0 {
		mem, free, err := n.config.Pinned(bellsIn * lineSize)
		if err != nil {
			return 0, fmt.Errorf("doorbell registers: %w", err)
		}
		n.pages = append(n.pages, page{mem, free})
	}
	n.qps, n.uses = append(n.qps, nil), append(n.uses, 0)
	return len(n.qps) - 1, nil
}

// Connect joins a queue pair to the peer's.
func (n *nic) Connect(number uint32, to []byte) error {
	q := n.pair(number)
	if q == nil {
		return fmt.Errorf("softnic on rank %d: connect queue pair %d: it is not there", n.config.Rank, number)
	}
	a, err := decodeAddress(to)
	if err == nil && (int(a.rank) != q.Peer || a.number == 0) {
		err = fmt.Errorf("it is number %d of rank %d", a.number, a.rank)
	}
	var theirs word
	if err == nil {
		theirs, err = n.wordOf(q.Peer, a.memory, a.off)
	}
	if err != nil {
		return fmt.Errorf("softnic on rank %d: connect queue pair %d to rank %d: address: %w", n.config.Rank, number, q.Peer, err)
	}
	q.connected, q.theirs = true, theirs
	return nil
}

// pair is the queue pair of a number, nil for none.
func (n *nic) pair(number uint32) *pair {
	at := int(number&maxPairs) - 1
	if at < 0 || at >= len(n.qps) || n.qps[at] == nil || n.qps[at].number != number {
		return nil
	}
	return n.qps[at]
}

// Idle says whether each WQE of a queue pair has its CQE. Once it was destroyed, whether farewells still need memory of peers that
// this process maps.
func (n *nic) Idle(number uint32) bool {
	if q := n.pair(number); q != nil {
		return q.done == q.end && !q.rung()
	}
	return !n.config.Powers.Mapped || len(n.farewells)+n.bidding == 0
}

// Destroy ends a queue pair; ends of operations that come later touch nothing of it.
func (n *nic) Destroy(number uint32) {
	if q := n.pair(number); q != nil {
		at := int(number&maxPairs) - 1
		n.flying -= q.flying
		n.qps[at] = nil
		n.free = append(n.free, at)
		n.leave(q)
	}
}

// Lose ends what goes to a peer.
func (n *nic) Lose(peer int) {
	if peer < 0 || peer >= n.config.Ranks {
		return
	}
	n.lost[peer] = true
	n.unbid(func(f farewell) bool { return f.peer == peer })
	if n.conn != nil {
		n.conn.Lose(peer)
	}
}

// Quiet says whether nothing is under way and no doorbell has rung.
func (n *nic) Quiet() bool {
	if n.config.Powers.Polled || len(n.farewells)+n.bidding > 0 {
		return false
	}
	for _, q := range n.qps {
		if q != nil && (q.done != q.end || q.rung()) {
			return false
		}
	}
	return true
}

// Close ends the NIC. Its wire is the caller's.
func (n *nic) Close() error {
	var errs []error
	for _, p := range n.pages {
		errs = append(errs, p.free())
	}
	n.qps, n.free, n.uses, n.pages, n.flying = nil, nil, nil, nil, 0
	n.regions, n.farewells, n.bidding = nil, nil, 0
	return errors.Join(errs...)
}

// Poll looks at all doorbells and moves what it finds, at most pollOps operations of the wire.
func (n *nic) Poll() (worked bool) {
	worked = n.bid()
	count, left := len(n.qps), pollOps
	for i, at := 0, n.cursor; i < count; i++ {
		if at >= count {
			at = 0
		}
		if q := n.qps[at]; q != nil {
			used, some := n.drive(q, left)
			left -= used
			worked = worked || some
		}
		at++
		if left <= 0 {
			n.cursor = at // the rest is first next time
			break
		}
	}
	if n.flying+n.bidding > 0 || n.config.Powers.Polled {
		worked = n.reap() || worked
	}
	return worked
}

// reap takes the ends of the wire's operations.
func (n *nic) reap() (some bool) {
	took := n.config.Wire.Poll(n.ended[:])
	some = took > 0 || n.conn != nil && n.conn.Moved()
	for _, c := range n.ended[:took] {
		number := uint32(c.Token >> 32)
		if number == 0 {
			n.bidding-- // however it ended
		}
		q := n.pair(number)
		if q == nil {
			continue
		}
		n.pieceEnded(q, c.Token, c.Err)
		n.complete(q)
	}
	return some
}

// address is how a queue pair names itself to its peer, and where it is to be told of the other end's end: see word.
type address struct {
	rank, number, memory uint32
	off                  uint64
}

const (
	addressVersion = 2
	addressBytes   = 21
)

func (a address) encode() []byte {
	return binary.BigEndian.AppendUint64(be32(be32(be32([]byte{addressVersion}, a.rank), a.number), a.memory), a.off)
}

func decodeAddress(b []byte) (a address, err error) {
	if len(b) != addressBytes || b[0] != addressVersion {
		return a, fmt.Errorf("%x is none of version %d", b, addressVersion)
	}
	return address{get32(b[1:]), get32(b[5:]), get32(b[9:]), binary.BigEndian.Uint64(b[13:])}, nil
}
