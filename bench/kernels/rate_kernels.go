// SPDX-License-Identifier: Apache-2.0

package kernels

import (
	"github.com/doorbell-net/doorbell/gin"
	"github.com/doorbell-net/doorbell/gpu"
)

// Rate's ring: Slots words of the window, a signal for each Group puts, an answer for each Ack of them.
const (
	RateSlots = 8192
	RateGroup = 64
	RateAck   = 1024
)

// RateArgs of RateKernel. X.Iters is the least number of puts, a multiple of RateAck; Ns how long to send.
type RateArgs struct {
	X    Exchange
	Ns   uint64
	Seed uint64
	Iter uint64
}

// Rate sends 8-byte puts of words of the window from the lower rank of a pair for a while. The receiver counts them by
// the signal that covers each group, and compares each word when its group is there. The last word of the window
// carries how many there were.
//
//gpu:kernel warps=1
func Rate(t gpu.Thread, a RateArgs) {
	if t.Index() != 0 {
		return // one thread
	}
	r := a.X.Result.Raw()
	c := gin.Open(&a.X.DC, 0)
	if a.X.DC.Rank < a.X.Peer {
		a.send(t, &c, r)
	} else {
		a.receive(t, &c, r)
	}
}

func (a *RateArgs) send(t gpu.Thread, c *gin.Context, r *Result) {
	co, world := gin.ByThread(t), gin.World(&a.X.DC)
	from := gin.FromPeer(world, a.X.Peer)
	me := a.X.DC.Rank
	start := t.Clock()
	n := uint64(0)
	for n < a.X.Iters || t.Clock()-start < a.Ns {
		if n >= RateSlots {
			// The receiver has looked at the slots that come next.
			if s := c.WaitSignal(co, 1, (n-RateSlots)/RateAck+1, 64, from); s != gin.OK {
				r.Status, r.At = s, n
				return
			}
		}
		for range RateAck {
			slot := n % RateSlots * 8
			gpu.Cast[uint64](a.X.Send.Base.Byte(slot)).Store(Pattern(a.Seed, me, a.Iter, n))
			n++
			act := gin.None()
			if n%RateGroup == 0 {
				act = gin.StrongAdd(0, RateGroup)
			}
			if s := c.Put(co, world, a.X.Peer, a.X.Recv, slot, a.X.Send, slot, 8, act); s != gin.OK {
				r.Status, r.At = s, n
				return
			}
		}
	}
	s := c.PutValue(co, world, a.X.Peer, a.X.Recv, RateSlots*8, n, 8, gin.StrongInc(2))
	if s == gin.OK {
		s = c.WaitSignal(co, 1, n/RateAck, 64, from)
	}
	r.At, r.Count, r.Ns = n, n, t.Clock()-start
	if s == gin.OK {
		s = c.Flush(co) // the host reads and writes the windows next
	}
	r.Status, r.Done = s, 1
}

func (a *RateArgs) receive(t gpu.Thread, c *gin.Context, r *Result) {
	co, world := gin.ByThread(t), gin.World(&a.X.DC)
	from := gin.FromPeer(world, a.X.Peer)
	total := ^uint64(0)
	n, wrong := uint64(0), uint64(0)
	start := uint64(0)
	for n < total {
		// At the end the total is there before the next group would be.
		for c.ReadSignal(0)-n < RateGroup && total == ^uint64(0) {
			if c.ReadSignal(2) != 0 {
				total = gpu.Cast[uint64](a.X.Recv.Base.Byte(RateSlots * 8)).Load()
				break
			}
			c.SetTimeout(20_000) // a short look, so that it sees either signal
			s := c.WaitSignal(co, 0, n+RateGroup, 64, from)
			c.SetTimeout(a.X.DC.Timeout)
			if s == gin.Timeout && (start == 0 || t.Clock()-start < a.Ns+a.X.DC.Timeout) {
				continue
			}
			if s != gin.OK {
				r.Status, r.At = s, n
				return
			}
		}
		if n >= total {
			break
		}
		if c.ReadSignal(0)-n < RateGroup || n+RateGroup > total {
			r.Status, r.At, r.Wrong = gin.OK, n, wrong+1 // fewer arrived than were sent
			return
		}
		if start == 0 {
			start = t.Clock()
		}
		for range RateGroup {
			if gpu.Cast[uint64](a.X.Recv.Base.Byte(n%RateSlots*8)).Load() != Pattern(a.Seed, a.X.Peer, a.Iter, n) {
				wrong++
			}
			n++
		}
		if n%RateAck == 0 {
			if s := c.Signal(co, world, a.X.Peer, gin.StrongInc(1)); s != gin.OK {
				r.Status, r.At = s, n
				return
			}
		}
	}
	r.Ns, r.Count, r.Wrong, r.Done = t.Clock()-start, n, wrong, 1
}
