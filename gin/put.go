// SPDX-License-Identifier: Apache-2.0

package gin

import (
	"github.com/doorbell-net/doorbell/gpu"
	"github.com/doorbell-net/doorbell/internal/abi"
)

// Put copies bytes from (src, srcOff) of this rank to (dst, dstOff) of a peer, and then does the action. 0 bytes are
// legal and still carry it.
//
// It returns when the put is queued: src must not be written until a later flush or the counter says so. It waits for
// room in the queue, until the deadline; a put that timed out left nothing behind. Invalid: an offset and size past
// the end of either window, a window that is not registered any more, an id or a peer that is not there.
func (c *Context) Put(co Coop, team Team, peer int32, dst Window, dstOff uint64, src Window, srcOff, bytes uint64, act Action) Status {
	s, mine := OK, c.takeLots(co, team, peer, true, bytes, &act)
	if co.begin() {
		s = c.put(co.t, team, peer, dst, dstOff, src, srcOff, bytes, c.held(co, act), &mine)
	}
	c.ringLanes(co, team, peer, &act, mine, s)
	return co.end(s) // all threads that take part meet at one place
}

func (c *Context) put(t gpu.Thread, team Team, peer int32, dst Window, dstOff uint64, src Window, srcOff, bytes uint64, act Action, mine *lot) Status {
	i, world, ok := c.queue(team, peer)
	if !ok || !c.valid(&act, world) || dst.Info.IsNil() || src.Info.IsNil() || !inBounds(srcOff, bytes, src.Size) {
		return Invalid
	}
	size := sizeOf(&dst, world)
	d := abi.Desc{Op: abi.OpPut, Size: bytes, DstOff: dstOff, DstWin: dst.ID, DstGen: dst.Gen, SrcWin: src.ID, Src: srcOff}
	from := src.Base.Byte(srcOff)
	small := bytes <= uint64(c.dc.CellPayload) && src.Far == 0
	if small && bytes <= 8 {
		d.Op, d.Src, d.SrcWin = abi.OpPutValue, loadBytes(from, bytes), 0
	}
	l, dstGen, srcGen := c.look(i), generation(dst), generation(src)
	if dst.Gen == 0 || src.Gen == 0 || (dstGen^dst.Gen)|(srcGen^src.Gen) != 0 || !inBounds(dstOff, bytes, size) {
		return Invalid
	}
	if small {
		// It travels with the descriptor: nobody has to read device memory for it.
		if bytes > 8 && !c.onNIC() { // a NIC's are no larger
			d.Op, d.Src, d.SrcWin = abi.OpPutCell, 0, 0
		}
	} else if c.released < gpu.ScopeSys {
		gpu.Fence(gpu.Release, gpu.ScopeSys)
	}
	if c.onNIC() {
		return c.postWQEs(t, i, world, &d, &act, dst.Info, src.Info, &l, mine)
	}
	return c.post(t, i, world, &d, &act, from, &l)
}

// PutValue stores the low bytes (1 to 8) of value at (dst, dstOff) of a peer, and then does the action. It needs no
// source: nothing is to be released or kept.
func (c *Context) PutValue(co Coop, team Team, peer int32, dst Window, dstOff uint64, value, bytes uint64, act Action) Status {
	s, mine := OK, c.takeLots(co, team, peer, true, bytes, &act)
	if co.begin() {
		s = c.putValue(co.t, team, peer, dst, dstOff, value, bytes, c.held(co, act), &mine)
	}
	c.ringLanes(co, team, peer, &act, mine, s)
	return co.end(s)
}

func (c *Context) putValue(t gpu.Thread, team Team, peer int32, dst Window, dstOff uint64, value, bytes uint64, act Action, mine *lot) Status {
	i, world, ok := c.queue(team, peer)
	if !ok || bytes < 1 || bytes > 8 || !c.valid(&act, world) || dst.Info.IsNil() {
		return Invalid
	}
	size := sizeOf(&dst, world)
	l, gen := c.look(i), generation(dst)
	if dst.Gen == 0 || gen != dst.Gen || !inBounds(dstOff, bytes, size) {
		return Invalid
	}
	d := abi.Desc{Op: abi.OpPutValue, Size: bytes, DstOff: dstOff, DstWin: dst.ID, DstGen: dst.Gen, Src: value}
	if c.onNIC() {
		return c.postWQEs(t, i, world, &d, &act, dst.Info, gpu.Ptr[abi.WindowInfo]{}, &l, mine)
	}
	return c.post(t, i, world, &d, &act, gpu.Ptr[byte]{}, &l)
}

