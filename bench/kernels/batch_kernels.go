// SPDX-License-Identifier: Apache-2.0

package kernels

import (
	"github.com/doorbell-net/doorbell/gin"
	"github.com/doorbell-net/doorbell/gpu"
)

// BatchArgs of BatchKernel.
type BatchArgs struct {
	Post  PostArgs // X.Iters is a multiple of Batch, and with Lanes of a warp's
	Batch uint32   // puts of a thread that go by one announcement
	Lanes uint32   // 1: all lanes of the warp post together, each a part of the puts; 0: one thread posts all
}

// Batch is what Post does on the lower rank, whose puts are announced several at once.
//
//gpu:kernel warps=1
func Batch(t gpu.Thread, a BatchArgs) {
	co, first, lanes := gin.ByThread(t), uint64(0), uint64(1)
	if a.Lanes != 0 {
		co, first, lanes = gin.ByLanes(t), uint64(t.Lane()), gpu.WarpSize
	} else if t.Index() != 0 {
		return // one thread
	}
	x := &a.Post.X
	c := gin.Open(&x.DC, 0)
	c.SetReleased(gpu.ScopeSys) // the send window was written before the kernel began
	world := gin.World(&x.DC)
	ring := gin.None()
	if a.Post.Signal != 0 {
		ring = gin.StrongInc(0)
	}
	off, left, status, at := first*a.Post.Step%a.Post.Span, a.Batch, gin.OK, uint64(0)
	start := t.Clock()
	for i := first; i < x.Iters; i += lanes { // all lanes go on after a failure: they post together
		act := ring.Aggregate()
		if left--; left == 0 {
			act, left = ring, a.Batch
		}
		if s := c.Put(co, world, x.Peer, x.Recv, off, x.Send, off, x.Bytes, act); s != gin.OK && status == gin.OK {
			status, at = s, i
		}
		off += lanes * a.Post.Step
		for off >= a.Post.Span {
			off -= a.Post.Span
		}
	}
	ns, r := t.Clock()-start, x.Result.Raw()
	failed := status != gin.OK
	if failed {
		r.Status, r.At = status, at // of several lanes one's
	}
	if a.Lanes != 0 {
		failed = gpu.Any(t, failed)
	}
	if failed || t.Lane() != 0 {
		return
	}
	thread, s := gin.ByThread(t), gin.OK
	if a.Post.Signal == 0 {
		s = c.Signal(thread, world, x.Peer, gin.StrongInc(0))
	}
	if s == gin.OK {
		s = c.Flush(thread)
	}
	r.Ns, r.Count, r.Status, r.Done = ns, x.Iters, s, 1
}

// PostedArgs of PostedKernel.
type PostedArgs struct {
	DC     gin.DevComm
	Result gpu.Ptr[Result]
	Queue  int32
	_      int32
}

// Posted says how far a queue pair is: Count is how often its doorbell was rung, At the number of the first WQE that no doorbell
// told of.
//
//gpu:kernel warps=1
func Posted(t gpu.Thread, a PostedArgs) {
	if t.Index() != 0 {
		return // one thread
	}
	p, r := a.DC.Prod.At(int(a.Queue)).Raw(), a.Result.Raw()
	r.Count = gpu.Load(gpu.PtrTo(&p.Bells), gpu.Relaxed, gpu.ScopeGPU)
	r.At = gpu.Load(gpu.PtrTo(&p.Rung), gpu.Relaxed, gpu.ScopeGPU)
	r.Done = 1
}
