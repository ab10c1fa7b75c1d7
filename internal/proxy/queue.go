// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"github.com/doorbell-net/doorbell/gpu"
	"github.com/doorbell-net/doorbell/internal/abi"
)

// FirstTicket is where the tickets of a queue of that depth start: two laps below the wrap, so that each run crosses
// it. It starts an even lap, for which zeroed slots read as empty.
func FirstTicket(depth uint64) uint64 { return -(2 * depth) }

// queue is the consumer's side of one queue. All of it belongs to the holder of its owner's lock.
type queue struct {
	dc   *DevComm
	ctx  int32
	peer int32 // rank of the world
	at   int   // its number in the communicator

	slots gpu.Ptr[uint64]
	cells gpu.Ptr[uint64]
	hint  gpu.Ptr[uint32]
	index *abi.Index
	mask  uint64
	shift uint64

	head      uint64        // next ticket to take
	completed uint64        // contiguous prefix whose sources may be reused
	ended     []uint64      // bit per ticket from completed on: ended, though an earlier one has not
	flying    int           // operations posted and not ended
	cut       uint64        // bytes of the operation at head that are posted already
	cutEntry  int32         // its place in the table, while cut > 0
	cutDesc   abi.Desc      // and its descriptor
	dead      bool          // failed or lost: nothing more is taken
	prod      *abi.Producer // not to be followed if dc.Blind
	status    abi.Status    // the first that stuck
	seen      uint64        // head when it was looked at for a dead producer
	stuck     uint64        // for how long, ns, a ticket has been out whose descriptor is not there
}

func newQueue(dc *DevComm, at int, ctx, peer int32) *queue {
	q := dc.ABI.Queue(at)
	depth := q.Mask + 1
	first := FirstTicket(depth)
	return &queue{
		dc: dc, ctx: ctx, peer: peer, at: at,
		slots: q.Slots, cells: q.Cells, hint: q.Hint, index: q.Index.Raw(), prod: q.Prod.Raw(), mask: q.Mask, shift: q.Shift,
		head: first, completed: first, ended: make([]uint64, span/64), cutEntry: none,
	}
}

// announced says that a producer gave a hint of a ticket at or after head.
func (q *queue) announced() bool {
	return int32(gpu.Load(q.hint, gpu.Relaxed, gpu.ScopeSys)-uint32(q.head)) > 0
}

func (q *queue) phase(ticket uint64) uint64 { return ((ticket>>q.shift)&1 ^ 1) << 63 }

// ready says whether the slot of the ticket has its first word. It is what a sweep looks at.
func (q *queue) ready() bool {
	p := q.slots.At(int(q.head&q.mask) * abi.DescWords)
	return (gpu.Load(p, gpu.Acquire, gpu.ScopeSys)^q.phase(q.head))&abi.PhaseBit == 0
}

// read copies the descriptor of a ticket; ok is false while a word of it is not there.
func (q *queue) read(ticket uint64, w *[abi.DescWords]uint64) (ok bool) {
	p := q.slots.At(int(ticket&q.mask) * abi.DescWords)
	phase := q.phase(ticket)
	// One after another and no loop: it is a tenth of a small put's way.
	w[0] = gpu.Load(p, gpu.Acquire, gpu.ScopeSys)
	if (w[0]^phase)&abi.PhaseBit != 0 {
		return false
	}
	w[1] = gpu.Load(p.At(1), gpu.Acquire, gpu.ScopeSys)
	w[2] = gpu.Load(p.At(2), gpu.Acquire, gpu.ScopeSys)
	w[3] = gpu.Load(p.At(3), gpu.Acquire, gpu.ScopeSys)
	w[4] = gpu.Load(p.At(4), gpu.Acquire, gpu.ScopeSys)
	w[5] = gpu.Load(p.At(5), gpu.Acquire, gpu.ScopeSys)
	w[6] = gpu.Load(p.At(6), gpu.Acquire, gpu.ScopeSys)
	w[7] = gpu.Load(p.At(7), gpu.Acquire, gpu.ScopeSys)
	if phase != 0 {
		return (w[1]&w[2]&w[3]&w[4]&w[5]&w[6]&w[7])&abi.PhaseBit != 0
	}
	return (w[1]|w[2]|w[3]|w[4]|w[5]|w[6]|w[7])&abi.PhaseBit == 0
}

