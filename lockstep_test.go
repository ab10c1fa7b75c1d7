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
