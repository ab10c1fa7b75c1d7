// SPDX-License-Identifier: Apache-2.0

package doorbell_test

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/doorbell-net/doorbell"
	"github.com/doorbell-net/doorbell/gin"
	"github.com/doorbell-net/doorbell/gpu"
	"github.com/doorbell-net/doorbell/internal/abi"
)

// llShape is the slots of one epoch: a word of each rank to each, one of each to all, an element of 20 bytes of each to
// each, and a float of each to all.
type llShape struct{ words, cast, elements, floats, slots int32 }

const llBytes = 20

func newLLShape(ranks int32) (s llShape) {
	s.cast = s.words + ranks
	s.elements = s.cast + ranks
	s.floats = s.elements + ranks*gin.LLSlots(llBytes)
	s.slots = s.floats + ranks
	return s
}

// exchange is one epoch: each rank sends to all and checks what all sent to it. i names the epoch's payloads.
func (s llShape) exchange(l *gin.LLA2A, d *gin.DevComm, scratch gpu.Ptr[byte], i uint64) {
	lsa := gin.LSA(d)
	me := lsa.Rank
	element := func(from, to int32, b uint64) byte { return byte(draw(from*100+to, b, i)) }
	float := func(from int32) gin.BF16 { return gin.BF16(0).Round(float32(from+1) * float32(i%100)) }
	for p := range lsa.Ranks {
		ok(l.Send(p, s.words+me, draw(me*100+p, 0, i)), "send")
		for b := range uint64(llBytes) {
			scratch.Byte(b).Store(element(me, p, b))
		}
		ok(l.SendFrom(p, s.elements+me*gin.LLSlots(llBytes), scratch, llBytes), "send an element")
	}
	ok(l.Bcast(s.cast+me, draw(me, 1, i)), "broadcast")
	ok(l.Bcast(s.floats+me, float(me).Bits()), "broadcast a float")

	var cast []int64
	sum := float32(0)
	for k := range lsa.Ranks {
		p := (me + 1 + k) % lsa.Ranks
		src := gin.FromPeer(lsa, p)
		v, r := l.Recv(s.words+p, src)
		ok(r, "receive")
		if want := draw(p*100+me, 0, i); v != want {
			panic(fmt.Sprintf("exchange %d: %#x from LSA rank %d, want %#x", i, v, p, want))
		}
		ok(l.RecvInto(s.elements+p*gin.LLSlots(llBytes), scratch, llBytes, src), "receive an element")
		for b := range uint64(llBytes) {
			if got, want := scratch.Byte(b).Load(), element(p, me, b); got != want {
				panic(fmt.Sprintf("exchange %d: byte %d of the element of LSA rank %d is %#x, want %#x", i, b, p, got, want))
			}
		}
		cast = append(cast, int64(draw(k, 1, i)))
		sum += float(k).Float32()
	}
	for op := gin.Sum; op <= gin.Or; op++ {
		got, r := gin.RecvReduce[int64](l, s.cast, 1, lsa.Ranks, op, gin.FromTeam(lsa))
		ok(r, "reduce by %d", op)
		if want := reduceInts(op, cast); got != want {
			panic(fmt.Sprintf("exchange %d: operation %d gave %#x, want %#x", i, op, got, want))
		}
	}
	got, r := gin.RecvReduceFloat[gin.BF16](l, s.floats, 1, lsa.Ranks, gin.Sum, gin.FromTeam(lsa))
	ok(r, "reduce floats")
	if want := gin.BF16(0).Round(sum); got != want {
		panic(fmt.Sprintf("exchange %d: the sum is %v, want %v", i, got.Float32(), want.Float32()))
	}
	ok(l.EndEpoch(), "end of epoch")
}

// progLLA2A is exchanges one after another, in sessions that are closed and opened in between, of two blocks in turn.
// Epochs begin shortly before they wrap.
func progLLA2A(r *rank) {
	shape := newLLShape(int32(r.LSASize()))
	for _, first := range []uint32{abi.LLFirstEpoch, 1<<32 - 5, 1<<32 - 4} {
		dc := r.devComm(doorbell.Needs{LLA2ABlocks: 2, LLA2ASlots: int(shape.slots)})
		scratch := r.alloc(64)
		start := dc.Device()
		for b := range 2 {
			start.LLState.At(b).Store(abi.LLState{Epoch: first})
		}
		r.sync()
		for launch := range uint64(3) {
			r.run(func(t gpu.Thread) {
				d := dc.Device()
				c := gin.Open(&d, 0)
				l0, s := c.LLA2A(gin.ByThread(t), 0)
				ok(s, "session 0")
				l1, s := c.LLA2A(gin.ByThread(t), 1)
				ok(s, "session 1")
				for i := range uint64(40) {
					shape.exchange(&l0, &d, scratch.Ptr(), 1000*launch+i)
					shape.exchange(&l1, &d, scratch.Ptr(), 1000*launch+i+500)
				}
			})
		}
		if got := start.LLState.At(0).Load().Epoch; first > 1<<31 && got > 200 {
			r.fail("epoch %d after 120 that began at %d: it has not wrapped", got, first)
		}
		r.drop(dc)
	}
}

