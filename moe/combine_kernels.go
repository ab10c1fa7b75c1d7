// SPDX-License-Identifier: Apache-2.0

package moe

import (
	"github.com/doorbell-net/doorbell/gin"
	"github.com/doorbell-net/doorbell/gpu"
)

// LLReturn sends the experts' outputs back to where their tokens came from, a warp for each local expert and rank, and
// says behind them that the expert has answered.
//
//gpu:kernel warps=16
func LLReturn(t gpu.Thread, a LL) {
	if a.Faults.over(t) {
		return
	}
	warp, warps := t.Block()*t.Warps()+t.Warp(), t.Blocks()*t.Warps()
	first := a.first(a.DC.Rank)
	locals := a.first(a.DC.Rank+1) - first
	world := gin.World(&a.DC)
	if t.Block() == 0 && t.Index() == 0 {
		n := a.Answers.At(int(a.set()))
		n.Store(n.Load() + 1)
	}
	for i := warp; i < locals*a.DC.Ranks; i += warps {
		local, dst := i/a.DC.Ranks, (a.DC.Rank+i)%a.DC.Ranks
		if a.Missing.has(dst) {
			continue
		}
		b := a.Blocks.At(int(local*a.DC.Ranks + dst)).Load()
		c := gin.Open(&a.DC, a.context(local))
		p := a.lsa(dst)
		for j := range b.Rows {
			row := uint64(local*a.DC.Ranks)*uint64(a.Cap) + uint64(b.Begin+j)
			f := a.Infos.At(int(row)).Load()
			if f.Token < 0 {
				continue
			}
			at := a.output(row)
			var s gin.Status
			if p >= 0 {
				s = c.LSAPut(gin.ByWarp(t), p, a.Recv, a.back(f.Token, f.K), a.Out.Base.Byte(at), a.row())
			} else {
				s = c.Put(gin.ByWarp(t), world, dst, a.Recv, a.back(f.Token, f.K), a.Out, at, a.row(), gin.None())
			}
			if !a.sent(t, s, dst, local) {
				return
			}
		}
		var s gin.Status
		if p >= 0 {
			s = c.LSASignal(gin.ByWarp(t), p, a.combineSignal(a.set(), first+local), 1)
		} else {
			s = c.Signal(gin.ByWarp(t), world, dst, gin.StrongInc(a.combineSignal(a.set(), first+local)))
		}
		if a.sent(t, s, dst, local) {
			a.note(t, p, b.Rows, a.row())
		}
	}
}

// LLCombine waits until each expert has answered, and adds up the answers of each token with its weights, a warp each.
// In float32, selections in order: round(w*v), then round(acc+p), at the end to BF16; nothing is fused, so that each
// device gives the same bits.
//
//gpu:kernel warps=16
func LLCombine(t gpu.Thread, a LL) {
	if a.Faults.over(t) {
		return
	}
	want := a.Answers.At(int(a.set())).Load()
	for e := range a.Experts {
		rank := a.owner(e)
		if a.Missing.has(rank) {
			continue
		}
		c := gin.Open(&a.DC, a.context(e-a.first(rank)))
		since := a.clock(t)
		s := c.WaitSignal(gin.ByWarp(t), a.combineSignal(a.set(), e), want, 64, gin.FromTeam(gin.World(&a.DC)))
		if t.Block() == 0 && t.Index() == 0 { // all warps wait for the same
			a.waited(t, rank, since)
		}
		if s != gin.OK {
			if t.Lane() == 0 {
				a.fail(s, FaultAnswer, rank, int64(e), 0)
			}
			return
		}
	}
	warp, warps := t.Block()*t.Warps()+t.Warp(), t.Blocks()*t.Warps()
	for token := warp; token < a.tokens(); token += warps {
		a.combine(t, token)
	}
}

func (a *LL) combine(t gpu.Thread, token int32) {
	out, in := gpu.Cast[uint32](a.Y.Byte(uint64(token)*a.row())), a.Recv.Base.Byte(a.back(token, 0))
	pairs := a.Hidden / 2
	for at := t.Lane() * sumPairs; at < pairs; at += sumPairs * gpu.WarpSize {
		var s sum
		n := min(pairs-at, sumPairs)
		for k := range a.TopK {
			if a.expert(token, k) < 0 {
				continue
			}
			w := a.Weights.At(int(token)*int(a.TopK) + int(k)).Load()
			s.add(gpu.Slice(gpu.Cast[uint32](in.Byte(uint64(k)*a.row())).At(int(at)), int(n)), w)
		}
		s.store(gpu.Slice(out.At(int(at)), int(n)))
	}
}
