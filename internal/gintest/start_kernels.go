// SPDX-License-Identifier: Apache-2.0

package gintest

import (
	"github.com/doorbell-net/doorbell/gin"
	"github.com/doorbell-net/doorbell/gpu"
)

// How the ranks' Start kernels meet.
const (
	MeetNobody = iota
	MeetByStores
	MeetByPuts
)

// StartArgs are Start's. The communicator has a barrier.
type StartArgs struct {
	DC      gin.DevComm
	Started gpu.Ptr[uint64] // memory of the host: the round that has begun here, the round that has ended, its status
	Round   uint64
	How     uint64
}

// Start says that it runs, and waits for the other ranks' that they do. One warp runs it.
//
//gpu:kernel
func Start(t gpu.Thread, a StartArgs) {
	co, c := gin.ByWarp(t), gin.Open(&a.DC, 0)
	if t.Lane() == 0 {
		gpu.Store(a.Started, a.Round, gpu.Release, gpu.ScopeSys)
	}
	s := gin.OK
	switch a.How {
	case MeetByStores:
		s = c.LSABarrier(co, 0)
	case MeetByPuts:
		s = c.Barrier(co, gin.World(&a.DC), 0, gin.FenceNone)
	}
	if t.Lane() == 0 {
		a.Started.At(2).Store(uint64(s))
		gpu.Store(a.Started.At(1), a.Round, gpu.Release, gpu.ScopeSys)
	}
}
