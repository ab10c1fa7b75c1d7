// SPDX-License-Identifier: Apache-2.0

//go:build lockstep

package doorbell_test

import (
	"testing"

	"github.com/doorbell-net/doorbell"
	"github.com/doorbell-net/doorbell/gin"
	"github.com/doorbell-net/doorbell/gpu"
)

// TestTeamworkInWarps: barriers of each kind and LLA2A, by warps and by blocks of 32 lanes that meet where a GPU asks for it,
// and order what all lanes wrote.
func TestTeamworkInWarps(t *testing.T) {
	for _, perNode := range []int{0, 2} {
		each(t, local(t, 4, doorbell.Options{RanksPerNode: perNode}), func(r *rank) {
			const warps, rounds = 2, 5
			lanes := warps * gpu.WarpSize
			dc := r.devComm(doorbell.Needs{Barriers: 4, LLA2ABlocks: 1, LLA2ASlots: r.Size() * lanes})
			w := r.window(8 * lanes)
			r.startLanes(doorbell.Grid{Blocks: 1, Warps: warps}, func(t gpu.Thread) {
				d := dc.Device()
				c, lsa, world, block := gin.Open(&d, 0), gin.LSA(&d), gin.World(&d), gin.ByBlock(t)
				l, s := c.LLA2A(block, 0)
				ok(s, "session")
				mine := gpu.Cast[uint64](w.Device().Base).At(int(t.Index()))
				for i := range uint64(rounds) {
					mine.Store(draw(lsa.Rank, uint64(t.Index()), i))
					ok(c.LSABarrier(block, 0), "LSA barrier")
					for p := range lsa.Ranks {
						theirs := gin.LSAPointer(w.Device(), p, 8*uint64(t.Index()^1))
						if got := gpu.Cast[uint64](theirs).Load(); got != draw(p, uint64(t.Index()^1), i) {
							panic("a word of an LSA peer before its barrier")
						}
					}
					ok(c.Barrier(block, world, 1, gin.FencePut), "barrier")
					ok(c.HybridBarrier(block, 2, gin.FencePut), "hybrid barrier")
					if t.Warp() == 0 {
						ok(c.Barrier(gin.ByWarp(t), world, 3, 0), "barrier of a warp")
					}
					for p := range lsa.Ranks {
						ok(l.Send(p, lsa.Rank*int32(lanes)+t.Index(), draw(lsa.Rank+p, uint64(t.Index()), i)), "send")
					}
					for p := range lsa.Ranks {
						v, s := l.Recv(p*int32(lanes)+t.Index(), gin.FromPeer(lsa, p))
						if ok(s, "receive"); v != draw(lsa.Rank+p, uint64(t.Index()), i) {
							panic("a word of another lane, rank or epoch")
						}
					}
					ok(l.EndEpoch(), "end of epoch")
				}
			})
			r.wait()
			r.drop(dc)
		})
	}
}

// TestLSABarrierInWarps: lanes that tell and hear ranks of their own end together. Where one hears nothing all time out,
// and the call that is repeated ends when the last rank has come. Where the lane that posted hears of its rank at once,
// what it has aggregated leaves all the same: another lane's rank comes after that.
func TestLSABarrierInWarps(t *testing.T) {
	each(t, local(t, 3, doorbell.Options{Backend: "gdaki"}), func(r *rank) {
		dc := r.devComm(doorbell.Needs{Barriers: 1, Signals: 1, Sharing: doorbell.OneThread})
		if r.Rank() != 2 {
			r.startLanes(one, func(t gpu.Thread) {
				d := dc.Device()
				c := gin.Open(&d, 0)
				c.SetTimeout(1e6)
				for i := range 3 {
					expect(c.LSABarrier(gin.ByWarp(t), 0), gin.Timeout, "barrier %d without rank 2", i)
				}
			})
			r.wait()
		}
		r.sync()
		r.startLanes(one, func(t gpu.Thread) {
			d := dc.Device()
			c, warp, world := gin.Open(&d, 0), gin.ByWarp(t), gin.World(&d)
			c.SetTimeout(5e9)
			ok(c.LSABarrier(warp, 0), "barrier after timeouts")
			switch d.Rank {
			case 0:
				ok(c.WaitSignal(warp, 0, 1, 64, gin.FromPeer(world, 1)), "rank 1, which is about to arrive")
				ok(c.Signal(warp, world, 2, gin.StrongInc(0).Aggregate()), "what rank 2 waits for")
			case 1:
				ok(c.Signal(warp, world, 0, gin.StrongInc(0)), "signal")
			case 2:
				ok(c.WaitSignal(warp, 0, 1, 64, gin.FromPeer(world, 0)), "wait before the barrier")
			}
			ok(c.LSABarrier(warp, 0), "barrier behind what was aggregated")
		})
		r.wait()
		r.drop(dc)
	})
}
