// SPDX-License-Identifier: Apache-2.0

package kernels

import (
	"github.com/doorbell-net/doorbell/gin"
	"github.com/doorbell-net/doorbell/gpu"
)

// Result is what a kernel leaves for the host: 64 bytes, written by one thread.
type Result struct {
	Status gin.Status // of the first call that failed
	Done   uint32     // 1 when the kernel has ended
	At     uint64     // iteration of that call
	Ns     uint64     // time of the measured part
	Count  uint64     // operations in it
	Wrong  uint64     // values found wrong in it
	_      [24]byte
}

// Exchange is two ranks that send to each other.
type Exchange struct {
	DC      gin.DevComm
	Send    gin.Window
	Recv    gin.Window
	SendOff uint64
	RecvOff uint64
	Bytes   uint64
	Iters   uint64
	Base    uint64          // value of signal 0 before
	Samples gpu.Ptr[uint32] // ns per iteration, mean of Every, room for Iters/Every; nil: none
	Every   uint64          // iterations of a sample
	Result  gpu.Ptr[Result]
	Peer    int32
	LSA     int32 // 1: by stores, 0: by put
}

// PingPong sends Bytes there and back Iters times; the lower rank begins. One thread; put and signal are one
// operation. A sample is the mean of Every round trips: a look at the clock takes as long as a line's way.
//
//gpu:kernel warps=1
func PingPong(t gpu.Thread, a Exchange) {
	if t.Index() != 0 {
		return // one thread
	}
	r := a.Result.Raw()
	c := gin.Open(&a.DC, 0)
	c.SetReleased(gpu.ScopeSys) // the send window was written before the kernel began
	world := gin.World(&a.DC)
	start := t.Clock()
	last, left, sample := start, a.Every, 0 // counted down: a division takes a GPU 0.1 us
	turn := a.DC.Rank < a.Peer
	for k := range 2 * a.Iters { // one place that sends and one that waits: what runs again and again is to fit a GPU's nearest cache
		s := gin.OK
		if turn {
			s = a.send(t, &c, world)
		} else {
			s = c.WaitSignal(gin.ByThread(t), 0, a.Base+k/2+1, 64, gin.FromPeer(world, a.Peer))
		}
		if s != gin.OK {
			r.Status, r.At = s, k/2
			return
		}
		turn = !turn
		if k&1 == 0 {
			continue
		}
		if left--; left == 0 && !a.Samples.IsNil() {
			now := t.Clock()
			a.Samples.At(sample).Store(uint32(min((now-last)/a.Every, 1<<32-1)))
			last, left = now, a.Every
			sample++
		}
	}
	r.Ns, r.Count = t.Clock()-start, a.Iters
	r.Status = c.Flush(gin.ByThread(t)) // the host fills the send window next
	r.Done = 1
}

func (a *Exchange) send(t gpu.Thread, c *gin.Context, world gin.Team) gin.Status {
	co := gin.ByThread(t)
	if a.LSA == 0 {
		return c.Put(co, world, a.Peer, a.Recv, a.RecvOff, a.Send, a.SendOff, a.Bytes, gin.StrongInc(0))
	}
	peer := gin.LSARank(&a.DC, a.Peer)
	if s := c.LSAPut(co, peer, a.Recv, a.RecvOff, a.Send.Base.Byte(a.SendOff), a.Bytes); s != gin.OK {
		return s
	}
	return c.LSASignal(co, peer, 0, 1)
}

// BandwidthArgs of BandwidthKernel.
type BandwidthArgs struct {
	X     Exchange
	Batch uint64 // operations of an iteration; two iterations' are in flight
	Span  uint64 // operation k of all goes to offset (k*Stride) % Span, of source and destination
	Step  uint64
}

// Bandwidth sends Batch puts of Bytes an iteration from the lower rank. The other answers each batch that has arrived, and the
// sender posts the next while the last one is on its way: the network has something to do at any time.
//
//gpu:kernel warps=1
func Bandwidth(t gpu.Thread, a BandwidthArgs) {
	if t.Index() != 0 {
		return // one thread
	}
	r := a.X.Result.Raw()
	c := gin.Open(&a.X.DC, 0)
	c.SetReleased(gpu.ScopeSys) // the send window was written before the kernel began
	world := gin.World(&a.X.DC)
	co := gin.ByThread(t)
	from := gin.FromPeer(world, a.X.Peer)
	sender := a.X.DC.Rank < a.X.Peer
	start := t.Clock()
	off := uint64(0)
	sendOff, recvOff := a.X.SendOff, a.X.RecvOff
	turns := a.X.Iters
	if sender {
		turns++ // the last one's answer
	}
	for i := range turns {
		s := gin.OK
		if sender {
			for k := uint64(0); k < a.Batch && i < a.X.Iters && s == gin.OK; k++ {
				a.X.SendOff, a.X.RecvOff = sendOff+off, recvOff+off
				s = a.X.send(t, &c, world)
				if off += a.Step; off >= a.Span {
					off = 0
				}
			}
			if s == gin.OK {
				s = c.WaitSignal(co, 0, a.X.Base+i, 64, from) // that the batch before this one has arrived
			}
		} else {
			s = c.WaitSignal(co, 0, a.X.Base+(i+1)*a.Batch, 64, from)
			if s == gin.OK {
				s = a.answer(t, &c, world)
			}
		}
		if s != gin.OK {
			r.Status, r.At = s, i
			return
		}
	}
	r.Ns, r.Count = t.Clock()-start, a.X.Iters*a.Batch
	r.Status = c.Flush(co) // the host fills the send window next
	r.Done = 1
}

func (a *BandwidthArgs) answer(t gpu.Thread, c *gin.Context, world gin.Team) gin.Status {
	if a.X.LSA == 0 {
		return c.Signal(gin.ByThread(t), world, a.X.Peer, gin.StrongInc(0))
	}
	return c.LSASignal(gin.ByThread(t), gin.LSARank(&a.X.DC, a.X.Peer), 0, 1)
}
