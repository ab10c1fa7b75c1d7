// SPDX-License-Identifier: Apache-2.0

package fault

import (
	"fmt"
	"slices"

	"github.com/doorbell-net/doorbell/netplugin"
)

const (
	maxHeld = 128 // operations that have not gone to the network
	maxPoll = 16  // completions taken from the network at once
)

// endpoint takes operations, keeps them, and hands them to the network when its faults let it: all are Posted, and end in
// Poll. It keeps every rule of package netplugin.
type endpoint struct {
	netplugin.Endpoint
	rank    int
	ordered bool // of one (context, peer) an operation goes when those before it have gone
	moved   bool // the last Poll handed something on
	closed  bool
	step    uint64 // calls of Post and Poll

	items []item  // by the token that the network gets
	spare []int32 // of items
	held  []int32 // items that have not gone whole, as they were posted
	lanes map[laneKey]*lane
	lost  map[int32]error // peers
	got   [maxPoll]netplugin.Completion
	piece [1]netplugin.Op // for the network's Post
	late  []lateEnd
	done  []netplugin.Completion
	sizes map[netplugin.Region]uint64
	left  []netplugin.Region // forgotten, and still meant by operations that are held

	again   again
	reorder reorder
	delay   delay
	split   split
	stall   stall
	cut     cut
	kill    kill
}

type laneKey struct{ context, peer int32 }

// lane is what operations are ordered in.
type lane struct {
	posted  int    // operations
	dead    error  // one of them failed: no later one takes effect
	deadAt  int    // its number
	blocked uint64 // pass in which none of it goes any more
}

// fail notes the failure of operation number at.
func (l *lane) fail(at int, err error) {
	if l.dead == nil || at < l.deadAt {
		l.dead, l.deadAt = err, at
	}
}

// item is an operation that was taken.
type item struct {
	op     netplugin.Op
	lane   *lane
	at     int    // number in its lane
	due    uint64 // step from which on it may go
	off    int    // times that it was put off
	sent   int    // bytes that have gone
	pieces int    // that have not gone
	flying int    // that the network has not ended
	err    error  // of the first piece that failed
}

// lateEnd is a completion that is not told yet.
type lateEnd struct {
	c   netplugin.Completion
	due uint64
}

// newEndpoint is e with the faults of a plan; base is the network's own endpoint, and powers are those of the network.
func newEndpoint(e, base netplugin.Endpoint, p plan, c netplugin.Config, powers netplugin.Powers) (*endpoint, error) {
	u := &endpoint{
		Endpoint: e, rank: c.Rank, ordered: powers.Ordered && !p.unordered,
		lanes: map[laneKey]*lane{}, lost: map[int32]error{}, sizes: map[netplugin.Region]uint64{},
		again: again{p.chance(agains, c.Rank)}, reorder: reorder{p.chance(reorders, c.Rank)}, delay: delay{p.chance(delays, c.Rank)},
		split: split{chance: p.chance(splits, c.Rank), behind: !powers.Ordered},
		stall: stall{p.chance(stalls, c.Rank), map[int32]uint64{}},
		cut:   newCut(p.chance(cuts, c.Rank), base), kill: newKill(p, c.Rank),
	}
	return u, duplicate(p.chance(duplicates, c.Rank), base)
}

func (e *endpoint) Import(peer int, k netplugin.Key) (netplugin.Region, error) {
	r, err := e.Endpoint.Import(peer, k)
	if err == nil {
		e.sizes[r] = uint64(k.Size)
	}
	return r, err
}

// Forget waits for operations that mean the region and have not gone: its number must not be given to another one.
func (e *endpoint) Forget(r netplugin.Region) {
	if slices.Contains(e.left, r) {
		return
	}
	_, known := e.sizes[r] // none is meant by many
	delete(e.sizes, r)
	if known && e.meant(r) {
		e.left = append(e.left, r)
		return
	}
	e.Endpoint.Forget(r)
}

// meant says whether an operation that is held means the region.
func (e *endpoint) meant(r netplugin.Region) bool {
	return slices.ContainsFunc(e.held, func(i int32) bool { return e.items[i].op.Dst == r || e.items[i].op.SigDst == r })
}

// Post takes operations, and sends on what may go.
func (e *endpoint) Post(ops []netplugin.Op) int {
	if e.closed {
		return 0
	}
	n := e.again.takes(min(len(ops), maxHeld-len(e.held)))
	for i := range ops[:n] {
		op := &ops[i]
		if e.forgotten(op) {
			op.State = netplugin.Failed
			op.Err = fmt.Errorf("fault on rank %d: a region of rank %d was forgotten: %w", e.rank, op.Peer, netplugin.ErrBounds)
			n = i + 1
			break
		}
		e.take(op)
	}
	e.pump()
	return n
}

// forgotten says that an operation means a region that is none any more, though its number is still kept.
func (e *endpoint) forgotten(op *netplugin.Op) bool {
	return slices.Contains(e.left, op.Dst) || op.Raise && slices.Contains(e.left, op.SigDst)
}

// former is the error of an operation behind one that failed.
func former(op *netplugin.Op, cause error) error {
	return fmt.Errorf("a former operation of context %d to rank %d failed: %w", op.Context, op.Peer, cause)
}

