// SPDX-License-Identifier: Apache-2.0

package gin

import (
	"github.com/doorbell-net/doorbell/gpu"
	"github.com/doorbell-net/doorbell/internal/abi"
)

// Flush waits until every earlier operation of this context is locally complete: a put's source may be reused, a get's
// bytes are there. It says nothing of the target.
func (c *Context) Flush(co Coop) Status {
	s := Invalid
	if co.begin() {
		if c.id >= 0 {
			s = OK
			for p := int32(0); p < c.dc.Peers; p++ {
				r := c.request(p)
				if e := c.waitTicket(co.t, &r); e != OK && s == OK {
					s = e // the others are still waited for
				}
			}
		}
	}
	return co.end(s)
}

// FlushPeer is Flush for the operations to one peer.
func (c *Context) FlushPeer(co Coop, team Team, peer int32) Status {
	s := Invalid
	if co.begin() {
		if i, world, ok := c.queue(team, peer); ok {
			r := c.pending(i, world)
			s = c.waitTicket(co.t, &r)
		}
	}
	return co.end(s)
}

// Request stands for the operations of a context to one peer until some moment. The zero Request stands for none. It may
// lie anywhere and be waited for by any thread, through a Context of the same number.
type Request struct {
	until   uint64
	counted uint64 // the same of the companion's queue, where there is one
	queue   int32
	world   int32
	context int32 // number + 1
	_       int32
}

// Requests is how many requests FlushAllAsync fills in.
func (c *Context) Requests() int32 { return c.dc.Peers }

// FlushAsync is FlushPeer that does not wait: Test and Wait tell of what was posted before it. All threads that take part
// get the request.
func (c *Context) FlushAsync(co Coop, team Team, peer int32) (Request, Status) {
	co.begin() // what the others posted is counted
	r, s := Request{}, Invalid
	if i, world, ok := c.queue(team, peer); ok {
		r, s = c.pending(i, world), OK
	}
	co.gathered()
	return r, s
}

// FlushAllAsync is FlushAsync for each peer: it fills in Requests() of them, for TestAll and WaitAll.
func (c *Context) FlushAllAsync(co Coop, into gpu.Ptr[Request]) Status {
	s := Invalid
	if co.begin() {
		if c.id >= 0 {
			s = OK
			for p := int32(0); p < c.dc.Peers; p++ {
				into.At(int(p)).Store(c.request(p))
			}
		}
	}
	return co.end(s)
}

// Test says whether a request's operations are locally complete. While they are not, the status is OK, or the reason why
// they never will be. It does not wait; each thread may ask for itself.
func (c *Context) Test(t gpu.Thread, r Request) (done bool, s Status) {
	if r.context == 0 {
		return true, OK
	}
	if !c.mine(&r) {
		return false, Invalid
	}
	if seen, _ := c.completed(t, &r); reached(seen, r.until) {
		return true, OK
	}
	if gpu.WarpSize == 1 {
		t.Idle(0, 0) // it may have to move the data itself
		if seen, _ := c.completed(t, &r); reached(seen, r.until) {
			return true, OK
		}
	}
	var note abi.Record
	return false, c.trouble(FromPeer(World(c.dc), r.world), &note)
}

// Wait waits until a request's operations are locally complete.
func (c *Context) Wait(co Coop, r Request) Status {
	s := OK
	if co.begin() && r.context != 0 {
		if s = Invalid; c.mine(&r) {
			s = c.waitTicket(co.t, &r)
		}
	}
	return co.end(s)
}

// TestAll is Test for what FlushAllAsync filled in.
func (c *Context) TestAll(t gpu.Thread, from gpu.Ptr[Request]) (done bool, s Status) {
	for p := int32(0); p < c.dc.Peers; p++ {
		if done, s = c.Test(t, from.At(int(p)).Load()); !done {
			return false, s
		}
	}
	return true, OK
}

// WaitAll is Wait for what FlushAllAsync filled in.
func (c *Context) WaitAll(co Coop, from gpu.Ptr[Request]) Status {
	s := OK
	if co.begin() {
		for p := int32(0); p < c.dc.Peers; p++ {
			r := from.At(int(p)).Load()
			if r.context == 0 {
				continue
			}
			e := Invalid
			if c.mine(&r) {
				e = c.waitTicket(co.t, &r)
			}
			if e != OK && s == OK {
				s = e // the others are still waited for
			}
		}
	}
	return co.end(s)
}

// FenceContexts waits until all that contexts first to first+n-1 posted to a peer before is visible there: a signal that
// is posted after it, in any context, covers that. It costs a round trip of the network for each context that has
// something on its way. Invalid also where the communicator was made without Needs.Fence.
func (c *Context) FenceContexts(co Coop, team Team, peer, first, n int32) Status {
	s := Invalid
	if co.begin() {
		if i, world, ok := c.queue(team, peer); ok && c.dc.Remote != 0 && first >= 0 && n >= 0 && first <= c.dc.Contexts-n {
			s = OK
			in := i % c.dc.Peers
			for x := first; x < first+n; x++ {
				r := c.pending(x*c.dc.Peers+in, world)
				r.context = x + 1
				if e := c.waitTicket(co.t, &r); e != OK && s == OK {
					s = e
				}
			}
		}
	}
	return co.end(s)
}

// request is pending for the peer of queue p of this context.
func (c *Context) request(p int32) Request {
	world := p
	if c.dc.Railed != 0 {
		world = p*c.dc.LSASize + c.dc.LSARank
	}
	return c.pending(c.id*c.dc.Peers+p, world)
}

// pending stands for what was posted to a queue so far.
func (c *Context) pending(i, world int32) Request {
	ticket := gpu.PtrTo(&c.dc.Prod.At(int(i)).Raw().Ticket)
	r := Request{until: gpu.Load(ticket, gpu.Relaxed, gpu.ScopeGPU), queue: i, world: world, context: c.id + 1}
	if c.companions() {
		ticket = gpu.PtrTo(&c.dc.Prod.At(int(c.companion(i))).Raw().Ticket)
		r.counted = gpu.Load(ticket, gpu.Relaxed, gpu.ScopeGPU)
	}
	return r
}

// mine says whether a request can be one of this context.
func (c *Context) mine(r *Request) bool {
	return r.context == c.id+1 && c.id >= 0 && r.queue >= c.id*c.dc.Peers && r.queue < (c.id+1)*c.dc.Peers && r.world >= 0 && r.world < c.dc.Ranks
}

// completed is up to which ticket the operations of a request's queue are locally complete; a NIC is asked no further than
// until the request's. The status is why more never will be.
func (c *Context) completed(t gpu.Thread, r *Request) (uint64, Status) {
	if c.onNIC() {
		return c.ended(t, r)
	}
	return gpu.Load(gpu.PtrTo(&c.dc.Index.At(int(r.queue)).Raw().Completed), gpu.Acquire, gpu.ScopeSys), OK
}

func reached(seen, until uint64) bool { return int64(seen-until) >= 0 }

func (c *Context) waitTicket(t gpu.Thread, r *Request) Status {
	src := FromPeer(World(c.dc), r.world)
	w := waiter{far: true, note: abi.Record{Op: abi.OpFlush, Peer: r.world, Ctx: uint32(r.context - 1), Wanted: r.until}}
	s := OK
	for {
		seen, failed := c.completed(t, r)
		if reached(seen, r.until) {
			return OK
		}
		if s != OK {
			return s
		}
		if failed != OK {
			return failed
		}
		w.note.Seen = seen
		s = c.step(t, &w, src)
	}
}
