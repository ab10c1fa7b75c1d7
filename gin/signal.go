// SPDX-License-Identifier: Apache-2.0

package gin

import (
	"github.com/doorbell-net/doorbell/gpu"
	"github.com/doorbell-net/doorbell/internal/abi"
)

// ReadSignal is the value of this rank's signal id in this context: what was added since its last reset. Payload that
// the signal covers is visible. An id that is not there reads 0.
func (c *Context) ReadSignal(id int32) uint64 {
	if c.id < 0 || id < 0 || id >= c.dc.Signals {
		return 0
	}
	return c.read(c.word(id))
}

// ReadLSASignal is what LSA peers have ever added to this rank's signal id in this context, by LSASignal; resets do not touch it.
// Payload that it covers is visible. Its word lies near, where one that the network adds to may be across PCIe: who knows that only
// LSA peers raise a signal looks for it faster so. An id that is not there reads 0.
func (c *Context) ReadLSASignal(id int32) uint64 {
	if c.id < 0 || id < 0 || id >= c.dc.Signals {
		return 0
	}
	return gpu.Load(c.dc.LSA.At(c.word(id)), gpu.Acquire, gpu.ScopeSys)
}

// WaitLSASignal is WaitSignal of what ReadLSASignal reads.
func (c *Context) WaitLSASignal(co Coop, id int32, least uint64, bits int32, src Source) Status {
	s := OK
	if co.begin() {
		if c.id < 0 || id < 0 || id >= c.dc.Signals || bits < 1 || bits > 64 {
			s = Invalid
		} else {
			s = c.waitNear(co.t, id, least, bits, src)
		}
	}
	return co.end(s)
}

func (c *Context) waitNear(t gpu.Thread, id int32, least uint64, bits int32, src Source) Status {
	w := waiter{note: abi.Record{Op: abi.OpWaitSignal, Peer: c.sourcePeer(src), ID: uint32(id), Ctx: uint32(c.id), Wanted: least}}
	at, s := c.dc.LSA.At(c.word(id)), OK
	for {
		seen := gpu.Load(at, gpu.Acquire, gpu.ScopeSys)
		if rollingLE(least, seen, bits) {
			return OK
		}
		if s != OK {
			return s
		}
		w.note.Seen = seen
		s = c.step(t, &w, src)
	}
}

// read is signal number i of all contexts': what the network added, plus what LSA peers added, less what reset
// remembered.
func (c *Context) read(i int) uint64 {
	return gpu.Load(c.dc.Net.At(i), gpu.Acquire, gpu.ScopeSys) +
		gpu.Load(c.dc.LSA.At(i), gpu.Acquire, gpu.ScopeSys) -
		c.dc.SigOffset.At(i).Load()
}

// WaitSignal waits until signal id is at least least. Compares are rolling: a <= b when (b-a) mod 2^bits is less than
// 2^(bits-1); bits is 1 to 64. The payload that the signal covers is visible to all threads that take part.
func (c *Context) WaitSignal(co Coop, id int32, least uint64, bits int32, src Source) Status {
	if c.id < 0 || id < 0 || id >= c.dc.Signals || bits < 1 || bits > 64 {
		return Invalid
	}
	s := OK
	// A warp's lanes look as one, since it takes a GPU 0.2 us to let one of them go another way and tell the others.
	if first := co.begin(); first || co.kind == coopWarp {
		s = c.waitWord(co.t, c.word(id), abi.OpWaitSignal, uint32(id), least, bits, src)
	}
	if co.kind == coopWarp {
		return co.agree(s)
	}
	return co.end(s)
}

func (c *Context) waitWord(t gpu.Thread, i int, op, id uint32, least uint64, bits int32, src Source) Status {
	if gpu.WarpSize > 1 {
		return c.waitFar(t, i, op, id, least, bits, src)
	}
	net, lsa, off := c.dc.Net.At(i), c.dc.LSA.At(i), c.dc.SigOffset.At(i).Load()
	seen := gpu.Load(net, gpu.Acquire, gpu.ScopeSys) + gpu.Load(lsa, gpu.Acquire, gpu.ScopeSys) - off
	if rollingLE(least, seen, bits) {
		return OK
	}
	// The first looks need none of what a longer wait keeps.
	for n, moved := uint32(0), begin(t); n < c.dc.Looks; n++ {
		seen = gpu.Load(net, gpu.Acquire, gpu.ScopeSys) + gpu.Load(lsa, gpu.Acquire, gpu.ScopeSys) - off
		if rollingLE(least, seen, bits) {
			return OK
		}
		if moved {
			moved = begin(t) // there may be more to move
		} else {
			t.Relax(0)
		}
	}
	return c.waitLonger(t, i, op, id, least, off, bits, src)
}