// Signal does the action without a payload: a strong signal covers the earlier puts of this context to the peer.
func (c *Context) Signal(co Coop, team Team, peer int32, act Action) Status {
	s, mine := OK, c.takeLots(co, team, peer, false, 0, &act)
	if co.begin() {
		i, world, ok := c.queue(team, peer)
		if held := c.held(co, act); ok && c.valid(&act, world) {
			s = c.signal(co.t, i, world, &held, &mine)
		} else {
			s = Invalid
		}
	}
	c.ringLanes(co, team, peer, &act, mine, s)
	return co.end(s)
}

// signal posts an action that is valid.
func (c *Context) signal(t gpu.Thread, i, world int32, act *Action, mine *lot) Status {
	d := abi.Desc{Op: abi.OpSignal}
	l := c.look(i)
	if c.onNIC() {
		return c.postWQEs(t, i, world, &d, act, gpu.Ptr[abi.WindowInfo]{}, gpu.Ptr[abi.WindowInfo]{}, &l, mine)
	}
	return c.post(t, i, world, &d, act, gpu.Ptr[byte]{}, &l)
}

// post takes a ticket and writes the descriptor. The arguments are valid.
func (c *Context) post(t gpu.Thread, i, world int32, d *abi.Desc, act *Action, from gpu.Ptr[byte], l *look) Status {
	if l.stuck|l.ended != 0 { // one branch for both: each takes a GPU 10 ns of a put
		return l.why()
	}
	act.describe(d)
	q := c.dc.Queue(int(i))
	ticket := uint64(0)
	if act.skip {
		ticket = c.reserveBlindly(q.Prod, l, 1)
	} else {
		s := OK
		if ticket, s = c.reserve(t, i, world, d, q.Prod, 1, l); s != OK {
			return s
		}
	}
	slot := int(ticket & q.Mask)
	phase := ((ticket>>q.Shift)&1 ^ 1) << 63
	if d.Op == abi.OpPutCell {
		storeCell(q.Cells.At(slot*abi.CellWords), from, d.Size, phase)
	}
	var w [abi.DescWords]uint64
	d.Encode(&w, phase)
	p := q.Slots.At(slot * abi.DescWords)
	// No order among the words: each has its phase bit. What they speak of was released before (Put).
	gpu.Store(p, w[0], gpu.Phased, gpu.ScopeSys)
	gpu.Store(p.At(1), w[1], gpu.Phased, gpu.ScopeSys)
	gpu.Store(p.At(2), w[2], gpu.Phased, gpu.ScopeSys)
	gpu.Store(p.At(3), w[3], gpu.Phased, gpu.ScopeSys)
	gpu.Store(p.At(4), w[4], gpu.Phased, gpu.ScopeSys)
	gpu.Store(p.At(5), w[5], gpu.Phased, gpu.ScopeSys)
	gpu.Store(p.At(6), w[6], gpu.Phased, gpu.ScopeSys)
	gpu.Store(p.At(7), w[7], gpu.Phased, gpu.ScopeSys)
	if d.Flags&abi.FlagAggregate != 0 {
		return OK // the next one tells of it
	}
	gpu.Store(q.Hint, uint32(ticket+1), gpu.Relaxed, gpu.ScopeSys)
	if gpu.WarpSize == 1 && gpu.Load(c.dc.Asleep, gpu.Relaxed, gpu.ScopeSys) != 0 {
		t.Wake(c.dc.Asleep)
	}
	return OK
}

// reserve takes n tickets that follow each other, never before room for them is seen: a put that times out leaves no hole
// behind. at is the queue's, number i.
func (c *Context) reserve(t gpu.Thread, i, world int32, d *abi.Desc, at gpu.Ptr[abi.Producer], n uint64, l *look) (uint64, Status) {
	if ticket, ok := c.reserveNow(at, n, l); ok {
		return ticket, OK
	}
	return c.reserveSlow(t, i, world, d, at, n)
}

// reserveNow is reserve that waits for nothing: ok is false when there is no room yet.
func (c *Context) reserveNow(at gpu.Ptr[abi.Producer], n uint64, l *look) (ticket uint64, ok bool) {
	prod := at.Raw()
	next, credit := gpu.PtrTo(&prod.Ticket), gpu.PtrTo(&prod.Credit)
	ticket, limit := l.ticket, l.credit
	for int64(limit-ticket) >= int64(n) {
		if c.claim(next, ticket, n) {
			return ticket, true
		}
		limit = gpu.Load(credit, gpu.Relaxed, gpu.ScopeGPU)
		ticket = gpu.Load(next, gpu.Relaxed, gpu.ScopeGPU)
	}
	return 0, false
}

