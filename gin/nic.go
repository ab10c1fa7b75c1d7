// SPDX-License-Identifier: Apache-2.0

package gin

import (
	"github.com/doorbell-net/doorbell/gpu"
	"github.com/doorbell-net/doorbell/internal/abi"
	"github.com/doorbell-net/doorbell/netplugin/devnic/wqe"
)

// With GDAKI a kernel writes WQEs into the send queue of its context's queue pair to the peer, and rings its doorbell: no
// thread of the host is in between. A ticket is the number of a WQE; each gives a CQE, in order.
//
// A WQE's first word, which has its number, is stored last. So who rings sees by the queue itself how far it is written, and
// nobody waits for anybody: a thread that finds another one ringing leaves its WQEs to that one, which so rings once for many.
//
// A signal is a fetch-add behind its put in the same queue pair, whose order makes it a strong one. A counter is raised by a
// companion queue pair of this rank to itself, which waits for the CQE of the put and then adds.

// postWQEs is post for a NIC: dst and src are the windows at the peer's end and at this one. A put larger than the NIC's
// messages goes as several, the action with the last; when it times out in between, some of its bytes were put. mine is what was taken
// for a lane beforehand.
func (c *Context) postWQEs(t gpu.Thread, i, world int32, d *abi.Desc, act *Action, dst, src gpu.Ptr[abi.WindowInfo], l *look, mine *lot) Status {
	if l.stuck|l.ended != 0 {
		return l.why()
	}
	c.bundled = c.bundled || act.flags&abi.FlagAggregate != 0
	if moves := d.Op != abi.OpSignal; c.atOnce(moves, d.Size, act) {
		ticket, ok := mine.ticket, mine.n > 0
		if !ok {
			ticket, ok = c.reserveNow(c.dc.Prod.At(int(i)), act.wqes(moves), l)
		}
		if ok {
			c.send(t, i, world, d, moves, act, dst, src, ticket)
			return OK
		}
	}
	ticket, s := c.tickets(t, i, world, d, act, dst, src)
	if s == OK {
		c.send(t, i, world, d, d.Size > 0, act, dst, src, ticket)
	}
	return s
}

// atOnce says whether an operation needs nothing but room in the queue: it is one message, which no companion counts. Such a one has a
// way of its own, on which nothing changes that a compiler may work out before a loop of puts. moves: it is no signal. A put of no
// bytes goes the other way, so that what is posted here is known to have some.
func (c *Context) atOnce(moves bool, bytes uint64, act *Action) bool {
	return (!moves || bytes-1 < uint64(c.dc.MaxMessage)) && act.counter == 0 && !act.skip
}

// tickets takes those of any operation, and has the companion count it. Of one that is larger than a message it posts all but the
// last one, which d then says.
func (c *Context) tickets(t gpu.Thread, i, world int32, d *abi.Desc, act *Action, dst, src gpu.Ptr[abi.WindowInfo]) (uint64, Status) {
	most, prod := uint64(c.dc.MaxMessage), c.dc.Prod.At(int(i))
	for {
		last := d.Size <= most
		n, counts, second := uint64(1), false, uint64(0)
		if last {
			n, counts = act.wqes(d.Size > 0), act.counter > 0
		}
		if counts {
			// Before the other: what is posted to peers waits for no companion, so a companion's room comes for sure.
			var s Status
			if second, s = c.reserveCount(t, i, world, d); s != OK {
				return 0, s
			}
		}
		l, ticket, s := c.look(i), uint64(0), OK
		if act.skip {
			ticket = c.reserveBlindly(prod, &l, n)
			c.grant(prod, ticket+n)
		} else {
			ticket, s = c.reserve(t, i, world, d, prod, n, &l)
		}
		if counts {
			c.count(i, second, act, ticket, s == OK)
		}
		if s != OK || last {
			return ticket, s
		}
		rest := d.Size - most
		d.Size, c.bundled = most, true
		c.writeData(i, world, ticket, c.dc.QPs.At(int(i)).Load().Number, d, dst, src)
		d.DstOff, d.Src, d.Size = d.DstOff+most, d.Src+most, rest
		act.skip = false // the room that the caller knows of was for one message
	}
}

// wqes is how many WQEs a message and its action are; moves: the message has bytes.
func (a *Action) wqes(moves bool) uint64 {
	if a.raises() && moves {
		return 2
	}
	return 1
}

