// SPDX-License-Identifier: Apache-2.0

package doorbell_test

import (
	"bytes"
	"slices"

	"github.com/doorbell-net/doorbell"
	"github.com/doorbell-net/doorbell/gin"
	"github.com/doorbell-net/doorbell/gpu"
	"github.com/doorbell-net/doorbell/netplugin/shm"
)

// Programs run on each rank, in one process or one process a rank. See programs.

type putCase struct{ bytes, src, dst int }

// putCases cross the sizes at which a put takes another way: in the descriptor, in its cell, from the window; at
// aligned and unaligned offsets. Each is put into a part of its own, with canaries around it.
func putCases() (cases []putCase) {
	for i, n := range []int{0, 1, 2, 7, 8, 9, 14, 15, 63, 64, 65, 249, 252, 253, 255, 256, 257, 511, 1000, 4097} {
		for j := range 3 {
			offs := []int{0, 1, 8, 5, 64, 3}
			cases = append(cases, putCase{n, offs[(i+j)%6], offs[(i*j+1)%6]})
		}
	}
	return cases
}

const (
	putSlot   = 4400 // bytes of a window for each source
	putSource = 4200
)

// progPuts puts to each rank, to itself too, and looks at every byte of the windows after each round.
func progPuts(r *rank) {
	for _, small := range []int{8, 256} {
		dc := r.devComm(doorbell.Needs{Signals: 1, Barriers: 1, SmallPut: small})
		// Sizes differ: each rank has a slot for each source and some bytes more.
		recv, send := r.window(r.Size()*putSlot+r.Rank()), r.window(putSource)
		fillPattern(send.Buffer().Bytes(), r.Rank())
		fill(recv.Buffer().Bytes(), canary)
		want := fill(make([]byte, putSlot), canary)
		r.sync() // nobody puts before each has its canaries
		r.run(func(t gpu.Thread) {
			d, co := dc.Device(), gin.ByThread(t)
			c, world := gin.Open(&d, 0), gin.World(&d)
			for k, cs := range putCases() {
				for p := range world.Ranks {
					ok(c.Put(co, world, p, recv.Device(), uint64(r.Rank()*putSlot+16+cs.dst), send.Device(), uint64(cs.src), uint64(cs.bytes), gin.StrongInc(0)),
						"put %+v to %d", cs, p)
				}
				ok(c.WaitSignal(co, 0, uint64((k+1)*r.Size()), 64, gin.FromTeam(world)), "wait %d", k)
				for p := range r.Size() {
					for i := range cs.bytes {
						want[16+cs.dst+i] = pattern(p, cs.src+i)
					}
					got := view(recv.Device(), p*putSlot, putSlot)
					same(got, want, "rank %d: %+v from rank %d, small puts up to %d", r.Rank(), cs, p, small)
					fill(got[16:16+cs.dst+cs.bytes], canary)
					fill(want[16:16+cs.dst+cs.bytes], canary)
				}
				same(view(recv.Device(), r.Size()*putSlot, r.Rank()), want[:r.Rank()], "end of the window")
				ok(c.Barrier(co, world, 0, gin.FencePut), "barrier")
			}
		})
		r.drop(dc, recv, send)
	}
}

