// SPDX-License-Identifier: Apache-2.0

package kernels

import (
	"math/bits"

	"github.com/doorbell-net/doorbell/gin"
	"github.com/doorbell-net/doorbell/gpu"
)

// SelfByThread puts Bytes to this rank itself by stores, raises a signal, and waits for it, Iters times: one way, and nobody else
// has a part in it. Of the exchange, the peer is not looked at; a sample is the clock after each Every, a power of two or 0.
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
	for n := uint32(1); uint64(n) <= x.Iters; n++ {
		s := c.LSAPut(co, self, x.Recv, x.RecvOff, x.Send.Base.Byte(x.SendOff), x.Bytes)
		if s == gin.OK {
			s = c.LSASignal(co, self, 0, 1)
		}
		if s == gin.OK {
			s = c.WaitSignal(co, 0, x.Base+uint64(n), 64, from)
		}
		if s != gin.OK {
			if t.Index() == 0 {
				r := x.Result.Raw()
				r.Status, r.At = s, uint64(n-1)
			}
			return
		}
		x.stamp(t, n)
	}
	x.done(t)
}

// stamp notes the clock, modulo 2^32, after each Every messages; never where that is 0.
func (x *Exchange) stamp(t gpu.Thread, n uint32) {
	if t.Index() == 0 && n&uint32(x.Every-1) == 0 {
		x.Samples.At(int(n>>(bits.TrailingZeros64(x.Every)&31)) - 1).Store(uint32(t.Clock())) // a division takes a GPU 0.1 us
	}
}

func (x *Exchange) done(t gpu.Thread) {
	if t.Index() == 0 {
		r := x.Result.Raw()
		r.Count, r.Done = x.Iters, 1
	}
}

// PointersByThread is SelfByThread by what a kernel writes itself to a peer's address, as NCCL's program does: nothing is checked, and
// the signal is a word at the end of the send window.
//
//gpu:kernel warps=1
func PointersByThread(t gpu.Thread, a Exchange) {
	if t.Index() == 0 {
		a.byPointers(t, alone)
	}
}

// PointersByWarp is the same by a warp.
//
//gpu:kernel warps=1
func PointersByWarp(t gpu.Thread, a Exchange) { a.byPointers(t, warp) }

// PointersByBlock is the same by a block.
//
//gpu:kernel
func PointersByBlock(t gpu.Thread, a Exchange) { a.byPointers(t, block) }

// group is who copies together.
type group int32

const (
	alone group = iota
	warp
	block
)

func (g group) copy(t gpu.Thread, to, from gpu.Ptr[byte], bytes uint64) {
	switch {
	case bytes == 8:
		if t.Index() == 0 {
			gpu.Cast[uint64](to).Store(gpu.Cast[uint64](from).Load())
		}
	case g == alone:
		gpu.CopyThread(to, from, bytes)
	case g == warp:
		gpu.CopyWarp(t, to, from, bytes)
	default:
		gpu.CopyBlock(t, to, from, bytes)
	}
}

// meet lets the group's threads go on when each has come.
func (g group) meet(t gpu.Thread) {
	if g != alone {
		t.SyncBlock()
	}
}

// came says to all threads whether the signal did.
var came gpu.Shared[bool]

func (x *Exchange) byPointers(t gpu.Thread, g group) {
	self, end := x.DC.LSARank, x.Send.Size-8
	to, from := gin.LSAPointer(x.Recv, self, x.RecvOff), x.Send.Base.Byte(x.SendOff)
	raised, flag := gpu.Cast[uint64](gin.LSAPointer(x.Send, self, end)), gpu.Cast[uint64](x.Send.Base.Byte(end))
	ok := came.Of(t)
	for n := uint32(1); uint64(n) <= x.Iters; n++ {
		g.copy(t, to, from, x.Bytes)
		g.meet(t)
		if want := x.Base + uint64(n); t.Index() == 0 {
			gpu.Store(raised, want, gpu.Release, gpu.ScopeSys)
			*ok = await(t, flag, want)
		}
		g.meet(t)
		if !*ok {
			return
		}
		x.stamp(t, n)
		g.meet(t) // before ok is written again
	}
	x.done(t)
}

// awaitLooks is how often a bare wait looks: a second at least.
const awaitLooks = 1 << 23

func await(t gpu.Thread, flag gpu.Ptr[uint64], least uint64) bool {
	for range awaitLooks {
		if gpu.Load(flag, gpu.Acquire, gpu.ScopeSys) >= least {
			return true
		}
		t.Relax(0)
	}
	return false
}
