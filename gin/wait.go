// SPDX-License-Identifier: Apache-2.0

package gin

import (
	"github.com/doorbell-net/doorbell/gpu"
	"github.com/doorbell-net/doorbell/internal/abi"
)

// noteAfter is when a wait leaves word of itself for the host to log, ns.
const noteAfter = 10e9

// waiter is the state of one wait.
type waiter struct {
	start  uint64
	polls  uint32
	round  int32
	far    bool // it looks at memory of the host
	noted  bool
	waited uint64     // ns, at the last pause
	note   abi.Record // what it waits for
}

// step is called after each look that found nothing. OK: look again.
func (c *Context) step(t gpu.Thread, w *waiter, src Source) Status {
	w.polls++
	if w.polls&(c.dc.Looks-1) != 0 {
		if w.polls == 1 && begin(t) {
			w.polls-- // there may be more to move
		}
		w.rest(t)
		return OK
	}
	return c.pause(t, w, src)
}

// rest is between two looks. Where threads of many of a GPU's multiprocessors look at memory of the host all the time, the copies and
// stores that they wait for take a hundred times as long (DESIGN.md, "Progress"). So a far wait looks the less often the longer it lasts.
func (w *waiter) rest(t gpu.Thread) {
	if w.far && w.round > 0 && gpu.WarpSize > 1 {
		t.Idle(w.round, w.waited)
	} else {
		t.Relax(w.round)
	}
}

// begin is called when the first look of a wait found nothing. On the software device the waiting thread may have to
// move the data itself, and what it waits for may be the answer to what it has just posted.
func begin(t gpu.Thread) (moved bool) { return gpu.WarpSize == 1 && t.Idle(0, 0) }

// pause is called every DevComm.Looks looks: it looks for reasons to end the wait, and gives way. OK: look again.
func (c *Context) pause(t gpu.Thread, w *waiter, src Source) Status {
	c.pushAll(t)
	now := t.Clock()
	if w.start == 0 {
		w.start = now
	}
	waited := now - w.start
	w.waited = waited
	if s := c.trouble(src, &w.note); s != OK {
		w.note.Since = waited
		leave(gpu.PtrTo(&c.dc.Control.Raw().Cause), gpu.PtrTo(&c.dc.Notes.Raw().Cause), &w.note, s)
		return s
	}
	s := OK
	if waited >= c.timeout {
		s = Timeout
	}
	// Who sets a shorter deadline than the communicator's looks in on something, and is not waiting in vain.
	if (waited >= noteAfter || s != OK && c.timeout >= c.dc.Timeout) && !w.noted {
		w.noted = true
		w.note.Since = waited
		leave(gpu.PtrTo(&c.dc.Control.Raw().Waiter), gpu.PtrTo(&c.dc.Notes.Raw().Waiter), &w.note, s)
	}
	if s != OK {
		return s
	}
	if t.Idle(w.round, waited) {
		w.polls-- // after one more look, come here again: there may be more to move
	} else {
		w.round++
	}
	return OK
}

// trouble is the reason why a wait for src cannot end well, if there is one; it names the rank in note.
func (c *Context) trouble(src Source, note *abi.Record) Status {
	if e := gpu.Load(gpu.PtrTo(&c.dc.Control.Raw().Ended), gpu.Relaxed, gpu.ScopeSys); e != 0 {
		return Status(e)
	}
	for p := src.from; p < src.to; p++ {
		world := src.team.WorldRank(c.dc, p)
		if world < 0 || world >= c.dc.Ranks {
			continue
		}
		lost := gpu.Load(c.dc.Lost.At(int(world)), gpu.Relaxed, gpu.ScopeSys)
		if lost == abi.RankOut && src.to-src.from > 1 {
			continue // the others go on without it
		}
		if lost != 0 {
			note.Peer = world
			return PeerLost
		}
		if i, _, ok := c.queue(src.team, p); ok {
			if s := gpu.Load(c.dc.Status.At(int(i)), gpu.Relaxed, gpu.ScopeSys); s != 0 {
				note.Peer = world
				return Status(s)
			}
		}
	}
	return OK
}

// leave fills a record for the host if no other thread has claimed it. The claim is a word of the device's memory: the
// record may be in the host's, where no atomic of a GPU belongs.
func leave(claim gpu.Ptr[uint32], r gpu.Ptr[abi.Record], note *abi.Record, s Status) {
	if !gpu.AtomicCAS(claim, 0, 1, gpu.Relaxed, gpu.ScopeGPU) {
		return
	}
	p := r.Raw()
	p.Status, p.Op, p.Peer, p.ID, p.Ctx, p.Window, p.Syndrome = uint32(s), note.Op, note.Peer, note.ID, note.Ctx, note.Window, note.Syndrome
	p.Offset, p.Wanted, p.Seen, p.Since = note.Offset, note.Wanted, note.Seen, note.Since
	gpu.Store(gpu.PtrTo(&p.State), 2, gpu.Release, gpu.ScopeSys)
}

// sourcePeer is the rank of the world that src names, -1 for several or none.
func (c *Context) sourcePeer(src Source) int32 {
	if src.to-src.from != 1 {
		return -1
	}
	return src.team.WorldRank(c.dc, src.from)
}

// rollingLE says a <= b for values that wrap at 2^bits: (b-a) mod 2^bits < 2^(bits-1).
func rollingLE(a, b uint64, bits int32) bool {
	mask := ^uint64(0) >> uint(64-bits)
	return (b-a)&mask <= mask>>1
}
