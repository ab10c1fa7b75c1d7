// SPDX-License-Identifier: Apache-2.0

package kernels

import (
	"github.com/doorbell-net/doorbell/gin"
	"github.com/doorbell-net/doorbell/gpu"
)

// PostArgs of PostKernel. Put k of X.Iters goes to offset (k*Step) % Span, of source and destination.
type PostArgs struct {
	X      Exchange
	Span   uint64
	Step   uint64
	Signal int32 // 1: each put raises signal 0; 0: one signal follows them
	_      int32
}

// Post, on the lower rank, posts X.Iters puts of X.Bytes, one after the other, and waits for nobody: a queue deeper than
// that has room for all. Ns is what posting them took the device. The other rank waits until signal 0 is X.Base.
//
//gpu:kernel warps=1
func Post(t gpu.Thread, a PostArgs) {
	if t.Index() != 0 {
		return // one thread
	}
	r := a.X.Result.Raw()
	c := gin.Open(&a.X.DC, 0)
	c.SetReleased(gpu.ScopeSys) // the send window was written before the kernel began
	co, world := gin.ByThread(t), gin.World(&a.X.DC)
	if a.X.DC.Rank > a.X.Peer {
		r.Status = c.WaitSignal(co, 0, a.X.Base, 64, gin.FromPeer(world, a.X.Peer))
		r.Done = 1
		return
	}
	act := gin.None()
	if a.Signal != 0 {
		act = gin.StrongInc(0)
	}
	off := uint64(0)
	start := t.Clock()
	for i := range a.X.Iters {
		if s := c.Put(co, world, a.X.Peer, a.X.Recv, off, a.X.Send, off, a.X.Bytes, act); s != gin.OK {
			r.Status, r.At = s, i
			return
		}
		if off += a.Step; off >= a.Span {
			off = 0
		}
	}
	r.Ns, r.Count = t.Clock()-start, a.X.Iters
	s := gin.OK
	if a.Signal == 0 {
		s = c.Signal(co, world, a.X.Peer, gin.StrongInc(0))
	}
	if s == gin.OK {
		s = c.Flush(co)
	}
	r.Status, r.Done = s, 1
}
