// SPDX-License-Identifier: Apache-2.0

// Package gintest has kernels that use each operation of gin, so that all of it is compiled for a GPU, and leaves the same
// there as on goroutines. Tests launch them.
package gintest

import (
	"github.com/doorbell-net/doorbell/gin"
	"github.com/doorbell-net/doorbell/gpu"
)

//go:generate go run ../../cmd/gpuc .

// OpsArgs are Ops'. The communicator has 2 contexts, 3 signals, 1 counter and 1 barrier, and Needs.Fence; Send and Recv have
// 3*Bytes bytes each, Signals 4 words, Requests room for a request for each rank.
type OpsArgs struct {
	DC         gin.DevComm
	Send, Recv gin.Window
	Signals    gin.SignalWindow
	Requests   gpu.Ptr[gin.Request]
	Results    gpu.Ptr[uint64] // Results of them
	Bytes      uint64
	Round      uint64 // 0 at first, one more with each launch
	Peer       int32
}

// Results is how many numbers Ops leaves.
const Results = 48

// trace writes down what happened.
type trace struct {
	at gpu.Ptr[uint64]
	n  int
}

func (r *trace) add(t gpu.Thread, v uint64) {
	if t.Lane() == 0 {
		r.at.At(r.n).Store(v)
	}
	r.n++
}

func (r *trace) status(t gpu.Thread, s gin.Status) { r.add(t, uint64(s)) }

// Ops does with Peer, which does the same, what Put, Signal and WaitSignal of other kernels leave out. One warp runs it.
//
//gpu:kernel
func Ops(t gpu.Thread, a OpsArgs) {
	co, r := gin.ByWarp(t), trace{at: a.Results}
	c, world := gin.Open(&a.DC, 1), gin.World(&a.DC)
	n := a.Bytes
	src := gin.FromPeer(world, a.Peer)

	// Signals by id, weak and strong, and at addresses, with a counter in the same descriptor.
	r.status(t, c.Put(co, world, a.Peer, a.Recv, 0, a.Send, 0, n, gin.WeakInc(0).Counter(0)))
	r.status(t, c.Put(co, world, a.Peer, a.Recv, n, a.Send, n, n, gin.StrongAddAt(a.Signals, 8, 5).Counter(0)))
	r.status(t, c.PutValue(co, world, a.Peer, a.Recv, 2*n, 0x1122334455667788, 8, gin.WeakIncAt(a.Signals, 16)))
	r.status(t, c.Signal(co, world, a.Peer, gin.WeakAdd(1, 1<<40).Aggregate()))
	r.status(t, c.Signal(co, world, a.Peer, gin.StrongIncAt(a.Signals, 16).SkipCredit()))
	r.status(t, c.WaitSignal(co, 0, a.Round+1, 64, src))
	r.status(t, c.WaitSignalAt(co, a.Signals, 8, 5*(a.Round+1), 64, src))
	r.status(t, c.WaitSignalAt(co, a.Signals, 16, 2*(a.Round+1), 64, src))
	r.status(t, c.WaitSignal(co, 1, 1<<40*(a.Round+1), 64, src))
	r.status(t, c.WaitCounter(co, 0, 3*a.Round+2, 64, src))
	r.add(t, c.ReadSignal(0))
	r.add(t, c.ReadSignal(1))
	r.add(t, c.ReadSignalAt(a.Signals, 8))
	r.add(t, c.ReadSignalAt(a.Signals, 16))
	r.add(t, c.ReadCounter(0))

	// Requests, of one peer and of all.
	one, s := c.FlushAsync(co, world, a.Peer)
	r.status(t, s)
	r.status(t, c.Wait(co, one))
	done, s := c.Test(t, one)
	r.status(t, s)
	r.add(t, bit(done))
	r.status(t, c.FlushAllAsync(co, a.Requests))
	r.status(t, c.WaitAll(co, a.Requests))
	done, s = c.TestAll(t, a.Requests)
	r.status(t, s)
	r.add(t, bit(done))

	// Shadows.
	if t.Lane() == 0 {
		c.AddShadow(0, 1)
	}
	t.SyncWarp()
	r.status(t, c.WaitMeet(co, 0, src))
	before, delta, s := c.WaitFollow(co, 1, 1<<40, src)
	r.status(t, s)
	r.add(t, before)
	r.add(t, delta)
	r.add(t, c.Shadow(0))

	// Nobody gets before all has arrived at the peer: it says so itself.
	r.status(t, c.Barrier(co, world, 0, gin.FencePut))
	r.status(t, c.Get(co, world, a.Peer, a.Recv, 0, a.Send, 2*n, n, gin.None().Counter(0)))
	r.status(t, c.FlushPeer(co, world, a.Peer))
	r.status(t, c.FenceContexts(co, world, a.Peer, 0, 2))
	r.status(t, c.Barrier(co, world, 0, gin.FencePut))

	// What is refused.
	r.status(t, c.Get(co, world, a.Peer, a.Recv, 3*n+8, a.Send, 0, 8, gin.None()))
	r.status(t, c.Get(co, world, a.Peer, a.Recv, 0, a.Send, 0, 8, gin.StrongInc(0)))
	r.status(t, c.Signal(co, world, a.Peer, gin.StrongIncAt(a.Signals, 4)))
	r.status(t, c.Signal(co, world, a.Peer, gin.StrongIncAt(a.Signals, 32)))
	r.status(t, c.WaitSignalAt(co, a.Signals, 32, 0, 64, src))
	r.status(t, c.FenceContexts(co, world, a.Peer, 1, 2))

	// LSA signals at an address, of this rank by itself.
	r.status(t, c.LSASignalAt(co, a.DC.LSARank, a.Signals, 24, 3))
	r.status(t, c.WaitSignalAt(co, a.Signals, 24, 3, 64, gin.FromAny()))
	r.add(t, c.ReadSignalAt(a.Signals, 24))
	r.status(t, c.ResetSignalAt(co, a.Signals, 24))
	r.add(t, c.ReadSignalAt(a.Signals, 24))
}

func bit(b bool) uint64 {
	if b {
		return 1
	}
	return 0
}