// send writes the WQEs of one message and its action from number ticket on, and has the NIC told of them unless more is to follow.
func (c *Context) send(t gpu.Thread, i, world int32, d *abi.Desc, moves bool, act *Action, dst, src gpu.Ptr[abi.WindowInfo], ticket uint64) {
	number, last := c.dc.QPs.At(int(i)).Load().Number, uint64(0)
	if moves {
		last = c.writeData(i, world, ticket, number, d, dst, src)
		ticket++
	} else if !act.raises() {
		var b wqe.Block
		b.Nop(ticket, number)
		last = c.write(i, ticket, &b)
		ticket++
	}
	if act.raises() {
		last = c.raise(i, ticket, number, world, act)
		ticket++
	}
	if act.flags&abi.FlagAggregate != 0 {
		return
	}
	if c.dc.Sharing == abi.ShareThread {
		c.ring(t, i, ticket, last)
	} else {
		c.pushShared(t, i)
	}
	if c.companions() {
		c.pushLate(t, c.companion(i))
	}
}

// writeData writes the WQE that moves the bytes, and returns its first word.
func (c *Context) writeData(i, world int32, ticket uint64, number uint32, d *abi.Desc, dst, src gpu.Ptr[abi.WindowInfo]) uint64 {
	var b wqe.Block
	far, bytes := abi.KeyOf(dst, c.dc.Ranks, world).Load(), uint32(d.Size)
	if d.Op == abi.OpPutValue {
		b.WriteValue(ticket, number, d.DstOff, far, d.Src, bytes)
		return c.write(i, ticket, &b)
	}
	near := abi.KeyOf(src, c.dc.Ranks, c.dc.Rank).Load()
	if d.Op == abi.OpGet {
		b.Read(ticket, number, d.DstOff, far, d.Src, near, bytes)
	} else {
		b.Write(ticket, number, d.DstOff, far, d.Src, near, bytes)
	}
	return c.write(i, ticket, &b)
}

// raise writes the fetch-add of a signal, and returns its first word.
func (c *Context) raise(i int32, ticket uint64, number uint32, world int32, act *Action) uint64 {
	at, key := act.at, uint32(0)
	if act.flags&abi.FlagAtAddress != 0 {
		key = abi.KeyOf(act.info, c.dc.Ranks, world).Load()
	} else {
		at = 8 * (uint64(c.id)*uint64(c.dc.SignalStride) + uint64(act.signal-1))
		key = c.dc.SignalKeys.At(int(world)).Load()
	}
	var b wqe.Block
	b.FetchAdd(ticket, number, at, key, act.value, 0, c.dc.HomeKey)
	return c.write(i, ticket, &b)
}

// onNIC says whether kernels drive a NIC here.
func (c *Context) onNIC() bool { return c.dc.NIC != 0 }

// companions says whether queue pairs have companions, and companion which a queue's is.
func (c *Context) companions() bool            { return c.onNIC() && c.dc.Counters > 0 }
func (c *Context) companion(queue int32) int32 { return queue + c.dc.Contexts*c.dc.Peers }

// reserveCount takes the two tickets of a companion's queue that raise a counter.
func (c *Context) reserveCount(t gpu.Thread, i, world int32, d *abi.Desc) (uint64, Status) {
	j := c.companion(i)
	prod := c.dc.Prod.At(int(j))
	l := look{
		ticket: gpu.Load(gpu.PtrTo(&prod.Raw().Ticket), gpu.Relaxed, gpu.ScopeGPU),
		credit: gpu.Load(gpu.PtrTo(&prod.Raw().Credit), gpu.Relaxed, gpu.ScopeGPU),
	}
	return c.reserve(t, j, world, d, prod, 2, &l)
}

// count has the companion of a queue raise a counter once WQE number ticket has its CQE. Where that was not posted its two
// WQEs do nothing: no hole is left behind.
func (c *Context) count(i int32, at uint64, act *Action, ticket uint64, posted bool) {
	j := c.companion(i)
	number := c.dc.QPs.At(int(j)).Load().Number
	var first, second wqe.Block
	if posted {
		counter := uint64(c.id)*uint64(c.dc.Counters) + uint64(act.counter-1)
		first.Wait(at, number, c.dc.QPs.At(int(i)).Load().CQ, ticket)
		second.FetchAdd(at+1, number, abi.HomeCounters+8*counter, c.dc.HomeKey, 1, 0, c.dc.HomeKey)
	} else {
		first.Nop(at, number)
		second.Nop(at+1, number)
	}
	c.write(j, at, &first)
	c.write(j, at+1, &second)
}

// slot is where WQE number index of a queue stands, and cqe where its CQE does.
func (c *Context) slot(i int32, index uint64) gpu.Ptr[uint64] { return c.block(c.dc.Slots, i, index) }
func (c *Context) cqe(i int32, index uint64) gpu.Ptr[uint64]  { return c.block(c.dc.CQ, i, index) }

