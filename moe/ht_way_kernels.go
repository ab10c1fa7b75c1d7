// SPDX-License-Identifier: Apache-2.0

package moe

import (
	"github.com/doorbell-net/doorbell/gin"
	"github.com/doorbell-net/doorbell/gpu"
)

// way is a channel between this rank and its peer of another node, for messages of one size. In each direction there is a
// ring at the receiver, of which the sender keeps an image to put from. Signals carry how many messages were put, and how
// many of them are done with: the sender puts no more than there is room for, and in a ring that holds all of an operation it
// never waits. The calls of a way are made by one warp of each direction, all lanes.
type way struct {
	c             gin.Context
	channel, node int32
	bytes         uint64 // of a message
}

func (a *HT) way(channel, node, bytes int32) way {
	return way{gin.Open(&a.DC, channel%a.DC.Contexts), channel, node, uint64(bytes)}
}

func (a *HT) count(w *way) *HTWay {
	return a.Ways.At(int(w.channel*a.nodes() + w.node)).Raw()
}

// ring is where message n of a channel lies in the ring, or its image, of a node.
func (a *HT) ring(base uint64, w *way, node int32, n uint64) uint64 {
	return base + uint64(w.channel*a.nodes()+node)*a.RingBytes + n%uint64(a.Ring)*w.bytes
}

// room is how many messages can be staged.
func (a *HT) room(t gpu.Thread, w *way) uint64 {
	n := uint64(0)
	if t.Lane() == 0 {
		n = uint64(a.Ring) - (a.count(w).Staged - w.c.ReadSignal(a.head(w.channel, w.node)))
	}
	return min(gpu.ShflIdx(t, n, 0), uint64(a.Ring))
}

// next is where the next message is to be written. There is room.
func (a *HT) next(w *way) gpu.Ptr[byte] {
	return a.Win.Base.Byte(a.ring(a.StageAt, w, w.node, a.count(w).Staged))
}

// staged says that it is written, and puts what has gathered when that is a chunk or the ring ends.
func (a *HT) staged(t gpu.Thread, w *way) {
	t.SyncWarp()
	n := a.count(w)
	end := n.Staged + 1
	t.SyncWarp()
	if t.Lane() == 0 {
		n.Staged = end
	}
	t.SyncWarp()
	if end-n.Put >= uint64(a.Chunk) || end%uint64(a.Ring) == 0 {
		a.put(t, w)
	}
}

// put sends what was staged, and nothing more once something has failed: its signal would speak of what is not there.
func (a *HT) put(t gpu.Thread, w *way) {
	n := a.count(w)
	from, end := n.Put, n.Staged
	if from == end || a.Faults.over(t) {
		return
	}
	peer := a.peer(w.node)
	s := w.c.Put(gin.ByWarp(t), gin.World(&a.DC), peer, a.Win, a.ring(a.RingsAt, w, a.node(), from),
		a.Win, a.ring(a.StageAt, w, w.node, from), (end-from)*w.bytes, gin.StrongAdd(a.tail(w.channel, a.node()), end-from))
	if t.Lane() == 0 {
		if s != gin.OK {
			a.fail(s, FaultSend, peer, 0, 0)
		}
		n.Put = end
	}
	a.Meter.note(t, false, uint32(end-from), w.bytes, 1)
	t.SyncWarp()
}

// awaitHead waits until so many of all messages to the peer are done with.
func (a *HT) awaitHead(t gpu.Thread, w *way, least uint64) bool {
	return a.awaitWay(t, w, a.head(w.channel, w.node), least)
}

// awaitTail waits until so many messages of the peer have come, of all.
func (a *HT) awaitTail(t gpu.Thread, w *way, least uint64) bool {
	return a.awaitWay(t, w, a.tail(w.channel, w.node), least)
}

func (a *HT) awaitWay(t gpu.Thread, w *way, id int32, least uint64) bool {
	peer, since := a.peer(w.node), a.Meter.clock(t)
	s := w.c.WaitSignal(gin.ByWarp(t), id, least, 64, gin.FromTeam(gin.World(&a.DC)))
	a.Meter.waited(t, peer, since)
	if s != gin.OK && t.Lane() == 0 {
		a.fail(s, FaultWait, peer, 0, 0)
	}
	return s == gin.OK
}

// What the second warp of a channel does.
const (
	passesOn  = iota // what comes from other nodes, to this one's ranks
	givesBack        // what this node made of that
)

