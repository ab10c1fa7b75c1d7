// SPDX-License-Identifier: Apache-2.0

package doorbell_test

import (
	"github.com/doorbell-net/doorbell"
	"github.com/doorbell-net/doorbell/gin"
	"github.com/doorbell-net/doorbell/gpu"
)

// progCoop calls each operation by thread, by warp and by block of several warps: one issues, all get the status.
func progCoop(r *rank) {
	const warps, blocks, bytes = 4, 3, 700
	dc := r.devComm(doorbell.Needs{Contexts: blocks, Signals: 2, Counters: warps, Barriers: 1, SmallPut: 64})
	recv, send := r.window(r.Size()*blocks*1024), r.window(blocks*1024)
	fillPattern(send.Buffer().Bytes(), r.Rank())
	r.sync()
	r.startLanes(doorbell.Grid{Blocks: blocks, Warps: warps, Cooperative: true}, func(t gpu.Thread) {
		d := dc.Device()
		c, world, block := gin.Open(&d, t.Block()), gin.World(&d), gin.ByBlock(t)
		at := uint64(t.Block()) * 1024
		slot := func(rank int32) uint64 { return uint64(rank)*blocks*1024 + at }
		// One call of the block is one put.
		for p := range world.Ranks {
			ok(c.Put(block, world, p, recv.Device(), slot(d.Rank), send.Device(), at, bytes, gin.StrongInc(0).Counter(0)), "put by block")
			expect(c.Put(block, world, p, recv.Device(), 1<<40, send.Device(), at, bytes, gin.StrongInc(0)), gin.Invalid, "put by block out of bounds")
		}
		// Each warp's call is one, and so is each thread's.
		for p := range world.Ranks {
			ok(c.Signal(gin.ByWarp(t), world, p, gin.StrongInc(1)), "signal by warp")
			if t.Lane() == 0 {
				ok(c.PutValue(gin.ByThread(t), world, p, recv.Device(), slot(d.Rank)+800+8*uint64(t.Warp()), uint64(t.Warp()+1), 8, gin.StrongAdd(1, 100)), "value by thread")
			}
		}
		n := uint64(world.Ranks)
		ok(c.WaitSignal(block, 0, n, 64, gin.FromTeam(world)), "wait by block")
		ok(c.WaitSignal(gin.ByWarp(t), 1, n*warps*101, 64, gin.FromTeam(world)), "wait by warp")
		ok(c.WaitCounter(block, 0, n, 64, gin.FromTeam(world)), "counter by block")
		ok(c.Flush(block), "flush by block")
		ok(c.FlushPeer(gin.ByWarp(t), world, 0), "flush by warp")
		// All threads see what came, not only the one that waited.
		for p := range world.Ranks {
			got := view(recv.Device(), int(slot(p)), 1024)
			for i := range bytes {
				if got[i] != pattern(int(p), int(at)+i) {
					panic("a put by block is not whole")
				}
			}
			for w := range warps {
				if got[800+8*w] != byte(w+1) {
					panic("a value by thread is not there")
				}
			}
		}
		ok(c.Barrier(block, world, 0, gin.FencePut), "barrier by block")
		if s0, s1, k := c.ReadSignal(0), c.ReadSignal(1), c.ReadCounter(0); s0 != n || s1 != n*warps*101 || k != n {
			panic("a call of several threads was made more than once")
		}
		expect(c.WaitSignal(block, 9, 1, 64, gin.FromAny()), gin.Invalid, "wait for an unknown signal by block")
		ok(c.ResetSignal(block, 0), "reset by block")
		ok(c.ResetCounter(gin.ByWarp(t), t.Warp()), "reset by warp, each its own")
	})
	r.wait()
	r.drop(dc, recv, send)
}

// progBurst is many more puts than a queue has places, of many producers on one context: none is lost, doubled or torn.
func progBurst(r *rank) {
	for _, b := range []struct{ depth, blocks, warps, each, bytes, small int }{
		{2, 4, 2, 125, 8, 8},      // 1,000 puts to each peer, from 8 warps of 4 blocks, through 2 places
		{2, 2, 4, 40, 40, 256},    // the same with cells
		{64, 1, 16, 100, 8, 8},    // 16 producers
		{1024, 4, 4, 100, 24, 24}, // 16 producers of several blocks
		{16, 2, 8, 20, 1000, 8},   // the window's bytes
	} {
		producers := b.blocks * b.warps
		b.each = r.fewer(b.each)
		total := producers * b.each
		dc := r.devComm(doorbell.Needs{Signals: 1, Counters: 1, QueueDepth: b.depth, SmallPut: b.small})
		recv, send := r.window(r.Size()*total*b.bytes), r.window(total*b.bytes)
		src := send.Buffer().Bytes()
		for i := range total { // each put has bytes of its own
			for j := range b.bytes {
				src[i*b.bytes+j] = byte(i*7 + j*(1+i>>8) + r.Rank() + 1)
			}
		}
		r.sync()
		r.start(doorbell.Grid{Blocks: b.blocks, Warps: b.warps, Cooperative: true}, func(t gpu.Thread) {
			d, co := dc.Device(), gin.ByThread(t)
			c, world := gin.Open(&d, 0), gin.World(&d)
			me := int(t.Block())*b.warps + int(t.Warp())
			for i := range b.each {
				off := uint64((me*b.each + i) * b.bytes)
				for p := range world.Ranks {
					ok(c.Put(co, world, p, recv.Device(), uint64(r.Rank()*total*b.bytes)+off, send.Device(), off, uint64(b.bytes), gin.StrongInc(0).Counter(0)), "put %d of producer %d", i, me)
				}
			}
			all := uint64(r.Size() * total)
			ok(c.WaitSignal(co, 0, all, 64, gin.FromTeam(world)), "wait for %d", all)
			ok(c.Flush(co), "flush")
		})
		r.wait()
		r.run(func(t gpu.Thread) {
			d := dc.Device()
			c := gin.Open(&d, 0)
			if s, k := c.ReadSignal(0), c.ReadCounter(0); s != uint64(r.Size()*total) || k != s {
				panic("a signal or counter was lost or raised twice")
			}
			for p := range r.Size() {
				got := view(recv.Device(), p*total*b.bytes, total*b.bytes)
				for i := range got {
					put, j := i/b.bytes, i%b.bytes
					if got[i] != byte(put*7+j*(1+put>>8)+p+1) {
						panic("a put is lost or torn")
					}
				}
			}
		})
		r.sync()
		r.drop(dc, recv, send)
	}
}