func (c *Context) block(all gpu.Ptr[uint64], i int32, index uint64) gpu.Ptr[uint64] {
	queue := gpu.Cast[byte](all.At(int(i) * int(c.dc.Mask+1) * wqe.Words))
	return gpu.Cast[uint64](queue.Byte(uint64(uint32(index) & uint32(c.dc.Mask) * wqe.Bytes)))
}

// write stores a WQE, and returns its first word: who sees that sees the rest, and what was written before.
func (c *Context) write(i int32, index uint64, b *wqe.Block) uint64 {
	p := c.slot(i, index)
	gpu.Store(p.At(1), b[1], gpu.Phased, gpu.ScopeSys)
	gpu.Store(p.At(2), b[2], gpu.Phased, gpu.ScopeSys)
	gpu.Store(p.At(3), b[3], gpu.Phased, gpu.ScopeSys)
	gpu.Store(p.At(4), b[4], gpu.Phased, gpu.ScopeSys)
	gpu.Store(p.At(5), b[5], gpu.Phased, gpu.ScopeSys)
	gpu.Store(p.At(6), b[6], gpu.Phased, gpu.ScopeSys)
	gpu.Store(p.At(7), b[7], gpu.Phased, gpu.ScopeSys)
	if c.dc.Sharing != abi.ShareThread {
		gpu.Fence(gpu.Release, gpu.ScopeGPU) // else its own doorbell's release is enough
	}
	gpu.Store(p, b[0], gpu.Phased, gpu.ScopeSys)
	return b[0]
}

// push sees to it that the NIC is told of all WQEs of a queue that are written without a gap.
func (c *Context) push(t gpu.Thread, i int32) {
	if c.dc.Sharing == abi.ShareThread {
		end := gpu.Load(gpu.PtrTo(&c.dc.Prod.At(int(i)).Raw().Ticket), gpu.Relaxed, gpu.ScopeGPU)
		c.ring(t, i, end, gpu.Load(c.slot(i, end-1), gpu.Relaxed, gpu.ScopeSys))
		return
	}
	c.pushShared(t, i)
}

// pushShared is push for a queue of several threads: this one rings, or who rings just now does. Of threads that come
// meanwhile that one sees that there are some, and looks again.
func (c *Context) pushShared(t gpu.Thread, i int32) {
	prod := c.dc.Prod.At(int(i)).Raw()
	pending := gpu.PtrTo(&prod.Pending)
	if gpu.AtomicAdd(pending, 1, gpu.AcqRel, gpu.ScopeGPU) != 0 {
		return
	}
	for {
		seen := gpu.Load(pending, gpu.Acquire, gpu.ScopeGPU)
		rung := gpu.Load(gpu.PtrTo(&prod.Rung), gpu.Relaxed, gpu.ScopeGPU)
		end, last := rung, uint64(0)
		for {
			first := gpu.Load(c.slot(i, end), gpu.Acquire, gpu.ScopeSys)
			if !wqe.Written(first, end) {
				break
			}
			end, last = end+1, first
		}
		if end != rung {
			c.ring(t, i, end, last)
		}
		if gpu.AtomicCAS(pending, seen, 0, gpu.AcqRel, gpu.ScopeGPU) {
			return
		}
	}
}

// ring tells the NIC of all WQEs below end, the last of which begins with the word last. One thread at a time rings a queue's
// doorbell.
func (c *Context) ring(t gpu.Thread, i int32, end, last uint64) {
	prod, qp := c.dc.Prod.At(int(i)).Raw(), c.dc.QPs.At(int(i)).Load()
	gpu.Store(qp.Record, wqe.Record(end), gpu.Release, gpu.ScopeSys)
	gpu.Store(qp.Bell, last, gpu.Release, gpu.ScopeSys)
	gpu.Store(gpu.PtrTo(&prod.Rung), end, gpu.Relaxed, gpu.ScopeGPU)
	gpu.Store(gpu.PtrTo(&prod.Bells), gpu.Load(gpu.PtrTo(&prod.Bells), gpu.Relaxed, gpu.ScopeGPU)+1, gpu.Relaxed, gpu.ScopeGPU)
	if gpu.WarpSize == 1 && gpu.Load(c.dc.Asleep, gpu.Relaxed, gpu.ScopeSys) != 0 {
		t.Wake(c.dc.Asleep)
	}
}

// pushAll is push for the queues of a context that have WQEs which the NIC was not told of: a wait looks there, since what it
// waits for may be the answer to what was aggregated. Where one thread posts, it is this one if it has.
func (c *Context) pushAll(t gpu.Thread) {
	if !c.onNIC() || c.id < 0 || c.dc.Sharing == abi.ShareThread && !c.bundled {
		return
	}
	c.bundled = false
	c.pushBoth(t, c.id*c.dc.Peers, c.dc.Peers)
}