// readCell unpacks a cell's payload into dst; ok is false while a word of it is not there.
func (q *queue) readCell(ticket uint64, dst []byte) (ok bool) {
	p := q.cells.At(int(ticket&q.mask) * abi.CellWords)
	phase := q.phase(ticket)
	for i := 0; len(dst) > 0; i++ {
		w := gpu.Load(p.At(i), gpu.Acquire, gpu.ScopeSys)
		if (w^phase)&abi.PhaseBit != 0 {
			return false
		}
		n := min(len(dst), abi.CellWordPayload)
		for j := range n {
			dst[j] = byte(w >> (8 * j))
		}
		dst = dst[n:]
	}
	return true
}

// took publishes that slots and cells below head are free.
func (q *queue) took() {
	q.mirror()
	gpu.Store(gpu.PtrTo(&q.index.Consumed), q.head, gpu.Release, gpu.ScopeSys)
}

// mirror notes head where takeMany compares it with the hint.
func (q *queue) mirror() {
	shift := 32 * (q.at & 1)
	w := &q.dc.heads[q.at/2]
	*w = *w&^(0xffffffff<<shift) | uint64(uint32(q.head))<<shift
}

// span is how far head may be ahead of completed: a slot is free long before its operation has ended, so the queue's
// depth does not bound it.
const span = 4096

// room is how many more operations may be taken before an earlier one has to end.
func (q *queue) room() int { return span - int(q.head-q.completed) }

// end notes that the operation of a ticket is locally complete, and publishes the contiguous prefix.
func (q *queue) end(ticket uint64) {
	if ticket != q.completed {
		s := ticket % span
		q.ended[s/64] |= 1 << (s % 64)
		return
	}
	q.completed++
	for q.completed != q.head {
		s := q.completed % span
		if q.ended[s/64]&(1<<(s%64)) == 0 {
			break
		}
		q.ended[s/64] &^= 1 << (s % 64)
		q.completed++
	}
	gpu.Store(gpu.PtrTo(&q.index.Completed), q.completed, gpu.Release, gpu.ScopeSys)
}

// drop ends the use of a queue; what is on its way ends by itself.
func (q *queue) drop(t *table) {
	q.dead = true
	if q.cutEntry == none {
		return
	}
	e := &t.e[q.cutEntry]
	if e.pieces--; e.pieces == 0 {
		e.q = nil
		t.give(q.cutEntry)
	}
	q.cut, q.cutEntry = 0, none
}

// none is no entry of the table.
const none = int32(-1)

// entry is an operation on its way.
type entry struct {
	q       *queue
	ticket  uint64
	counter int32    // counter to raise, or none
	pieces  int32    // posted and not ended, and one while more may follow
	desc    abi.Desc // of one that did not end in Post, for the message if it fails
	buf     [abi.CellPayload]byte
}

// table holds the operations on their way. It is bounded: when it is full nothing more is taken from the queues,
// which is the back-pressure.
type table struct {
	e    []entry
	free []int32
}

func newTable(n int) table {
	t := table{e: make([]entry, n), free: make([]int32, n)}
	for i := range t.free {
		t.free[i] = int32(n - 1 - i)
	}
	return t
}

func (t *table) take() int32 {
	n := len(t.free)
	if n == 0 {
		return none
	}
	i := t.free[n-1]
	t.free = t.free[:n-1]
	return i
}

func (t *table) give(i int32) { t.free = append(t.free, i) }
