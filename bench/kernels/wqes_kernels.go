// SPDX-License-Identifier: Apache-2.0

package kernels

import (
	"github.com/doorbell-net/doorbell/gin"
	"github.com/doorbell-net/doorbell/gpu"
)

// WQEsArgs of WQEsKernel.
type WQEsArgs struct {
	X      Exchange // X.Iters puts of X.Bytes by each lane
	Value  int32    // 1: each is a value of 8 bytes, in its WQE; 0: of the send window
	Signal int32    // 1: each raises signal 0
	Lanes  int32    // 1: all lanes of the warp post together; 0: one thread posts
	_      int32
}

// WQEs does to a NIC what a put does and nothing else, so that its instructions can be counted: nothing is timed, and nobody waits
// for anything. The queue has room for all.
//
//gpu:kernel warps=1
func WQEs(t gpu.Thread, a WQEsArgs) {
	if a.Lanes != 0 {
		postAll(gin.ByLanes(t), &a, a.X.Bytes*uint64(t.Lane()))
	} else if t.Index() == 0 {
		postAll(gin.ByThread(t), &a, 0)
	}
}

// postAll does a thread's puts, from and to offset at.
func postAll(co gin.Coop, a *WQEsArgs, at uint64) {
	c, world, act := gin.Open(&a.X.DC, 0), gin.World(&a.X.DC), gin.None()
	if a.Signal != 0 {
		act = gin.StrongInc(0)
	}
	status := gin.OK
	for i := range a.X.Iters { // all lanes go on after a failure: they post together
		var s gin.Status
		if a.Value != 0 {
			s = c.PutValue(co, world, a.X.Peer, a.X.Recv, at, i, 8, act)
		} else {
			s = c.Put(co, world, a.X.Peer, a.X.Recv, at, a.X.Send, at, a.X.Bytes, act)
		}
		if s != gin.OK {
			status = s
		}
	}
	if r := a.X.Result.Raw(); status != gin.OK {
		r.Status = status // of several lanes one's
	}
}