// pushBoth is pushLate for n queues from i on, and for their companions.
func (c *Context) pushBoth(t gpu.Thread, i, n int32) {
	kinds := int32(1)
	if c.companions() {
		kinds = 2
	}
	//gpu:unroll 1
	for j := range kinds * n { // one loop: what rings is compiled once
		q := i + j
		if j >= n {
			q = c.companion(q - n)
		}
		c.pushLate(t, q)
	}
}

// pushLate is push where there may be nothing to tell.
func (c *Context) pushLate(t gpu.Thread, i int32) {
	prod := c.dc.Prod.At(int(i)).Raw()
	if gpu.Load(gpu.PtrTo(&prod.Ticket), gpu.Relaxed, gpu.ScopeGPU) != gpu.Load(gpu.PtrTo(&prod.Rung), gpu.Relaxed, gpu.ScopeGPU) {
		c.push(t, i)
	}
}

// ended is completed for a NIC. A counter is raised when its put has ended, and who has waited for the put may look at it.
func (c *Context) ended(t gpu.Thread, r *Request) (uint64, Status) {
	done, s := c.reap(t, r.queue, r.world, r.until)
	if s == OK && reached(done, r.until) && c.companions() {
		counted, s := c.reap(t, c.companion(r.queue), r.world, r.counted)
		if !reached(counted, r.counted) {
			return r.until - 1, s
		}
	}
	return done, s
}

// reap is up to which WQE all of a queue have ended, at least until if those have. The status is why they never will.
func (c *Context) reap(t gpu.Thread, i, world int32, until uint64) (uint64, Status) {
	prod, depth := c.dc.Prod.At(int(i)), c.dc.Mask+1
	done := gpu.Load(gpu.PtrTo(&prod.Raw().Credit), gpu.Acquire, gpu.ScopeGPU) - depth
	if reached(done, until) {
		return done, OK
	}
	if !reached(gpu.Load(gpu.PtrTo(&prod.Raw().Rung), gpu.Relaxed, gpu.ScopeGPU), until) {
		c.push(t, i) // what was aggregated
	}
	tail := wqe.Tail(gpu.Load(c.cqe(i, until-1).At(wqe.TailWord), gpu.Acquire, gpu.ScopeSys))
	ahead := tail.Ahead(until - 1)
	switch {
	case tail.Is() == wqe.CQEInvalid || ahead < 0:
		return done, OK
	case tail.Is() != wqe.CQEDone:
		return done, c.failed(i, world, until-1+uint64(ahead))
	}
	done = until + uint64(ahead)
	c.grant(prod, done+depth)
	return done, OK
}

// grant notes that tickets of a queue below limit may be taken: WQEs a depth before it have ended.
func (c *Context) grant(at gpu.Ptr[abi.Producer], limit uint64) {
	credit := gpu.PtrTo(&at.Raw().Credit)
	if !reached(gpu.Load(credit, gpu.Relaxed, gpu.ScopeGPU), limit) {
		gpu.Store(credit, limit, gpu.Release, gpu.ScopeGPU) // who takes it for done sees what was got
	}
}

// failed makes the failure of a queue pair stick, of which WQE number at has a CQE that says so.
func (c *Context) failed(i, world int32, at uint64) Status {
	for range c.dc.Mask { // the first has the reason; those behind it were flushed
		tail := wqe.Tail(gpu.Load(c.cqe(i, at-1).At(wqe.TailWord), gpu.Acquire, gpu.ScopeSys))
		if tail.Is() != wqe.CQEFailed || tail.Ahead(at-1) != 0 {
			break
		}
		at--
	}
	syndrome := wqe.SyndromeOf(gpu.Load(c.cqe(i, at).At(wqe.SyndromeWord), gpu.Relaxed, gpu.ScopeSys))
	s := RemoteError
	if syndrome.PeerGone() {
		s = PeerLost
	}
	queues := c.dc.Contexts * c.dc.Peers
	if i >= queues {
		i -= queues // a companion's is its queue pair's
	}
	note := abi.Record{Op: abi.OpWQE, Peer: world, Ctx: uint32(c.id), Syndrome: uint32(syndrome)}
	leave(gpu.PtrTo(&c.dc.Control.Raw().Cause), gpu.PtrTo(&c.dc.Notes.Raw().Cause), &note, s)
	gpu.Store(c.dc.Status.At(int(i)), uint32(s), gpu.Relaxed, gpu.ScopeSys)
	return s
}
