// SPDX-License-Identifier: Apache-2.0

// Package teamwork has kernels that use what gin has for ranks that work together.
package teamwork

import (
	"github.com/doorbell-net/doorbell/gin"
	"github.com/doorbell-net/doorbell/gpu"
)

// Args of all kernels here.
type Args struct {
	DC     gin.DevComm
	W      gin.Window
	Out    gpu.Ptr[uint64]
	Fence  gin.Fence
	Op     gin.Op
	Peer   int32
	Status gpu.Ptr[gin.Status]
}

func (a *Args) tell(s gin.Status) {
	if s != gin.OK {
		a.Status.Store(s)
	}
}

//gpu:kernel
func Barriers(t gpu.Thread, a Args) {
	c, co := gin.Open(&a.DC, 0), gin.ByBlock(t)
	a.tell(c.LSABarrier(co, 0))
	a.tell(c.Barrier(co, gin.Rail(&a.DC), 0, a.Fence))
	a.tell(c.HybridBarrier(co, 1, a.Fence))
	a.Out.Store(uint64(gin.RankInDifference(gin.World(&a.DC), gin.LSA(&a.DC), a.Peer)))
}

//gpu:kernel
func Multimem(t gpu.Thread, a Args) {
	c := gin.Open(&a.DC, 0)
	m, s := c.Multimem(a.W)
	a.tell(s)
	a.tell(gin.MultimemStore(&m, 0, uint64(7)))
	a.tell(gin.MultimemStore(&m, 16, gpu.U32x4{1, 2, 3, 4}))
	i, s := gin.MultimemReduce[int32](&m, 0, a.Op)
	a.tell(s)
	u, s := gin.MultimemReduce[uint64](&m, 0, gin.Sum)
	a.tell(s)
	f, s := gin.MultimemReduceFloat[gin.F32](&m, 0, a.Op)
	a.tell(s)
	h, s := gin.MultimemReduceFloat[gin.F16](&m, 0, a.Op)
	a.tell(s)
	b, s := gin.MultimemReduceFloat[gin.BF16](&m, 0, a.Op)
	a.tell(s)
	a.Out.Store(u + uint64(i) + f.Bits() + h.Bits() + b.Bits())
}

//gpu:kernel
func AllToAll(t gpu.Thread, a Args) {
	c := gin.Open(&a.DC, 0)
	s, r := c.LLA2A(gin.ByBlock(t), t.Block())
	a.tell(r)
	lsa := gin.LSA(&a.DC)
	a.tell(s.Send(a.Peer, lsa.Rank, 1))
	a.tell(s.Bcast(lsa.Ranks+lsa.Rank, 2))
	a.tell(s.SendFrom(a.Peer, 2*lsa.Ranks, a.W.Base, 20))
	v, r := s.Recv(0, gin.FromPeer(lsa, 0))
	a.tell(r)
	sum, r := gin.RecvReduce[uint64](&s, lsa.Ranks, 1, lsa.Ranks, a.Op, gin.FromTeam(lsa))
	a.tell(r)
	f, r := gin.RecvReduceFloat[gin.BF16](&s, lsa.Ranks, 1, lsa.Ranks, a.Op, gin.FromTeam(lsa))
	a.tell(r)
	a.tell(s.RecvInto(2*lsa.Ranks, a.W.Base, 20, gin.FromTeam(lsa)))
	a.tell(s.EndEpoch())
	a.Out.Store(v + sum + f.Bits())
}