// serve does it for all other nodes, as far as each lets it, until none is left. It waits for no one node: when none lets it go on
// it looks at one of them for a moment, and then at all again. False: it failed.
func (a *HT) serve(t gpu.Thread, channel int32, what int) bool {
	bytes, waited := a.Msg, uint64(0)
	if what == givesBack {
		bytes = a.Answer
	}
	for {
		behind, moved := int32(-1), false
		for i := int32(1); i < a.nodes(); i++ {
			w := a.way(channel, (a.node()+i)%a.nodes(), bytes)
			left := a.count(&w).Left
			if left == 0 {
				continue
			}
			n, good := uint64(0), true
			if what == givesBack {
				n = a.answerSome(t, &w, left)
			} else {
				n, good = a.passCome(t, &w, left)
			}
			if !good {
				return false
			}
			if n < left {
				behind = w.node
			}
			moved = moved || n > 0
		}
		if behind < 0 {
			return true
		}
		if moved {
			waited = 0
			continue
		}
		w := a.way(channel, behind, bytes)
		var id int32
		var least uint64
		if n := a.count(&w); what == givesBack { // the other count is the other warp's
			id, least = a.head(channel, behind), n.Staged+1-uint64(a.Ring)
		} else {
			id, least = a.tail(channel, behind), n.Taken+1
		}
		if !a.glance(t, &w, id, least, &waited) {
			return false
		}
	}
}

// look is how long a warp that serves several nodes looks at one of them before it looks at all again, ns.
const look = 50_000

// glance is awaitWay for a moment. waited grows by it; when it has come to the deadline the wait has failed.
func (a *HT) glance(t gpu.Thread, w *way, id int32, least uint64, waited *uint64) bool {
	c := gin.Open(&a.DC, w.channel%a.DC.Contexts)
	c.SetTimeout(look)
	peer, since := a.peer(w.node), a.Meter.clock(t)
	s := c.WaitSignal(gin.ByWarp(t), id, least, 64, gin.FromTeam(gin.World(&a.DC)))
	a.Meter.waited(t, peer, since)
	*waited += look
	if s == gin.OK || s == gin.Timeout && *waited < a.DC.Timeout && !a.Faults.over(t) {
		return true
	}
	if t.Lane() == 0 {
		a.fail(s, FaultWait, peer, 0, 0)
	}
	return false
}

// come is how many messages of the peer can be taken.
func (a *HT) come(t gpu.Thread, w *way) uint64 {
	n := uint64(0)
	if t.Lane() == 0 {
		n = w.c.ReadSignal(a.tail(w.channel, w.node)) - a.count(w).Taken
	}
	n = gpu.ShflIdx(t, n, 0)
	t.SyncWarp()
	return n
}

// message is the first of them.
func (a *HT) message(w *way) gpu.Ptr[byte] {
	return a.Win.Base.Byte(a.ring(a.RingsAt, w, w.node, a.count(w).Taken))
}

// taken says that it is done with. The peer is told of several at once.
func (a *HT) taken(t gpu.Thread, w *way) {
	t.SyncWarp()
	n := a.count(w)
	end := n.Taken + 1
	t.SyncWarp()
	if t.Lane() == 0 {
		n.Taken = end
	}
	t.SyncWarp()
	if end-n.Freed >= uint64(a.Chunk) {
		a.free(t, w)
	}
}

// free tells the peer of all that is done with.
func (a *HT) free(t gpu.Thread, w *way) {
	n := a.count(w)
	more, end := n.Taken-n.Freed, n.Taken
	if more == 0 {
		return
	}
	peer := a.peer(w.node)
	s := w.c.Signal(gin.ByWarp(t), gin.World(&a.DC), peer, gin.WeakAdd(a.head(w.channel, a.node()), more))
	if t.Lane() == 0 {
		if s != gin.OK {
			a.fail(s, FaultSend, peer, 0, 0)
		}
		n.Freed = end
	}
	a.Meter.note(t, false, 0, 0, 1)
	t.SyncWarp()
}

// drain puts what is left and waits until the peer is done with all: its ring is free for messages of another size.
func (a *HT) drain(t gpu.Thread, channel, bytes int32) {
	for i := int32(1); i < a.nodes(); i++ {
		w := a.way(channel, (a.node()+i)%a.nodes(), bytes)
		a.put(t, &w)
	}
	for i := int32(1); i < a.nodes(); i++ {
		w := a.way(channel, (a.node()+i)%a.nodes(), bytes)
		if !a.awaitHead(t, &w, a.count(&w).Put) {
			return
		}
	}
}

// expect notes how many messages of this operation there are between a node and this rank.
func (a *HT) expect(t gpu.Thread, w *way, n int32) {
	if t.Lane() == 0 {
		a.count(w).Left = uint64(n)
	}
	t.SyncWarp()
}

// oneLess notes that one of them is done.
func (a *HT) oneLess(t gpu.Thread, w *way) (left uint64) {
	left = a.count(w).Left - 1
	t.SyncWarp()
	if t.Lane() == 0 {
		a.count(w).Left = left
	}
	t.SyncWarp()
	return left
}