func (e *endpoint) take(op *netplugin.Op) {
	op.State = netplugin.Posted
	key := laneKey{op.Context, op.Peer}
	l := e.lanes[key]
	if l == nil {
		l = &lane{}
		e.lanes[key] = l
	}
	l.posted++
	i := int32(len(e.items))
	if n := len(e.spare); n > 0 {
		i, e.spare = e.spare[n-1], e.spare[:n-1]
	} else {
		e.items = append(e.items, item{})
	}
	e.items[i] = item{op: *op, lane: l, at: l.posted, due: e.step + e.delay.time(), pieces: e.split.pieces(op, e.whole(op))}
	e.held = append(e.held, i)
	e.stall.look(e.step, op.Peer)
	if int(op.Peer) != e.rank {
		e.cut.look(e.step, op.Peer)
	}
	if err := e.kill.look(op.Peer); err != nil {
		e.lost[op.Peer] = err
	}
}

// whole says whether the network will not refuse an operation for what can be seen here: else a piece of it might be
// written, and the rest refused.
func (e *endpoint) whole(op *netplugin.Op) bool {
	return netplugin.InBounds(op.DstOff, uint64(op.Len()), e.sizes[op.Dst]) &&
		(!op.Raise || op.SigOff&7 == 0 && netplugin.InBounds(op.SigOff, 8, e.sizes[op.SigDst]))
}

// lose ends what has not gone to a peer, and what is posted to it from now on.
func (e *endpoint) lose(peer int, err error) {
	e.lost[int32(peer)] = err
	e.pump()
}

// pump sends on what may go, in the order in which it was posted.
func (e *endpoint) pump() (some bool) {
	e.step++
	e.held = slices.DeleteFunc(e.held, func(i int32) bool {
		gone := e.send(i)
		some = some || gone
		return gone
	})
	e.left = slices.DeleteFunc(e.left, func(r netplugin.Region) bool {
		if e.meant(r) {
			return false
		}
		e.Endpoint.Forget(r)
		return true
	})
	return some
}

// send hands an item's pieces to the network, as far as they may go. It is true when the item is held no more.
func (e *endpoint) send(i int32) bool {
	it := &e.items[i]
	if err := e.lost[it.op.Peer]; err != nil {
		return e.fail(i, err)
	}
	if it.lane.dead != nil && it.at >= it.lane.deadAt {
		return e.fail(i, former(&it.op, it.lane.dead))
	}
	if e.ordered && it.lane.blocked == e.step {
		return false
	}
	if !e.may(it) {
		it.lane.blocked = e.step
		return false
	}
	for it.pieces > 0 {
		if e.split.waits(it) {
			it.lane.blocked = e.step
			return false
		}
		piece := &e.piece[0]
		*piece = e.split.next(it)
		piece.Token = uint64(i)
		if e.Endpoint.Post(e.piece[:]) == 0 {
			it.lane.blocked = e.step
			return false
		}
		if piece.State == netplugin.Failed {
			return e.fail(i, piece.Err)
		}
		it.sent += piece.Len()
		it.pieces--
		if piece.State == netplugin.Posted {
			it.flying++
		}
	}
	e.ended(i)
	return true
}

// may asks the faults whether an item may go now.
func (e *endpoint) may(it *item) bool {
	return it.due <= e.step && e.stall.open(e.step, it.op.Peer) && e.cut.open(e.step, it.op.Peer) && !e.reorder.putsOff(it)
}

// fail ends an item that goes no further.
func (e *endpoint) fail(i int32, err error) bool {
	it := &e.items[i]
	it.pieces = 0
	if it.err == nil {
		it.err = err
	}
	it.lane.fail(it.at, err)
	e.ended(i)
	return true
}

// ended reports an item of which nothing is on its way any more.
func (e *endpoint) ended(i int32) {
	it := &e.items[i]
	if it.pieces > 0 || it.flying > 0 {
		return
	}
	due := max(e.step+e.delay.time(), e.cut.until[it.op.Peer])
	e.late = append(e.late, lateEnd{netplugin.Completion{Token: it.op.Token, Err: it.err}, due})
	it.lane, it.op.Data = nil, nil
	e.spare = append(e.spare, i)
}

// Poll drives the network and what is held, and reports what ended and is not to be late any more.
func (e *endpoint) Poll(done []netplugin.Completion) int {
	if e.closed {
		return 0
	}
	e.moved = e.pump()
	for _, c := range e.got[:e.Endpoint.Poll(e.got[:])] {
		i := int32(c.Token)
		it := &e.items[i]
		it.flying--
		switch {
		case c.Err == nil:
			e.ended(i)
		case it.pieces == 0:
			e.fail(i, c.Err)
		default: // it is held: its lane is dead, and so it ends with the next pass
			it.err = c.Err
			it.lane.fail(it.at, c.Err)
		}
	}
	e.late = slices.DeleteFunc(e.late, func(l lateEnd) bool {
		if l.due > e.step {
			return false
		}
		e.done = append(e.done, l.c)
		return true
	})
	n := copy(done, e.done)
	e.done = e.done[:copy(e.done, e.done[n:])]
	return n
}

// Close drops what has not gone.
func (e *endpoint) Close() error {
	e.closed = true
	return e.Endpoint.Close()
}
