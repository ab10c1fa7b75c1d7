// SPDX-License-Identifier: Apache-2.0

package gin

import (
	"github.com/doorbell-net/doorbell/gpu"
	"github.com/doorbell-net/doorbell/internal/abi"
)

// Context is an independent lane between this rank and each peer: a queue per peer, signals and counters of its own.
// Any thread of the device may make one of the same number; they share its queues. A Context value belongs to one
// thread.
type Context struct {
	dc       *DevComm
	id       int32 // -1: not a context of the communicator
	released gpu.Scope
	bundled  bool            // by this Context WQEs were posted that no doorbell told of
	last     int32           // twice the number of the signal that was waited for last, and 1 where a signal of an LSA peer ended that
	near     int32           // LSA peer + 1 that nearLSA is of
	nearLSA  gpu.Ptr[uint64] // its signal words: a look at the table less for who signals one peer again and again
	far      uint64          // what the NET word of that signal was when it was looked at last
	nearWas  uint64          // what the LSA word beside it was then, acquired
	timeout  uint64
	perNode  uint64 // reciprocal of the ranks in a node where only one of them has a queue, else of 1
}

// Open is context number id of the communicator. One that does not exist answers each call with Invalid.
func Open(dc *DevComm, id int32) Context {
	if dc.Version != abi.DevCommVersion || id < 0 || id >= dc.Contexts {
		id = -1
	}
	c := Context{dc: dc, id: id, timeout: dc.Timeout, perNode: 1 << 32}
	if id >= 0 && dc.Railed != 0 {
		c.perNode = reciprocal(uint32(dc.LSASize))
	}
	if c.onNIC() {
		c.released = gpu.ScopeSys // the doorbell's release covers what each WQE was written behind
	}
	return c
}

// reciprocal is ceil(2^32/n): x / n is x * reciprocal >> 32, exactly, for an x whose product with n is below 2^32.
func reciprocal(n uint32) uint64 { return uint64((1<<32-1)/n) + 1 }

// DevComm is the communicator that this is a context of.
func (c *Context) DevComm() *DevComm { return c.dc }

// SetTimeout changes the deadline of this Context's later calls, in nanoseconds from their start.
func (c *Context) SetTimeout(ns uint64) { c.timeout = ns }

// SetReleased says at which scope the caller has already released what its later puts send. With gpu.ScopeSys they
// add no fence: one release may so cover many puts.
func (c *Context) SetReleased(s gpu.Scope) { c.released = s }

// queue finds the queue to a rank of a team and that rank's number in the world; ok is false when there is none. It
// divides nothing and branches nowhere, so that a compiler does all of it before a loop of puts.
func (c *Context) queue(team Team, peer int32) (index, world int32, ok bool) {
	world = team.WorldRank(c.dc, peer)
	index = int32(uint64(uint32(world)) * c.perNode >> 32)
	onRail := c.dc.Railed == 0 || index*c.dc.LSASize+c.dc.LSARank == world // there is no queue to the others
	ok = c.id >= 0 && team.Has(peer) && uint32(world) < uint32(c.dc.Ranks) && onRail
	return c.id*c.dc.Peers + index, world, ok
}

// generation is that of the window which is registered now under w's id, and never that of no window. The tables behind it
// were written before w reached the kernel: no order is needed.
func generation(w Window) uint32 {
	return gpu.Load(gpu.PtrTo(&w.Info.Raw().Gen), gpu.Relaxed, gpu.ScopeSys)
}

// sizeOf is how many bytes of the window a rank of the world has.
func sizeOf(w *Window, world int32) uint64 { return early(gpu.PtrTo(&w.Peer(world).Raw().Size)) }

// baseOf is where in this device's memory the window of an LSA peer lies.
func baseOf(w *Window, world int32) gpu.Ptr[byte] {
	p := gpu.PtrTo(&w.Peer(world).Raw().Base)
	if gpu.WarpSize > 1 {
		return gpu.Ptr[byte]{}.Byte(early(gpu.Cast[uint64](p))) // an address is a number there
	}
	return p.Load()
}

// early is p.Load() where it stands. A GPU's compilers put off a plain load until its value is used, and what waits for
// one load then comes before the next one: two in a row took a round trip by stores 0.4 us more.
func early(p gpu.Ptr[uint64]) uint64 {
	if gpu.WarpSize > 1 {
		//gpuvet:ok a plain load by nature, of what no thread writes meanwhile: it takes part in no order
		return gpu.Load(p, gpu.Relaxed, gpu.ScopeBlock)
	}
	return p.Load()
}

// look is what a post looks at first. It is all loaded before any of it is tested: on a GPU each look takes 180 ns, and
// several at once no longer. So what is plain by nature is loaded by early.
type look struct {
	stuck, ended   uint32
	ticket, credit uint64
}

// look looks at a queue.
func (c *Context) look(queue int32) look {
	prod := c.dc.Prod.At(int(queue)).Raw()
	return look{
		stuck: gpu.Load(c.dc.Status.At(int(queue)), gpu.Relaxed, gpu.ScopeSys),
		ended: gpu.Load(gpu.PtrTo(&c.dc.Control.Raw().Ended), gpu.Relaxed, gpu.ScopeSys),
		// Credit may be old, so it is never too high: Consumed only grows.
		credit: gpu.Load(gpu.PtrTo(&prod.Credit), gpu.Relaxed, gpu.ScopeGPU),
		ticket: gpu.Load(gpu.PtrTo(&prod.Ticket), gpu.Relaxed, gpu.ScopeGPU),
	}
}

// why is the status of a queue that has ended, or whose communicator has.
func (l *look) why() Status {
	if l.stuck != 0 {
		return Status(l.stuck)
	}
	return Status(l.ended)
}

func inBounds(off, n, size uint64) bool { return n <= size && off <= size-n }
