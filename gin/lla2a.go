// SPDX-License-Identifier: Apache-2.0

package gin

import (
	"github.com/doorbell-net/doorbell/gpu"
	"github.com/doorbell-net/doorbell/internal/abi"
)

// LLA2A is a session of the low-latency all-to-all among LSA peers: words that say by themselves that they are new, so
// that nothing has to be released or raised beside them. Each rank has slots of 8 bytes, numbered alike on all, into which
// peers send; who receives looks at its own.
//
// It goes by epochs. In each, a slot is sent to once at most, and whoever sends to a rank also receives from it: so a rank
// is one epoch ahead of another at most, and two halves by the epoch's parity are enough. (Slots, halves and epochs are
// those of NCCL's device headers.)
//
// A session value belongs to one thread of those that take part; each of them sends and receives what it wants of the
// slots, and EndEpoch gathers them. One group of threads at a time uses a block.
type LLA2A struct {
	c     *Context
	co    Coop
	block int32 // -1: refused
	epoch uint32
}

// LLA2A opens the session of a block (Needs.LLA2ABlocks), at the epoch where the one before has ended. Invalid: a block
// that is not there; each call of such a session is Invalid too.
func (c *Context) LLA2A(co Coop, block int32) (LLA2A, Status) {
	if c.id < 0 || block < 0 || block >= c.dc.LLBlocks {
		return LLA2A{c: c, co: co, block: -1}, Invalid
	}
	co.begin() // the epoch that another of these threads has stored is there
	return LLA2A{c, co, block, c.dc.LLState.At(int(block)).Load().Epoch}, OK
}

// LLSlots is how many slots an element of so many bytes takes.
func LLSlots(bytes uint64) int32 { return int32((bytes + 7) / 8) }

// has says whether n slots from slot on are there.
func (s *LLA2A) has(slot, n int32) bool {
	return s.block >= 0 && slot >= 0 && n >= 0 && n <= s.c.dc.LLSlots && slot <= s.c.dc.LLSlots-n
}

// at is where a slot of this epoch is, in words.
func (s *LLA2A) at(slot int32) int {
	half := int(s.block)*2 + int(s.epoch&1)
	return (half*int(s.c.dc.LLSlots) + int(slot)) * abi.LLSlotWords
}

// Send puts v into a slot of an LSA peer. Invalid: a peer that is not in the LSA team, a slot that is not there.
func (s *LLA2A) Send(lsaPeer, slot int32, v uint64) Status {
	if !s.has(slot, 1) || lsaPeer < 0 || lsaPeer >= s.c.dc.LSASize {
		return Invalid
	}
	s.send(lsaPeer, slot, v)
	return OK
}

func (s *LLA2A) send(lsaPeer, slot int32, v uint64) {
	p := s.c.dc.PeerLL.At(int(lsaPeer)).Load().At(s.at(slot))
	epoch := uint64(s.epoch) << 32
	gpu.Store(p, v&(1<<32-1)|epoch, gpu.Relaxed, gpu.ScopeSys)
	gpu.Store(p.At(1), v>>32|epoch, gpu.Relaxed, gpu.ScopeSys)
}

// Bcast puts v into that slot of each LSA peer, this rank among them.
func (s *LLA2A) Bcast(slot int32, v uint64) Status {
	if !s.has(slot, 1) {
		return Invalid
	}
	for p := range s.c.dc.LSASize {
		s.send(p, slot, v)
	}
	return OK
}

// SendFrom is Send for an element in memory, into LLSlots(bytes) slots from slot on.
func (s *LLA2A) SendFrom(lsaPeer, slot int32, src gpu.Ptr[byte], bytes uint64) Status {
	if !s.hasBytes(slot, bytes) || lsaPeer < 0 || lsaPeer >= s.c.dc.LSASize {
		return Invalid
	}
	for i := range LLSlots(bytes) {
		at := 8 * uint64(i)
		s.send(lsaPeer, slot+i, loadBytes(src.Byte(at), min(bytes-at, 8)))
	}
	return OK
}

// BcastFrom is Bcast for an element in memory.
func (s *LLA2A) BcastFrom(slot int32, src gpu.Ptr[byte], bytes uint64) Status {
	for p := range s.c.dc.LSASize {
		if r := s.SendFrom(p, slot, src, bytes); r != OK {
			return r
		}
	}
	return OK
}

func (s *LLA2A) hasBytes(slot int32, bytes uint64) bool {
	return s.block >= 0 && bytes <= 8*uint64(s.c.dc.LLSlots) && s.has(slot, LLSlots(bytes))
}