// progLLA2ABlock is a session of a block's threads: each of them sends and receives its share of the slots.
func progLLA2ABlock(r *rank) {
	const warps, lanes, rounds = 3, 3 * gpu.WarpSize, 60
	n := int32(r.LSASize())
	dc := r.devComm(doorbell.Needs{LLA2ABlocks: 2, LLA2ASlots: int(n) * lanes})
	first := dc.Device()
	first.LLState.At(1).Store(abi.LLState{Epoch: 1<<32 - 30})
	r.sync()
	r.startLanes(doorbell.Grid{Blocks: 2, Warps: warps, Cooperative: true}, func(t gpu.Thread) {
		d := dc.Device()
		c, lsa := gin.Open(&d, 0), gin.LSA(&d)
		l, s := c.LLA2A(gin.ByBlock(t), t.Block())
		ok(s, "session")
		for i := range uint64(rounds) {
			for p := range n {
				ok(l.Send(p, lsa.Rank*lanes+t.Index(), draw(100*lsa.Rank+p, uint64(t.Index()), i)), "send")
			}
			for p := range n {
				v, s := l.Recv(p*lanes+t.Index(), gin.FromPeer(lsa, p))
				ok(s, "receive")
				if want := draw(100*p+lsa.Rank, uint64(t.Index()), i); v != want {
					panic(fmt.Sprintf("round %d: %#x from LSA rank %d, want %#x", i, v, p, want))
				}
			}
			ok(l.EndEpoch(), "end of epoch")
		}
	})
	r.wait()
	r.drop(dc)
}

