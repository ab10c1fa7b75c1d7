// SPDX-License-Identifier: Apache-2.0

package doorbell_test

import (
	"fmt"

	"github.com/doorbell-net/doorbell"
	"github.com/doorbell-net/doorbell/gin"
	"github.com/doorbell-net/doorbell/gpu"
)

// divisor is the smallest divisor of n above 1, n for a prime.
func divisor(n int32) int32 {
	for d := int32(2); d < n; d++ {
		if n%d == 0 {
			return d
		}
	}
	return max(n, 1)
}

// progBarriers goes through hundreds of epochs of one barrier id, of several teams in turn and in two contexts. What
// was put before a barrier is there after it, and what the next epoch puts is not.
func progBarriers(r *rank) {
	const epochs = 300
	dc := r.devComm(doorbell.Needs{Contexts: 2, Barriers: 2, Signals: 1})
	recv := r.window(8 * r.Size() * 2)
	r.run(func(t gpu.Thread) {
		d, co := dc.Device(), gin.ByThread(t)
		world := gin.World(&d)
		n := divisor(world.Ranks)
		teams := []gin.Team{world, gin.Rail(&d), world.Inner(n), world.Outer(n), gin.LSA(&d), world.Inner(1)}
		for e := range uint64(epochs) {
			team := teams[e%uint64(len(teams))]
			x := int32(e/3) % 2
			c := gin.Open(&d, x)
			// Two cells in turn: a rank may be one epoch ahead.
			at := func(rank int32) uint64 { return 16*uint64(rank) + 8*(e%2) }
			for p := range team.Ranks {
				ok(c.PutValue(co, team, p, recv.Device(), at(d.Rank), e+1, 8, gin.None()), "put value")
			}
			ok(c.Barrier(co, team, int32(e/7)%2, gin.FencePut), "barrier %d", e)
			for p := range team.Ranks {
				from := team.WorldRank(&d, p)
				if got := gpu.Load(gpu.Cast[uint64](recv.Device().Base.Byte(at(from))), gpu.Relaxed, gpu.ScopeSys); got != e+1 {
					panic("a put that was before the barrier is not there, or one that comes after it is")
				}
			}
			// The cell's next use is two epochs on; those of other teams come between.
			ok(c.Barrier(co, world, 0, gin.FencePut), "world barrier %d", e)
		}
	})
	r.drop(dc, recv)
}

// progLSABarrier is progBarriers for stores to LSA peers.
func progLSABarrier(r *rank) {
	const epochs = 500
	dc := r.devComm(doorbell.Needs{Contexts: 2, Barriers: 2})
	recv := r.window(64 * r.Size())
	r.run(func(t gpu.Thread) {
		d, co := dc.Device(), gin.ByThread(t)
		lsa := gin.LSA(&d)
		for e := range uint64(epochs) {
			c := gin.Open(&d, int32(e%2))
			for p := range lsa.Ranks {
				gpu.Cast[uint64](gin.LSAPointer(recv.Device(), p, uint64(64*lsa.Rank))).Store(e + 1)
			}
			ok(c.LSABarrier(co, int32(e/5)%2), "barrier %d", e)
			for p := range lsa.Ranks {
				if gpu.Cast[uint64](recv.Device().Base.Byte(uint64(64*p))).Load() != e+1 {
					panic("a store that was before the barrier is not there")
				}
			}
			ok(c.LSABarrier(co, int32(e/5)%2), "barrier %d, end", e)
		}
	})
	r.drop(dc, recv)
}