// Recv waits for what src sends into that slot of this rank in this epoch; src is of the LSA team. A call that timed out
// may be repeated. Invalid: a slot that is not there, or one that was sent to for a later epoch already: somebody sends to
// this rank and does not receive from it.
func (s *LLA2A) Recv(slot int32, src Source) (uint64, Status) {
	if !s.has(slot, 1) {
		return 0, Invalid
	}
	return s.recv(slot, src)
}

func (s *LLA2A) recv(slot int32, src Source) (uint64, Status) {
	p := s.c.dc.LL.At(s.at(slot))
	w := waiter{note: abi.Record{Op: abi.OpLLA2A, Peer: s.c.sourcePeer(src), ID: uint32(slot), Ctx: uint32(s.c.id), Wanted: uint64(s.epoch)}}
	r := OK
	for {
		lo, hi := gpu.Load(p, gpu.Relaxed, gpu.ScopeSys), gpu.Load(p.At(1), gpu.Relaxed, gpu.ScopeSys)
		first, second := uint32(lo>>32), uint32(hi>>32)
		if first == s.epoch && second == s.epoch {
			return lo&(1<<32-1) | hi<<32, OK
		}
		if first > s.epoch || second > s.epoch {
			return 0, Invalid
		}
		if r != OK {
			return 0, r // after one more look: it may have come before that
		}
		w.note.Seen = uint64(first)
		r = s.c.step(s.co.t, &w, src)
	}
}

// RecvInto is Recv for an element that was sent by SendFrom or BcastFrom. What it stores before it fails is not defined.
func (s *LLA2A) RecvInto(slot int32, dst gpu.Ptr[byte], bytes uint64, src Source) Status {
	if !s.hasBytes(slot, bytes) {
		return Invalid
	}
	for i := range LLSlots(bytes) {
		v, r := s.recv(slot+i, src)
		if r != OK {
			return r
		}
		at := 8 * uint64(i)
		for b := range min(bytes-at, 8) {
			dst.Byte(at + b).Store(byte(v >> (8 * b)))
		}
	}
	return OK
}

// RecvReduce receives n slots, stride apart, and makes one integer of them in the order of the slots. Invalid: slots that
// are not there, none of them, an operation that is none.
func RecvReduce[T gpu.Int](s *LLA2A, slot, stride, n int32, op Op, src Source) (T, Status) {
	if !s.hasEach(slot, stride, n) || !op.ofInts() {
		return 0, Invalid
	}
	first, r := s.recv(slot, src)
	v := T(first)
	for i := int32(1); i < n && r == OK; i++ {
		var next uint64
		next, r = s.recv(slot+i*stride, src)
		v = combineInts(op, v, T(next))
	}
	return v, r
}

// RecvReduceFloat is RecvReduce for floats, sent as their Bits. They are reduced as float32, and rounded once.
func RecvReduceFloat[T Float[T]](s *LLA2A, slot, stride, n int32, op Op, src Source) (T, Status) {
	var t T
	if !s.hasEach(slot, stride, n) || !op.ofFloats() {
		return t, Invalid
	}
	first, r := s.recv(slot, src)
	v := t.FromBits(first).Float32()
	for i := int32(1); i < n && r == OK; i++ {
		var next uint64
		next, r = s.recv(slot+i*stride, src)
		v = combineFloats(op, v, t.FromBits(next).Float32())
	}
	return t.Round(v), r
}

// hasEach says whether n slots, stride apart, are there.
func (s *LLA2A) hasEach(slot, stride, n int32) bool {
	if s.block < 0 || n < 1 || n > s.c.dc.LLSlots || stride < 0 || stride > s.c.dc.LLSlots || slot < 0 {
		return false
	}
	return int64(slot)+int64(n-1)*int64(stride) < int64(s.c.dc.LLSlots)
}

// EndEpoch ends the epoch: all threads that take part have received what they wanted of it. It waits for those threads and
// for no rank.
func (s *LLA2A) EndEpoch() Status {
	if s.block < 0 {
		return Invalid
	}
	next := s.epoch + 1
	if next < abi.LLFirstEpoch {
		next = abi.LLFirstEpoch
	}
	if s.co.begin() {
		if s.epoch >= 1<<32-2 {
			s.clear()
		}
		s.c.dc.LLState.At(int(s.block)).Store(abi.LLState{Epoch: next})
	}
	s.epoch = next
	return s.co.end(OK)
}

// clear forgets this epoch's half, when numbers begin anew after the next one: an epoch of the same number may be in a slot
// that was not sent to since. Nobody sends to this half before this rank has sent in the next epoch.
func (s *LLA2A) clear() {
	p := s.c.dc.LL.At(s.at(0))
	for i := range int(s.c.dc.LLSlots) * abi.LLSlotWords {
		gpu.Store(p.At(i), 0, gpu.Relaxed, gpu.ScopeSys)
	}
	gpu.Fence(gpu.Release, gpu.ScopeSys) // before what lets them
}