// waitFar is waitWord where the NET word is across PCIe, at 1 us a look, and the LSA word near, at a sixth of it: the one
// that grew for the last wait is looked at more often.
func (c *Context) waitFar(t gpu.Thread, i int, op, id uint32, least uint64, bits int32, src Source) Status {
	net, lsa := c.dc.Net.At(i), c.dc.LSA.At(i)
	off := early(c.dc.SigOffset.At(i)) // what the last reset remembered
	if c.last == 2*int32(i)+1 && bits == 64 {
		near := gpu.Load(lsa, gpu.Acquire, gpu.ScopeSys) // on its way with off, for which a loop's first look would wait
		// A value of before is never too high: words only grow. Of fewer bits it may be, since it may be half a turn behind.
		for range nearLooks {
			if rollingLE(least, c.far+near-off, bits) {
				c.nearWas = near
				return OK
			}
			near = gpu.Load(lsa, gpu.Acquire, gpu.ScopeSys)
		}
	} else if c.last>>1 != int32(i) {
		c.nearWas = gpu.Load(lsa, gpu.Acquire, gpu.ScopeSys)
	}
	want := least + off
	for n := uint32(0); n < c.dc.Looks; n++ {
		// The near one first, and ordered only if it counts: so that both are on their way at once.
		near := gpu.Load(lsa, gpu.Relaxed, gpu.ScopeSys)
		c.far, c.last = gpu.Load(net, gpu.Acquire, gpu.ScopeSys), 2*int32(i)
		if !rollingLE(want, c.far+near, bits) {
			continue
		}
		if near != c.nearWas {
			c.nearWas, c.last = gpu.Load(lsa, gpu.Acquire, gpu.ScopeSys), 2*int32(i)+1
		}
		return OK
	}
	return c.waitLonger(t, i, op, id, least, off, bits, src)
}

// nearLooks is how often the LSA word is looked at before the NET word is, when the last signal came by the former: 10 us.
const nearLooks = 64

func (c *Context) waitLonger(t gpu.Thread, i int, op, id uint32, least, off uint64, bits int32, src Source) Status {
	w := waiter{far: true, note: abi.Record{Op: op, Peer: c.sourcePeer(src), ID: id, Ctx: uint32(c.id), Wanted: least}}
	return c.waitPair(t, c.dc.Net.At(i), c.dc.LSA.At(i), off, &w, bits, src)
}

// waitPair waits until the NET and the LSA word less off are at least what w.note wants.
func (c *Context) waitPair(t gpu.Thread, net, lsa gpu.Ptr[uint64], off uint64, w *waiter, bits int32, src Source) Status {
	least := w.note.Wanted
	s := c.pause(t, w, src)
	before := gpu.Load(lsa, gpu.Acquire, gpu.ScopeSys)
	for {
		near := gpu.Load(lsa, gpu.Acquire, gpu.ScopeSys)
		seen := gpu.Load(net, gpu.Acquire, gpu.ScopeSys) + near - off
		if rollingLE(least, seen, bits) {
			if c.last &^= 1; near != before {
				c.last |= 1
			}
			return OK
		}
		if s != OK {
			return s // after one more look: it may have come before its sender was lost
		}
		w.note.Seen = seen
		if w.polls++; w.polls&(c.dc.Looks-1) != 0 {
			w.rest(t)
		} else {
			s = c.pause(t, w, src)
		}
	}
}

// ResetSignal makes signal id 0 from here on, and its shadow. Arrivals may race; it is called while no thread of this
// rank waits for that signal or reads it: a read beside it may be below 0.
func (c *Context) ResetSignal(co Coop, id int32) Status {
	s := OK
	if co.begin() {
		if c.id < 0 || id < 0 || id >= c.dc.Signals {
			s = Invalid
		} else {
			i := c.word(id)
			off := c.dc.SigOffset.At(i)
			off.Store(c.read(i) + off.Load())
			c.dc.Shadow.At(i).Store(0)
		}
	}
	return co.end(s)
}

// ReadCounter is the value of this rank's counter id in this context. An id that is not there reads 0.
func (c *Context) ReadCounter(id int32) uint64 {
	if c.id < 0 || id < 0 || id >= c.dc.Counters {
		return 0
	}
	i := int(c.id)*int(c.dc.Counters) + int(id)
	return gpu.Load(c.dc.Counter.At(i), gpu.Acquire, gpu.ScopeSys) - c.dc.CounterOffset.At(i).Load()
}

// WaitCounter waits until counter id is at least least (rolling, as WaitSignal). src names the peers that the counted
// puts went to.
func (c *Context) WaitCounter(co Coop, id int32, least uint64, bits int32, src Source) Status {
	s := OK
	if co.begin() {
		if c.id < 0 || id < 0 || id >= c.dc.Counters || bits < 1 || bits > 64 {
			s = Invalid
		} else {
			s = c.waitCounter(co.t, id, least, bits, src)
		}
	}
	return co.end(s)
}

func (c *Context) waitCounter(t gpu.Thread, id int32, least uint64, bits int32, src Source) Status {
	w := waiter{far: true, note: abi.Record{Op: abi.OpWaitCounter, Peer: c.sourcePeer(src), ID: uint32(id), Ctx: uint32(c.id), Wanted: least}}
	s := OK
	for {
		seen := c.ReadCounter(id)
		if rollingLE(least, seen, bits) {
			return OK
		}
		if s != OK {
			return s
		}
		w.note.Seen = seen
		s = c.step(t, &w, src)
	}
}

// ResetCounter makes counter id 0 from here on. It is called while no thread of this rank waits for it.
func (c *Context) ResetCounter(co Coop, id int32) Status {
	s := OK
	if co.begin() {
		if c.id < 0 || id < 0 || id >= c.dc.Counters {
			s = Invalid
		} else {
			off := c.dc.CounterOffset.At(int(c.id)*int(c.dc.Counters) + int(id))
			off.Store(c.ReadCounter(id) + off.Load())
		}
	}
	return co.end(s)
}
