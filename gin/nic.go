// SPDX-License-Identifier: Apache-2.0

package gin

import (
	"math/bits"

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
// messages goes as several, the action with the last; when it times out in between, some of its bytes were put.
func (c *Context) postWQEs(t gpu.Thread, i, world int32, d *abi.Desc, act *Action, dst, src gpu.Ptr[abi.WindowInfo], l *look) Status {
	if l.stuck|l.ended != 0 {
		return l.why()
	}
	k := keys{}
	if !dst.IsNil() {
		k.far = abi.KeyOf(dst, c.dc.Ranks, world).Load()
	}
	if !src.IsNil() {
		k.near = abi.KeyOf(src, c.dc.Ranks, c.dc.Rank).Load()
	}
	rest, whole := d.Size, *act
	for {
		// One place for all pieces: what is posted is compiled once.
		d.Size = min(rest, uint64(c.dc.MaxMessage))
		piece := Action{flags: abi.FlagAggregate}
		if rest -= d.Size; rest == 0 {
			piece = whole
		}
		if s := c.postMessage(t, i, world, d, &piece, k, l); s != OK || rest == 0 {
			return s
		}
		d.DstOff, d.Src = d.DstOff+d.Size, d.Src+d.Size
		whole.skip = false // the room that the caller knows of was for one message
		*l = c.look(i)
	}
}

// keys are those of an operation's windows, at the peer's end and at this one.
type keys struct{ far, near uint32 }

// postMessage posts what one message of the NIC carries, and its action.
func (c *Context) postMessage(t gpu.Thread, i, world int32, d *abi.Desc, act *Action, k keys, l *look) Status {
	raises := act.flags&(abi.FlagSignalInc|abi.FlagSignalAdd) != 0
	n := uint64(1)
	if raises && d.Size > 0 {
		n = 2
	}
	counts, second := act.counter > 0, uint64(0)
	if counts {
		// Before the other: what is posted to peers waits for no companion, so a companion's room comes for sure.
		var s Status
		if second, s = c.reserveCount(t, i, world, d); s != OK {
			return s
		}
	}
	prod, ticket, s := c.dc.Prod.At(int(i)), uint64(0), OK
	if act.skip {
		ticket = c.reserveBlindly(prod, l, n)
		c.grant(prod, ticket+n)
	} else {
		ticket, s = c.reserve(t, i, world, d, prod, n, l)
	}
	qp := c.dc.QPs.At(int(i)).Load()
	if counts {
		c.count(i, second, act, ticket, qp.CQ, s == OK)
	}
	if s != OK {
		return s
	}
	var b wqe.Block
	bytes := uint32(d.Size)
	switch {
	case d.Size == 0 && raises:
		c.raise(&b, ticket, qp.Number, world, act)
	case d.Size == 0:
		b.Nop(ticket, qp.Number)
	case d.Op == abi.OpPutValue:
		b.WriteValue(ticket, qp.Number, d.DstOff, k.far, d.Src, bytes)
	case d.Op == abi.OpGet:
		b.Read(ticket, qp.Number, d.DstOff, k.far, d.Src, k.near, bytes)
	default:
		b.Write(ticket, qp.Number, d.DstOff, k.far, d.Src, k.near, bytes)
	}
	c.write(i, ticket, &b)
	if n == 2 {
		c.raise(&b, ticket+1, qp.Number, world, act)
		c.write(i, ticket+1, &b)
	}
	if act.flags&abi.FlagAggregate != 0 {
		c.bundled = true
		return OK
	}
	c.pushBoth(t, i, 1)
	return OK
}

// raise makes the fetch-add of a signal.
func (c *Context) raise(b *wqe.Block, ticket uint64, number uint32, world int32, act *Action) {
	at, key := act.at, uint32(0)
	if act.flags&abi.FlagAtAddress != 0 {
		key = abi.KeyOf(act.info, c.dc.Ranks, world).Load()
	} else {
		at = 8 * (uint64(c.id)*uint64(c.dc.SignalStride) + uint64(act.signal-1))
		key = c.dc.SignalKeys.At(int(world)).Load()
	}
	b.FetchAdd(ticket, number, at, key, act.value, 0, c.dc.HomeKey)
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
func (c *Context) count(i int32, at uint64, act *Action, ticket uint64, cq uint32, posted bool) {
	j := c.companion(i)
	number := c.dc.QPs.At(int(j)).Load().Number
	var first, second wqe.Block
	if posted {
		counter := uint64(c.id)*uint64(c.dc.Counters) + uint64(act.counter-1)
		first.Wait(at, number, cq, ticket)
		second.FetchAdd(at+1, number, abi.HomeCounters+8*counter, c.dc.HomeKey, 1, 0, c.dc.HomeKey)
	} else {
		first.Nop(at, number)
		second.Nop(at+1, number)
	}
	c.write(j, at, &first)
	c.write(j, at+1, &second)
}

// slot is where WQE number index of a queue stands.
func (c *Context) slot(i int32, index uint64) gpu.Ptr[uint64] {
	return c.dc.Slots.At((int(i)*int(c.dc.Mask+1) + int(index&c.dc.Mask)) * wqe.Words)
}

// write stores a WQE. Who sees its first word sees the rest, and what was written before.
func (c *Context) write(i int32, index uint64, b *wqe.Block) {
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
}

// push sees to it that the NIC is told of all WQEs of a queue that are written without a gap: it rings, or who rings just now
// does. Of threads that come meanwhile that one sees that there are some, and looks again.
func (c *Context) push(t gpu.Thread, i int32) {
	prod := c.dc.Prod.At(int(i)).Raw()
	if c.dc.Sharing == abi.ShareThread {
		c.ring(t, i, gpu.Load(gpu.PtrTo(&prod.Ticket), gpu.Relaxed, gpu.ScopeGPU))
		return
	}
	pending := gpu.PtrTo(&prod.Pending)
	if gpu.AtomicAdd(pending, 1, gpu.AcqRel, gpu.ScopeGPU) != 0 {
		return
	}
	for {
		seen := gpu.Load(pending, gpu.Acquire, gpu.ScopeGPU)
		end := gpu.Load(gpu.PtrTo(&prod.Rung), gpu.Relaxed, gpu.ScopeGPU)
		for wqe.Written(gpu.Load(c.slot(i, end), gpu.Acquire, gpu.ScopeSys), end) {
			end++
		}
		c.ring(t, i, end)
		if gpu.AtomicCAS(pending, seen, 0, gpu.AcqRel, gpu.ScopeGPU) {
			return
		}
	}
}

// ring tells the NIC of all WQEs below end. One thread at a time rings a queue's doorbell.
func (c *Context) ring(t gpu.Thread, i int32, end uint64) {
	prod := c.dc.Prod.At(int(i)).Raw()
	rung := gpu.PtrTo(&prod.Rung)
	if gpu.Load(rung, gpu.Relaxed, gpu.ScopeGPU) == end {
		return
	}
	qp := c.dc.QPs.At(int(i)).Load()
	last := gpu.Load(c.slot(i, end-1), gpu.Relaxed, gpu.ScopeSys)
	gpu.Store(qp.Record, wqe.Record(end), gpu.Release, gpu.ScopeSys)
	gpu.Store(qp.Bell, last, gpu.Release, gpu.ScopeSys)
	gpu.Store(rung, end, gpu.Relaxed, gpu.ScopeGPU)
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

// held is an action whose doorbell waits for the other lanes of a warp. See ringLanes.
func (c *Context) held(co Coop, act Action) Action {
	if co.kind == coopLanes && c.onNIC() {
		act.flags |= abi.FlagAggregate
	}
	return act
}

// ringLanes rings for all lanes of a warp that have posted to the same queue, if one of them wants it: the first lane of those.
func (c *Context) ringLanes(co Coop, team Team, peer int32, act *Action) {
	if co.kind != coopLanes || !c.onNIC() {
		return
	}
	i, _, ok := c.queue(team, peer)
	if !ok || act.flags&abi.FlagAggregate != 0 {
		i = -1
	}
	first := bits.TrailingZeros32(gpu.Match(co.t, i))
	co.t.SyncWarp() // what the others wrote is visible to it
	if ok && i >= 0 && int32(first) == co.t.Lane() {
		c.pushBoth(co.t, i, 1)
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

// cqe is where the CQE of WQE number index of a queue stands.
func (c *Context) cqe(i int32, index uint64) gpu.Ptr[uint64] {
	return c.dc.CQ.At((int(i)*int(c.dc.Mask+1) + int(index&c.dc.Mask)) * wqe.Words)
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