// progBadLLA2A is what is refused, and a receive that ends by its deadline and then finds what comes.
func progBadLLA2A(r *rank) {
	n := int32(r.LSASize())
	dc, plain := r.devComm(doorbell.Needs{LLA2ABlocks: 1, LLA2ASlots: 4, Barriers: 1}), r.devComm(doorbell.Needs{})
	buf := r.alloc(64)
	r.run(func(t gpu.Thread) {
		d, none, co := dc.Device(), plain.Device(), gin.ByThread(t)
		c, without, bad := gin.Open(&d, 0), gin.Open(&none, 0), gin.Open(&d, 7)
		lsa := gin.LSA(&d)
		for _, x := range []struct {
			c     *gin.Context
			block int32
		}{{&c, 1}, {&c, -1}, {&without, 0}, {&bad, 0}} {
			l, s := x.c.LLA2A(co, x.block)
			expect(s, gin.Invalid, "session of block %d", x.block)
			expect(l.Send(0, 0, 1), gin.Invalid, "send of a session that is none")
			expect(l.Bcast(0, 1), gin.Invalid, "broadcast of a session that is none")
			expect(l.SendFrom(0, 0, buf.Ptr(), 0), gin.Invalid, "send from memory of a session that is none")
			_, s = l.Recv(0, gin.FromAny())
			expect(s, gin.Invalid, "receive of a session that is none")
			_, s = gin.RecvReduce[uint32](&l, 0, 1, 1, gin.Sum, gin.FromAny())
			expect(s, gin.Invalid, "reduce of a session that is none")
			expect(l.EndEpoch(), gin.Invalid, "end of a session that is none")
		}
		l, s := c.LLA2A(co, 0)
		ok(s, "session")
		for _, slot := range []int32{-1, 4, 1 << 30, math.MaxInt32, math.MinInt32} {
			expect(l.Send(0, slot, 1), gin.Invalid, "send to slot %d", slot)
			expect(l.Bcast(slot, 1), gin.Invalid, "broadcast to slot %d", slot)
			expect(l.SendFrom(0, slot, buf.Ptr(), 8), gin.Invalid, "send from memory to slot %d", slot)
			expect(l.RecvInto(slot, buf.Ptr(), 8, gin.FromAny()), gin.Invalid, "receive into memory from slot %d", slot)
			_, s := l.Recv(slot, gin.FromAny())
			expect(s, gin.Invalid, "receive from slot %d", slot)
		}
		for _, peer := range []int32{-1, n, math.MaxInt32} {
			expect(l.Send(peer, 0, 1), gin.Invalid, "send to peer %d", peer)
			expect(l.SendFrom(peer, 0, buf.Ptr(), 8), gin.Invalid, "send from memory to peer %d", peer)
		}
		for _, bytes := range []uint64{25, 33, 1 << 40, ^uint64(0)} {
			expect(l.SendFrom(0, 1, buf.Ptr(), bytes), gin.Invalid, "send of %d bytes", bytes)
			expect(l.BcastFrom(1, buf.Ptr(), bytes), gin.Invalid, "broadcast of %d bytes", bytes)
			expect(l.RecvInto(1, buf.Ptr(), bytes, gin.FromAny()), gin.Invalid, "receive of %d bytes", bytes)
		}
		for _, x := range [][3]int32{{0, 1, 0}, {0, 1, 5}, {0, 2, 3}, {1, 1, 4}, {0, -1, 2}, {0, 1, -1}, {0, math.MaxInt32, math.MaxInt32}, {4, 0, 1}} {
			_, s := gin.RecvReduce[int64](&l, x[0], x[1], x[2], gin.Sum, gin.FromAny())
			expect(s, gin.Invalid, "reduce of slots %v", x)
			_, s = gin.RecvReduceFloat[gin.F16](&l, x[0], x[1], x[2], gin.Sum, gin.FromAny())
			expect(s, gin.Invalid, "reduce of floats of slots %v", x)
		}
		_, s = gin.RecvReduce[int64](&l, 0, 1, 1, gin.Or+1, gin.FromAny())
		expect(s, gin.Invalid, "an operation that is none")
		_, s = gin.RecvReduceFloat[gin.F16](&l, 0, 1, 1, gin.And, gin.FromAny())
		expect(s, gin.Invalid, "bits of floats")

		// Nothing of that was sent: a receive waits for its deadline, and then for what does come.
		next, before := (lsa.Rank+1)%n, (lsa.Rank+n-1)%n
		c.SetTimeout(uint64(2 * time.Millisecond))
		for range 2 {
			_, s = l.Recv(3, gin.FromPeer(lsa, before))
			expect(s, gin.Timeout, "receive of what is not sent")
		}
		c.SetTimeout(d.Timeout)
		ok(c.LSABarrier(co, 0), "barrier")
		ok(l.Send(next, 3, 1<<63|7), "send")
		v, s := l.Recv(3, gin.FromPeer(lsa, before))
		ok(s, "receive after a timeout")
		if v != 1<<63|7 {
			panic(fmt.Sprintf("received %#x", v))
		}
		ok(l.EndEpoch(), "end")
		// Half a slot is none.
		epoch := d.LLState.At(0).Load().Epoch
		at := d.LL.At(int(epoch&1) * 4 * abi.LLSlotWords)
		for half := range 2 {
			for word := range 2 {
				gpu.Store(at.At(word), uint64(epoch-2)<<32, gpu.Relaxed, gpu.ScopeSys)
			}
			gpu.Store(at.At(half), uint64(epoch)<<32, gpu.Relaxed, gpu.ScopeSys)
			c.SetTimeout(uint64(time.Millisecond))
			_, s = l.Recv(0, gin.FromPeer(lsa, lsa.Rank))
			expect(s, gin.Timeout, "receive of half a slot")
		}
		c.SetTimeout(d.Timeout)
		ok(c.LSABarrier(co, 0), "barrier")

		// Two epochs ahead of who has not received: told, not waited for.
		if n > 1 {
			ahead := l
			for range 2 {
				ok(ahead.EndEpoch(), "end of an epoch that nothing was received in")
			}
			ok(ahead.Send(next, 0, 1), "send too early")
			ok(c.LSABarrier(co, 0), "barrier")
			_, s = l.Recv(0, gin.FromPeer(lsa, before))
			expect(s, gin.Invalid, "receive of what is overwritten")
		}
	})
	r.drop(dc, plain)
}

// TestLLA2ANeeds is what no device communicator is made with.
func TestLLA2ANeeds(t *testing.T) {
	c := local(t, 1, doorbell.Options{})[0]
	for _, n := range []doorbell.Needs{
		{LLA2ABlocks: 1}, {LLA2ASlots: 1}, {LLA2ABlocks: -1, LLA2ASlots: 1}, {LLA2ABlocks: 1025, LLA2ASlots: 1}, {LLA2ABlocks: 1, LLA2ASlots: 1<<16 + 1},
	} {
		if dc, err := c.DevComm(t.Context(), n); err == nil {
			t.Errorf("%d blocks of %d slots are accepted", n.LLA2ABlocks, n.LLA2ASlots)
			dc.Close()
		} else {
			says(t, err, "device communicator", "LLA2A")
		}
	}
}