// claim takes the n tickets from the one that was seen last on, if no other thread has.
func (c *Context) claim(next gpu.Ptr[uint64], ticket, n uint64) bool {
	switch c.dc.Sharing {
	case abi.ShareThread:
		gpu.Store(next, ticket+n, gpu.Relaxed, gpu.ScopeGPU)
		return true
	case abi.ShareBlock:
		//gpuvet:ok the communicator was made for one block a context
		return gpu.AtomicCAS(next, ticket, ticket+n, gpu.Relaxed, gpu.ScopeBlock)
	}
	return gpu.AtomicCAS(next, ticket, ticket+n, gpu.Relaxed, gpu.ScopeGPU)
}

// reserveBlindly takes the next n tickets whether or not there is room: the caller says so.
func (c *Context) reserveBlindly(at gpu.Ptr[abi.Producer], l *look, n uint64) uint64 {
	next, ticket := gpu.PtrTo(&at.Raw().Ticket), l.ticket
	switch c.dc.Sharing {
	case abi.ShareThread:
		gpu.Store(next, ticket+n, gpu.Relaxed, gpu.ScopeGPU)
		return ticket
	case abi.ShareBlock:
		//gpuvet:ok the communicator was made for one block a context
		return gpu.AtomicAdd(next, n, gpu.Relaxed, gpu.ScopeBlock)
	}
	return gpu.AtomicAdd(next, n, gpu.Relaxed, gpu.ScopeGPU)
}

func (c *Context) reserveSlow(t gpu.Thread, i, world int32, d *abi.Desc, at gpu.Ptr[abi.Producer], n uint64) (uint64, Status) {
	prod := at.Raw()
	next, credit := gpu.PtrTo(&prod.Ticket), gpu.PtrTo(&prod.Credit)
	src := FromPeer(World(c.dc), world)
	w := waiter{far: true, note: abi.Record{Op: abi.OpWaitCredit, Peer: world, Ctx: uint32(c.id), Window: d.DstWin, Offset: d.DstOff}}
	for {
		ticket := gpu.Load(next, gpu.Relaxed, gpu.ScopeGPU)
		limit, s := c.free(t, i, world, ticket+n)
		if s != OK {
			return 0, s
		}
		if int64(limit-ticket) >= int64(n) {
			gpu.Store(credit, limit, gpu.Relaxed, gpu.ScopeGPU)
			if c.claim(next, ticket, n) {
				return ticket, OK
			}
			continue
		}
		w.note.Wanted, w.note.Seen = ticket, limit
		if s := c.step(t, &w, src); s != OK {
			return 0, s
		}
	}
}

// free is the ticket below which all may be taken; a NIC is asked no further than until.
func (c *Context) free(t gpu.Thread, i, world int32, until uint64) (uint64, Status) {
	depth := c.dc.Mask + 1
	if c.onNIC() {
		done, s := c.reap(t, i, world, until-depth)
		return done + depth, s
	}
	return gpu.Load(gpu.PtrTo(&c.dc.Index.At(int(i)).Raw().Consumed), gpu.Acquire, gpu.ScopeSys) + depth, OK
}

// loadBytes reads the 1 to 8 bytes at p as a number, lowest first; 0 of them are 0.
func loadBytes(p gpu.Ptr[byte], n uint64) uint64 {
	if n == 8 && p.Addr()&7 == 0 {
		return early(gpu.Cast[uint64](p))
	}
	if gpu.WarpSize > 1 {
		return loadWords(p, n)
	}
	v := uint64(0)
	for i := range n {
		v |= uint64(p.Byte(i).Load()) << (8 * i)
	}
	return v
}

// loadWords is loadBytes by the one or two aligned words that the bytes lie in, which are of the same page: less code, and
// fewer loads to wait for. What else they hold is not looked at.
func loadWords(p gpu.Ptr[byte], n uint64) uint64 {
	if n == 0 {
		return 0
	}
	off := p.Addr() & 7
	words := gpu.Cast[uint64](p.Byte(-off))
	v := early(words) >> (8 * off)
	if off+n > 8 {
		v |= early(words.At(1)) << (64 - 8*off)
	}
	return v & (^uint64(0) >> (64 - 8*n))
}

// storeCell packs a payload into the words of a cell, 7 bytes below each phase bit.
func storeCell(cell gpu.Ptr[uint64], from gpu.Ptr[byte], bytes, phase uint64) {
	words := int((bytes + abi.CellWordPayload - 1) / abi.CellWordPayload)
	for i := range words {
		at := uint64(i) * abi.CellWordPayload
		v := loadBytes(from.Byte(at), min(bytes-at, abi.CellWordPayload))
		gpu.Store(cell.At(i), v|phase, gpu.Phased, gpu.ScopeSys)
	}
}
