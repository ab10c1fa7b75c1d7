// SPDX-License-Identifier: Apache-2.0

package kernels

import (
	"github.com/doorbell-net/doorbell/gin"
	"github.com/doorbell-net/doorbell/gpu"
)

// SelfByThread puts Bytes to this rank itself by stores, raises a signal, and waits for it, Iters times: one way, and nobody else
// has a part in it. Of the exchange, the peer is not looked at; a sample is the mean of Every, a power of two.
//
//gpu:kernel warps=1
func SelfByThread(t gpu.Thread, a Exchange) {
	if t.Index() == 0 {
		a.toSelf(t, gin.ByThread(t))
	}
}

// SelfByWarp is the same by a warp.
//
//gpu:kernel warps=1
func SelfByWarp(t gpu.Thread, a Exchange) { a.toSelf(t, gin.ByWarp(t)) }

// SelfByBlock is the same by a block.
//
//gpu:kernel
func SelfByBlock(t gpu.Thread, a Exchange) { a.toSelf(t, gin.ByBlock(t)) }

func (x *Exchange) toSelf(t gpu.Thread, co gin.Coop) {
	c := gin.Open(&x.DC, 0)
	self, from := x.DC.LSARank, gin.FromPeer(gin.World(&x.DC), x.DC.Rank)
	last := t.Clock()
	for i := range x.Iters {
		s := c.LSAPut(co, self, x.Recv, x.RecvOff, x.Send.Base.Byte(x.SendOff), x.Bytes)
		if s == gin.OK {
			s = c.LSASignal(co, self, 0, 1)
		}
		if s == gin.OK {
			s = c.WaitSignal(co, 0, x.Base+i+1, 64, from)
		}
		if t.Index() == 0 && s != gin.OK {
			r := x.Result.Raw()
			r.Status, r.At = s, i
		}
		if s != gin.OK {
			return
		}
		if t.Index() == 0 && (i+1)&(x.Every-1) == 0 && !x.Samples.IsNil() {
			now := t.Clock()
			x.Samples.At(int(i / x.Every)).Store(uint32(min((now-last)/x.Every, 1<<32-1)))
			last = now
		}
	}
	if t.Index() == 0 {
		r := x.Result.Raw()
		r.Count, r.Done = x.Iters, 1
	}
}
