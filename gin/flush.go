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
	if c.complete(&r) {
		return true, OK
	}
	if gpu.WarpSize == 1 {
		t.Idle(0, 0) // it may have to move the data itself
		if c.complete(&r) {
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
	return Request{until: gpu.Load(ticket, gpu.Relaxed, gpu.ScopeGPU), queue: i, world: world, context: c.id + 1}
}

// mine says whether a request can be one of this context.
func (c *Context) mine(r *Request) bool {
	return r.context == c.id+1 && c.id >= 0 && r.queue >= c.id*c.dc.Peers && r.queue < (c.id+1)*c.dc.Peers && r.world >= 0 && r.world < c.dc.Ranks
}

func (c *Context) complete(r *Request) bool {
	completed := gpu.PtrTo(&c.dc.Index.At(int(r.queue)).Raw().Completed)
	return int64(gpu.Load(completed, gpu.Acquire, gpu.ScopeSys)-r.until) >= 0
}

func (c *Context) waitTicket(t gpu.Thread, r *Request) Status {
	completed := gpu.PtrTo(&c.dc.Index.At(int(r.queue)).Raw().Completed)
	src := FromPeer(World(c.dc), r.world)
	w := waiter{note: abi.Record{Op: abi.OpFlush, Peer: r.world, Ctx: uint32(r.context - 1), Wanted: r.until}}
	s := OK
	for {
		seen := gpu.Load(completed, gpu.Acquire, gpu.ScopeSys)
		if int64(seen-r.until) >= 0 {
			return OK
		}
		if s != OK {
			return s
		}
		w.note.Seen = seen
		s = c.step(t, &w, src)
	}
}