// progContexts uses several contexts at once: each has signals, counters and queues of its own.
func progContexts(r *rank) {
	const contexts = 5
	dc := r.devComm(doorbell.Needs{Contexts: contexts, Signals: 2, Counters: 2, QueueDepth: 4})
	recv := r.window(8 * contexts * r.Size())
	r.sync()
	r.start(doorbell.Grid{Blocks: contexts, Warps: 1, Cooperative: true}, func(t gpu.Thread) {
		d, co := dc.Device(), gin.ByThread(t)
		x := t.Block()
		c, world := gin.Open(&d, x), gin.World(&d)
		for i := range uint64(50) {
			for p := range world.Ranks {
				ok(c.PutValue(co, world, p, recv.Device(), 8*(uint64(d.Rank)*contexts+uint64(x)), i<<8|uint64(x), 8, gin.StrongAdd(1, uint64(x)+1).Counter(1)), "put value")
			}
			ok(c.WaitSignal(co, 1, (i+1)*uint64(x+1)*uint64(world.Ranks), 64, gin.FromTeam(world)), "wait %d", i)
		}
		ok(c.Flush(co), "flush")
		if c.ReadCounter(1) != 50*uint64(world.Ranks) || c.ReadSignal(0)|c.ReadCounter(0) != 0 {
			panic("a counter or signal of another context was raised")
		}
		for p := range uint64(world.Ranks) {
			if v := gpu.Load(gpu.Cast[uint64](recv.Device().Base).At(int(p*contexts+uint64(x))), gpu.Acquire, gpu.ScopeSys); v != 49<<8|uint64(x) {
				panic("a value is not the last one that its context put")
			}
		}
	})
	r.wait()
	r.sync()
	r.drop(dc, recv)
}

// progRail has queues to the ranks of the same place in each node only.
func progRail(r *rank) {
	dc := r.devComm(doorbell.Needs{Rail: true, Signals: 1, Counters: 1, Barriers: 1})
	recv, send := r.window(64*r.Size()), r.window(64)
	fillPattern(send.Buffer().Bytes(), r.Rank())
	fill(recv.Buffer().Bytes(), canary)
	r.sync()
	r.run(func(t gpu.Thread) {
		d, co := dc.Device(), gin.ByThread(t)
		c, world, rail, lsa := gin.Open(&d, 0), gin.World(&d), gin.Rail(&d), gin.LSA(&d)
		if int(rail.Ranks) != r.Nodes() || int(lsa.Ranks) != r.LSASize() || d.Peers != rail.Ranks {
			panic("the teams have other sizes than the communicator says")
		}
		for p := range rail.Ranks {
			ok(c.Put(co, rail, p, recv.Device(), 64*uint64(d.Rank), send.Device(), 0, 64, gin.StrongInc(0).Counter(0)), "put along the rail")
		}
		for p := range world.Ranks {
			if p%lsa.Ranks != lsa.Rank {
				expect(c.Put(co, world, p, recv.Device(), 0, send.Device(), 0, 64, gin.StrongInc(0)), gin.Invalid, "put off the rail")
				expect(c.Signal(co, world, p, gin.StrongInc(0)), gin.Invalid, "signal off the rail")
				expect(c.FlushPeer(co, world, p), gin.Invalid, "flush off the rail")
				expect(c.Barrier(co, world, 0, gin.FencePut), gin.Invalid, "barrier off the rail")
			}
		}
		ok(c.WaitSignal(co, 0, uint64(rail.Ranks), 64, gin.FromTeam(rail)), "wait")
		ok(c.Flush(co), "flush")
		for i := range 100 {
			ok(c.Barrier(co, rail, 0, gin.FencePut), "rail barrier %d", i)
		}
		ok(c.LSABarrier(co, 0), "LSA barrier")
		if c.ReadSignal(0) != uint64(rail.Ranks) || c.ReadCounter(0) != uint64(rail.Ranks) {
			panic("a refused put raised a signal or counter")
		}
		want := make([]byte, 64)
		for p := range r.Size() {
			fill(want, canary)
			if p%r.LSASize() == r.LSARank() {
				fillPattern(want, p)
			}
			same(view(recv.Device(), 64*p, 64), want, "from rank %d", p)
		}
	})
	r.drop(dc, recv, send)
}