// progLSA stores into the windows of LSA peers by thread, warp and block, some past the caches, and raises their signals.
func progLSA(r *rank) {
	const slot, most = 5000, 4096
	dc := r.devComm(doorbell.Needs{Contexts: 2, Signals: 2, Barriers: 1})
	recv, send := r.window(r.Size()*slot), r.window(most+64)
	fillPattern(send.Buffer().Bytes(), r.Rank())
	fill(recv.Buffer().Bytes(), canary)
	r.sync()
	r.startLanes(doorbell.Grid{Blocks: 1, Warps: 3}, func(t gpu.Thread) {
		d := dc.Device()
		c, lsa := gin.Open(&d, 1), gin.LSA(&d)
		first := d.Rank - d.LSARank
		sent := uint64(0)
		want := make([]byte, slot)
		for _, x := range []struct {
			n              int
			dst, src, step uint64
		}{
			{0, 8, 0, 1}, {1, 9, 2, 1}, {63, 10, 4, 1}, {64, 11, 6, 1}, {65, 12, 8, 1}, {1000, 13, 10, 1}, {most, 14, 12, 1},
			{8, 24, 8, 16}, {24, 32, 16, 16}, {64, 48, 16, 16}, {192, 32, 32, 16}, {1000, 16, 32, 16}, // whole words
		} {
			n := x.n
			for kind, co := range []gin.Coop{gin.ByThread(t), gin.ByWarp(t), gin.ByBlock(t)} {
				dst, src := x.dst+uint64(kind)*x.step, x.src+uint64(kind)*x.step
				for p := range lsa.Ranks {
					if kind == 2 || t.Warp() == 1 && (kind == 1 || t.Lane() == 0) { // thread and warp: one of the block does it
						ok(c.LSAPut(co, p, recv.Device(), uint64(d.Rank-first)*slot+dst, send.Device().Base.Byte(src), uint64(n)), "LSA put of %d", n)
						ok(c.LSASignal(co, p, 1, 5), "LSA signal")
					}
				}
				sent += 5 * uint64(lsa.Ranks)
				by := gin.ByBlock(t)
				if kind == 0 {
					ok(c.WaitSignal(by, 1, sent, 64, gin.FromTeam(lsa)), "wait")
				} else {
					ok(c.WaitLSASignal(by, 1, sent, 64, gin.FromTeam(lsa)), "wait for LSA peers alone")
				}
				if t.Index() == 0 {
					for p := range int(lsa.Ranks) {
						fill(want, canary)
						for i := range n {
							want[int(dst)+i] = pattern(int(first)+p, int(src)+i)
						}
						got := view(recv.Device(), p*slot, slot)
						same(got, want, "%d bytes from LSA rank %d, cooperation %d", n, p, kind)
						fill(got, canary)
					}
				}
				ok(c.LSABarrier(by, 0), "LSA barrier")
			}
		}
		if v := c.ReadLSASignal(1); v != sent {
			panic(fmt.Sprintf("LSA peers added %d, want %d", v, sent))
		}
		if v := c.ReadSignal(1); v != sent {
			panic("an LSA signal was added more than once")
		}
	})
	r.wait()
	r.drop(dc, recv, send)
}

// progBadTeam is a barrier of a team that is not there: refused, and the id works for one that is.
func progBadTeam(r *rank) {
	dc := r.devComm(doorbell.Needs{Barriers: 1})
	r.run(func(t gpu.Thread) {
		d, co := dc.Device(), gin.ByThread(t)
		c, world := gin.Open(&d, 0), gin.World(&d)
		bad := []gin.Team{
			{Ranks: world.Ranks + 1, Rank: world.Rank, Stride: 1},
			{Ranks: 2, Rank: 0, Stride: 1 << 30},
			{Ranks: 2, Rank: 1, Stride: -(1 << 30)},
			{Ranks: 2, Rank: 2, Stride: 1},
			{Ranks: 2, Rank: -1, Stride: 1},
			{},
		}
		for i := range 20 {
			for j, team := range bad {
				expect(c.Barrier(co, team, 0, gin.FencePut), gin.Invalid, "team %d", j)
			}
			ok(c.Barrier(co, world, 0, gin.FencePut), "barrier %d after refusals", i)
		}
	})
	r.drop(dc)
}
