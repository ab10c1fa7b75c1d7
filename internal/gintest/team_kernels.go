// SPDX-License-Identifier: Apache-2.0

package gintest

import (
	"github.com/doorbell-net/doorbell/gin"
	"github.com/doorbell-net/doorbell/gpu"
)

// TeamArgs are Team's. The communicator has 2 barriers and an LLA2A block with a slot for each LSA rank; W has 8 bytes for
// each rank.
type TeamArgs struct {
	DC     gin.DevComm
	W      gin.Window
	Result gpu.Ptr[uint64] // status, stores and sums that were wrong, rounds
	Rounds uint64
}

// Team goes through barriers of each kind and fence, and epochs of LLA2A, with all ranks. One warp runs it.
//
//gpu:kernel
func Team(t gpu.Thread, a TeamArgs) {
	co, c := gin.ByWarp(t), gin.Open(&a.DC, 0)
	world, lsa := gin.World(&a.DC), gin.LSA(&a.DC)
	l, s := c.LLA2A(co, 0)
	wrong, round := uint64(0), uint64(0)
	for ; round < a.Rounds && s == gin.OK; round++ {
		for p := range lsa.Ranks {
			gpu.Cast[uint64](gin.LSAPointer(a.W, p, 8*uint64(world.Rank))).Store(round + 1)
		}
		s = c.HybridBarrier(co, 0, gin.FencePut)
		for p := range lsa.Ranks {
			if gpu.Cast[uint64](gin.LSAPointer(a.W, lsa.Rank, 8*uint64(lsa.WorldRank(&a.DC, p)))).Load() != round+1 {
				wrong++
			}
		}
		if s == gin.OK {
			s = c.HybridBarrier(co, 0, gin.FenceNone)
		}
		for fence := gin.FenceNone; fence <= gin.FencePut|gin.FenceGet && s == gin.OK; fence++ {
			s = c.Barrier(co, world, 1, fence)
		}
		if s == gin.OK {
			s = c.LSABarrier(co, 1)
		}
		if s == gin.OK {
			s = l.Bcast(lsa.Rank, round+uint64(lsa.Rank)<<40)
		}
		if s == gin.OK {
			var sum uint64
			sum, s = gin.RecvReduce[uint64](&l, 0, 1, lsa.Ranks, gin.Max, gin.FromTeam(lsa))
			if sum != round+uint64(lsa.Ranks-1)<<40 {
				wrong++
			}
		}
		if s == gin.OK {
			s = l.EndEpoch()
		}
	}
	if t.Lane() == 0 {
		a.Result.Store(uint64(s))
		a.Result.At(1).Store(wrong)
		a.Result.At(2).Store(round)
	}
}