// progLarge puts what is cut into pieces, each action once, after the last piece.
func progLarge(r *rank) {
	sizes := []int{shm.MaxBytes - 1, shm.MaxBytes, shm.MaxBytes + 1, 2*shm.MaxBytes + 3, 3<<20 + 5}
	most := slices.Max(sizes)
	dc := r.devComm(doorbell.Needs{Signals: 1, Counters: 1, Barriers: 1, QueueDepth: 4})
	recv, send := r.window(most+64), r.window(most+8)
	fillPattern(send.Buffer().Bytes(), r.Rank())
	fill(recv.Buffer().Bytes(), canary)
	r.sync()
	from, to := (r.Rank()+r.Size()-1)%r.Size(), (r.Rank()+1)%r.Size()
	want := fillPattern(make([]byte, most+8), from)
	r.run(func(t gpu.Thread) {
		d, co := dc.Device(), gin.ByThread(t)
		c, world := gin.Open(&d, 0), gin.World(&d)
		for k, n := range sizes {
			src, dst := k%8, 32-k
			ok(c.Put(co, world, int32(to), recv.Device(), uint64(dst), send.Device(), uint64(src), uint64(n), gin.StrongAdd(0, 3).Counter(0)), "put %d", n)
			ok(c.WaitSignal(co, 0, uint64(3*(k+1)), 64, gin.FromPeer(world, int32(from))), "wait %d", n)
			got := view(recv.Device(), 0, dst+n+1)
			if !bytes.Equal(got[dst:dst+n], want[src:src+n]) || got[dst-1] != canary {
				same(got[dst-1:dst+n], append([]byte{canary}, want[src:src+n]...), "%d bytes", n)
			}
			if k == len(sizes)-1 && got[dst+n] != canary {
				panic("a byte after the put was written")
			}
			ok(c.WaitCounter(co, 0, uint64(k+1), 64, gin.FromPeer(world, int32(to))), "counter")
			ok(c.Flush(co), "flush")
			if v := c.ReadCounter(0); v != uint64(k+1) {
				panic("a counter was raised for a piece")
			}
			if v := c.ReadSignal(0); v != uint64(3*(k+1)) {
				panic("a signal was raised for a piece")
			}
			fill(got[dst-1:dst+1], canary)
			ok(c.Barrier(co, world, 0, gin.FencePut), "barrier")
		}
	})
	r.drop(dc, recv, send)
}

// progZero puts and gets nothing: plain, with each kind of signal, by id and at an address, with a counter, with both, and
// flushes.
func progZero(r *rank) {
	for _, small := range []int{8, 256} {
		dc := r.devComm(doorbell.Needs{Signals: 2, Counters: 2, Barriers: 1, SmallPut: small})
		recv, send, sw := r.window(1), r.window(3), r.signalWindow(2)
		r.run(func(t gpu.Thread) {
			d, co, at := dc.Device(), gin.ByThread(t), sw.Device()
			c, world := gin.Open(&d, 0), gin.World(&d)
			for round := range uint64(20) {
				for p := range world.Ranks {
					for _, act := range []gin.Action{
						gin.None(), gin.StrongInc(1), gin.WeakAdd(1, 100), gin.None().Counter(1), gin.StrongAdd(1, 10).Counter(0),
						gin.StrongIncAt(at, 8), gin.WeakIncAt(at, 8), gin.WeakAddAt(at, 8, 10).Counter(0), gin.StrongAddAt(at, 8, 100),
					} {
						// One past the last byte is where nothing may still be put.
						ok(c.Put(co, world, p, recv.Device(), 1, send.Device(), 3, 0, act), "put nothing")
					}
					ok(c.Get(co, world, p, recv.Device(), 1, send.Device(), 3, 0, gin.None().Counter(0)), "get nothing")
				}
				n := uint64(world.Ranks) * (round + 1)
				ok(c.Flush(co), "flush")
				ok(c.WaitCounter(co, 1, n, 64, gin.FromTeam(world)), "counter")
				ok(c.WaitSignal(co, 1, 111*n, 64, gin.FromTeam(world)), "signal")
				ok(c.WaitSignalAt(co, at, 8, 112*n, 64, gin.FromTeam(world)), "signal at an address")
				ok(c.Barrier(co, world, 0, gin.FencePut), "barrier")
				if s, s0, k, k1 := c.ReadSignal(1), c.ReadSignal(0), c.ReadCounter(0), c.ReadCounter(1); s != 111*n || s0 != 0 || k != 3*n || k1 != n {
					panic("a signal or counter has another value than was added")
				}
				if s, s0 := c.ReadSignalAt(at, 8), c.ReadSignalAt(at, 0); s != 112*n || s0 != 0 {
					panic("a signal at an address has another value than was added")
				}
				ok(c.Barrier(co, world, 0, gin.FencePut), "barrier")
			}
		})
		r.sync()
		r.drop(dc, recv, send, sw)
	}
}

