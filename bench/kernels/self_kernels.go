// SPDX-License-Identifier: Apache-2.0

package kernels

import (
	"math/bits"

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
	last, shift := t.Clock(), bits.TrailingZeros64(x.Every) // a division takes a GPU 0.1 us
	for n := uint64(1); n <= x.Iters; n++ {
		s := c.LSAPut(co, self, x.Recv, x.RecvOff, x.Send.Base.Byte(x.SendOff), x.Bytes)
		if s == gin.OK {
			s = c.LSASignal(co, self, 0, 1)
		}
		if s == gin.OK {
			s = c.WaitSignal(co, 0, x.Base+n, 64, from)
		}
		if t.Index() == 0 && s != gin.OK {
			r := x.Result.Raw()
			r.Status, r.At = s, n-1
		}
		if s != gin.OK {
			return
		}
		if t.Index() == 0 && n&(x.Every-1) == 0 && !x.Samples.IsNil() {
			now := t.Clock()
			x.Samples.At(int(n>>shift) - 1).Store(uint32(min((now-last)>>shift, 1<<32-1)))
			last = now
		}
	}
	if t.Index() == 0 {
		r := x.Result.Raw()
		r.Count, r.Done = x.Iters, 1
	}
}
