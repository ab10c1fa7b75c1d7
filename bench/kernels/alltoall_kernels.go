// SPDX-License-Identifier: Apache-2.0

package kernels

import (
	"github.com/doorbell-net/doorbell/gin"
	"github.com/doorbell-net/doorbell/gpu"
)

// AllToAll sends Bytes from each rank to each, Iters times: chunk p of the send window to chunk (own rank) of rank p's
// receive window, by stores to LSA peers if LSA is 1, by puts to the others. Signal s counts what came from rank s. One
// block; each warp serves its share of the peers, itself included. Samples are rounds; Step is the distance of chunks.
// Of 32 warps a thread has 64 registers, and the copy's eight loads on their way do not fit beside the rest.
//
//gpu:kernel warps=16
func AllToAll(t gpu.Thread, a AllToAllArgs) {
	r := a.X.Result.Raw()
	c := gin.Open(&a.X.DC, 0)
	world := gin.World(&a.X.DC)
	start := t.Clock()
	last := start
	for i := range a.X.Iters {
		s := gin.OK
		for k := t.Warp(); k < world.Ranks; k += t.Warps() {
			p := (world.Rank + k) % world.Ranks // not all to rank 0 at once
			if q := a.send(t, &c, world, p); q != gin.OK && s == gin.OK {
				s = q
			}
		}
		for k := t.Warp(); k < world.Ranks; k += t.Warps() {
			p := (world.Rank + world.Ranks - k) % world.Ranks
			if q := c.WaitSignal(gin.ByWarp(t), p, a.X.Base+i+1, 64, gin.FromPeer(world, p)); q != gin.OK && s == gin.OK {
				s = q
			}
		}
		if s != gin.OK {
			r.Status, r.At = s, i // of any warp: one is as good as another
		}
		t.SyncBlock()
		if r.Status != gin.OK {
			return
		}
		if t.Index() == 0 && !a.X.Samples.IsNil() {
			now := t.Clock()
			a.X.Samples.At(int(i)).Store(uint32(min(now-last, 1<<32-1)))
			last = now
		}
		t.SyncBlock() // nobody writes the status of the next round while somebody reads this one's
	}
	ns := t.Clock() - start
	s := c.Flush(gin.ByBlock(t)) // the host fills the send window next
	if t.Index() == 0 {
		r.Ns, r.Count, r.Status, r.Done = ns, a.X.Iters, s, 1
	}
}

// AllToAllArgs of AllToAllKernel.
type AllToAllArgs struct {
	X    Exchange
	Step uint64
}

func (a *AllToAllArgs) send(t gpu.Thread, c *gin.Context, world gin.Team, p int32) gin.Status {
	co := gin.ByWarp(t)
	from, to := uint64(p)*a.Step, uint64(world.Rank)*a.Step
	peer := gin.LSARank(&a.X.DC, p)
	if a.X.LSA == 0 || peer < 0 {
		return c.Put(co, world, p, a.X.Recv, to, a.X.Send, from, a.X.Bytes, gin.StrongInc(world.Rank))
	}
	if s := c.LSAPut(co, peer, a.X.Recv, to, a.X.Send.Base.Byte(from), a.X.Bytes); s != gin.OK {
		return s
	}
	return c.LSASignal(co, peer, world.Rank, 1)
}