// progValues puts values of 1 to 8 bytes at all places of a word, with canaries around them.
func progValues(r *rank) {
	const value = 0x8877665544332211
	dc := r.devComm(doorbell.Needs{Signals: 1, Barriers: 1})
	recv := r.window(r.Size() * 32)
	r.sync()
	r.run(func(t gpu.Thread) {
		d, co := dc.Device(), gin.ByThread(t)
		c, world := gin.Open(&d, 0), gin.World(&d)
		want, sent := make([]byte, 32), uint64(0)
		for n := uint64(1); n <= 8; n++ {
			for off := range uint64(9) {
				fill(view(recv.Device(), 0, r.Size()*32), canary)
				ok(c.Barrier(co, world, 0, gin.FencePut), "barrier")
				for p := range world.Ranks {
					ok(c.PutValue(co, world, p, recv.Device(), uint64(r.Rank()*32)+8+off, value+uint64(r.Rank()), n, gin.StrongInc(0)), "put value")
				}
				sent += uint64(world.Ranks)
				ok(c.WaitSignal(co, 0, sent, 64, gin.FromTeam(world)), "wait")
				for p := range r.Size() {
					fill(want, canary)
					for i := range n {
						want[8+off+i] = byte((value + uint64(p)) >> (8 * i))
					}
					same(view(recv.Device(), p*32, 32), want, "%d bytes at %d from rank %d", n, off, p)
				}
				ok(c.Barrier(co, world, 0, gin.FencePut), "barrier")
			}
		}
	})
	r.drop(dc, recv)
}

// progFlush writes over a source as soon as a flush or a counter allows it: what was put keeps its bytes.
func progFlush(r *rank) {
	const n, rounds = 40000, 50
	dc := r.devComm(doorbell.Needs{Contexts: 2, Signals: 1, Counters: 1})
	recv, send := r.window(3*rounds*64+n), r.window(n)
	to, from := int32(r.Rank()+1)%int32(r.Size()), int32(r.Rank()+r.Size()-1)%int32(r.Size())
	r.sync()
	r.run(func(t gpu.Thread) {
		d, co := dc.Device(), gin.ByThread(t)
		c, world := gin.Open(&d, 1), gin.World(&d)
		src := view(send.Device(), 0, n)
		free := []func() gin.Status{
			func() gin.Status { return c.Flush(co) },
			func() gin.Status { return c.FlushPeer(co, world, to) },
			func() gin.Status {
				s := c.WaitCounter(co, 0, 1, 64, gin.FromPeer(world, to))
				c.ResetCounter(co, 0)
				return s
			},
		}
		for i := range rounds * 3 {
			size := uint64(64)
			if i == rounds*3-1 {
				size = n // the last one covers the rest of the window
			}
			fill(src, byte(i+1))
			act := gin.StrongInc(0)
			if i%3 == 2 {
				act = act.Counter(0)
			}
			ok(c.Put(co, world, to, recv.Device(), uint64(i*64), send.Device(), 0, size, act), "put %d", i)
			ok(free[i%3](), "wait for the source, round %d", i)
			fill(src, 0xff)
		}
		ok(c.WaitSignal(co, 0, rounds*3, 64, gin.FromPeer(world, from)), "wait")
		for i := range rounds * 3 {
			size := 64
			if i == rounds*3-1 {
				size = n
			}
			same(view(recv.Device(), i*64, size), fill(make([]byte, size), byte(i+1)), "put %d", i)
		}
		if v := c.ReadCounter(0); v != 0 {
			panic("a counter was raised by a put that did not name it")
		}
		other := gin.Open(&d, 0)
		if other.ReadSignal(0) != 0 {
			panic("a signal of another context was raised")
		}
	})
	r.drop(dc, recv, send)
}
