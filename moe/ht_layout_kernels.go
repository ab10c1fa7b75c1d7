// SPDX-License-Identifier: Apache-2.0

package moe

import (
	"math/bits"

	"github.com/doorbell-net/doorbell/gin"
	"github.com/doorbell-net/doorbell/gpu"
)

// HTLayout finds how many rows go to each rank, which of them each token's is, how many messages go to each node, and how
// many selections name each expert: a block for each rank and node.
//
//gpu:kernel
func HTLayout(t gpu.Thread, a HT) {
	tokens := a.tokens()
	all := a.DC.Ranks
	if a.nodes() > 1 {
		all += a.nodes()
	}
	for i := t.Block(); i < all; i += t.Blocks() {
		if i < a.DC.Ranks {
			a.placeRows(t, i, tokens)
		} else {
			a.countMessages(t, i-a.DC.Ranks, tokens)
		}
	}
	for i := t.Block()*t.Threads() + t.Index(); i < tokens*a.TopK; i += t.Blocks() * t.Threads() {
		e := a.Idx.At(int(i)).Load()
		if e < -1 || e >= a.Experts {
			a.Faults.refuse(a.State.Raw().Dispatches, FaultSelection, a.DC.Rank, int64(i), int64(e))
		} else if e >= 0 && !a.nowhere(e) {
			gpu.AtomicAdd(a.Chosen.At(int(e)), 1, gpu.Relaxed, gpu.ScopeGPU)
		}
	}
}

// placeRows numbers the tokens that go to a rank: each warp of the block counts those of its part, and then knows where they begin.
func (a *HT) placeRows(t gpu.Thread, rank, tokens int32) {
	first, end := a.experts(rank, 1)
	part := (tokens + t.Threads() - 1) / t.Threads() * gpu.WarpSize
	from := min(t.Warp()*part, tokens)
	to := min(from+part, tokens)
	n, all := warpsBefore(t, a.goCount(t, from, to, first, end))
	for at := from; at < to; at += gpu.WarpSize {
		token := at + t.Lane()
		here := token < to && a.goes(token, first, end)
		these := gpu.Ballot(t, here)
		if token < to {
			place := int32(-1)
			if here {
				place = n + int32(bits.OnesCount32(these&(1<<uint(t.Lane())-1)))
			}
			a.Place.At(int(token)*int(a.DC.Ranks) + int(rank)).Store(place)
		}
		n += int32(bits.OnesCount32(these))
	}
	if t.Index() == 0 {
		a.Mine.At(int(rank)).Store(all)
	}
}

// countMessages counts the tokens of each channel that go to a node, a warp each.
func (a *HT) countMessages(t gpu.Thread, node, tokens int32) {
	first, end := a.experts(node*a.Node, a.Node)
	for channel := t.Warp(); channel < a.Channels; channel += t.Warps() {
		from, to := a.part(channel, tokens)
		if n := a.goCount(t, from, to, first, end); t.Lane() == 0 {
			a.Mine.At(int(a.DC.Ranks + channel*a.nodes() + node)).Store(n)
		}
	}
}

// goCount is how many of some tokens select one of some experts. All lanes of a warp call it.
func (a *HT) goCount(t gpu.Thread, from, to, first, end int32) (n int32) {
	for ; from < to; from += gpu.WarpSize {
		token := from + t.Lane()
		n += int32(bits.OnesCount32(gpu.Ballot(t, token < to && a.goes(token, first, end))))
	}
	return n
}

// warpsBefore is the sum of the numbers of the block's warps before the calling one, and of all of them.
func warpsBefore(t gpu.Thread, n int32) (before, all int32) {
	p := ofWarps.Of(t)
	if t.Lane() == 0 {
		p[t.Warp()] = n
	}
	t.SyncBlock()
	for w := range t.Warps() {
		if w < t.Warp() {
			before += p[w]
		}
		all += p[w]
	}
	t.SyncBlock()
	return before, all
}

// ofWarps is warpsBefore's.
var ofWarps gpu.Shared[[32]int32]

// HTTell tells each rank this one's layout, waits for theirs, and adds up where rows begin. That each has told also says
// that it is done with the rows of the operation before. One block.
//
//gpu:kernel warps=16
func HTTell(t gpu.Thread, a HT) {
	if a.Faults.over(t) {
		return // all warps, or none: nothing fails here before the next line
	}
	op := a.State.Raw().Dispatches + 1
	t.SyncBlock()
	if t.Index() == 0 {
		a.State.Raw().Dispatches = op
		a.State.Raw().Begin = t.Clock()
	}
	t.SyncBlock()
	for i := t.Warp(); i < a.DC.Ranks; i += t.Warps() {
		if rank := (a.DC.Rank + i) % a.DC.Ranks; !a.Missing.has(rank) {
			a.tell(t, op, rank)
		}
	}
	for i := t.Index(); i < a.DC.Ranks; i += t.Threads() {
		if !a.Missing.has(i) {
			a.await(t, a.told(i), op, i)
		}
	}
	t.SyncBlock()
	over := a.Faults.over(t) // what did not come yet may be coming
	t.SyncBlock()
	if over {
		return
	}
	if a.Again == 0 {
		a.plan(t, op)
	}
	if a.Meter.on() {
		a.takeRows(t)
	}
	if t.Index() == 0 {
		a.State.Raw().Known = t.Clock()
	}
}

// tell sends a rank how many rows each rank gets of this one, how many messages each channel has for its node, and how
// many selections each of its experts.
func (a *HT) tell(t gpu.Thread, op uint64, rank int32) {
	c := gin.Open(&a.DC, 0)
	at, bytes := a.countsAt(a.OutAt, op, rank), uint64(0)
	if a.Again == 0 {
		bytes = uint64(a.CountBytes)
		out := gpu.Cast[int32](a.Win.Base.Byte(at))
		for i := t.Lane(); i < a.DC.Ranks; i += gpu.WarpSize {
			out.At(int(i)).Store(a.Mine.At(int(i)).Load())
		}
		out = out.At(int(a.DC.Ranks))
		if !a.here(rank) {
			for i := t.Lane(); i < a.Channels; i += gpu.WarpSize {
				out.At(int(i)).Store(a.Mine.At(int(a.DC.Ranks + i*a.nodes() + rank/a.Node)).Load())
			}
		}
		out = out.At(int(a.Channels))
		first, end := a.experts(rank, 1)
		for i := first + t.Lane(); i < end; i += gpu.WarpSize {
			out.At(int(i - first)).Store(a.Chosen.At(int(i)).Load())
			a.Chosen.At(int(i)).Store(0)
		}
	}
	to := a.countsAt(a.InAt, op, a.DC.Rank)
	var s gin.Status
	p := int32(-1)
	if a.here(rank) {
		p = gin.LSARank(&a.DC, rank)
		t.SyncWarp()
		s = c.LSAPut(gin.ByWarp(t), p, a.Win, to, a.Win.Base.Byte(at), bytes)
		if q := c.LSASignal(gin.ByWarp(t), p, a.told(a.DC.Rank), 1); s == gin.OK {
			s = q
		}
	} else {
		s = c.Put(gin.ByWarp(t), gin.World(&a.DC), rank, a.Win, to, a.Win, at, bytes, gin.StrongInc(a.told(a.DC.Rank)))
	}
	a.Meter.note(t, p >= 0, uint32(1-a.Again), bytes, 1)
	if s != gin.OK && t.Lane() == 0 {
		a.fail(s, FaultSend, rank, 0, 0)
	}
}

// plan makes a layout of what all ranks told. Each finds for itself whether all rows of all ranks have room, by the same
// numbers, so that all do the same.
func (a *HT) plan(t gpu.Thread, op uint64) {
	p := a.Plan.Raw()
	if t.Index() == 0 {
		p.Rows, p.Refused, p.Tokens = 0, 0, a.tokens()
		if !a.Count.IsNil() && a.Count.Load() > uint32(a.Tokens) {
			a.Faults.refuse(op-1, FaultTokens, a.DC.Rank, int64(a.Count.Load()), int64(a.Tokens))
		}
	}
	t.SyncBlock()
	for rank := t.Index(); rank < a.DC.Ranks; rank += t.Threads() {
		n := int64(0)
		for src := range a.DC.Ranks {
			if src == a.DC.Rank {
				a.Base.At(int(rank)).Store(int32(n))
			}
			n += int64(a.toldOf(op, src, rank, a.MaxTokens))
		}
		if n > int64(a.MaxRows) {
			a.Faults.refuse(op-1, FaultRows, rank, n, int64(a.MaxRows))
			gpu.Store(gpu.PtrTo(&p.Refused), 1, gpu.Relaxed, gpu.ScopeGPU)
		} else if rank == a.DC.Rank {
			p.Rows = uint32(n)
		}
	}
	t.SyncBlock()
	refused := p.Refused != 0
	t.SyncBlock()
	if t.Index() == 0 && refused {
		p.Rows = 0
	}
	for i := t.Index(); i < a.Channels*a.nodes(); i += t.Threads() {
		channel, node := i/a.nodes(), i%a.nodes()
		n := int32(0)
		if node != a.node() && !refused {
			n = a.toldOf(op, a.peer(node), a.DC.Ranks+channel, a.ChannelRows)
		}
		a.Routed.At(int(i)).Store(n)
	}
	first, end := a.experts(a.DC.Rank, 1)
	for e := t.Index(); e < end-first; e += t.Threads() {
		n := int32(0)
		for src := range a.DC.Ranks {
			n += a.toldOf(op, src, a.DC.Ranks+a.Channels+e, a.MaxTokens*a.TopK)
		}
		a.ExpertRows.At(int(e)).Store((n + a.Align - 1) / a.Align * a.Align)
		if refused {
			n = 0
		}
		a.Selections.At(int(e)).Store(n)
	}
}

// toldOf is number i of what a rank told, 0 to most: these bytes are another's. They are 0 of one that is missing.
func (a *HT) toldOf(op uint64, rank, i, most int32) int32 {
	n := gpu.Cast[int32](a.Win.Base.Byte(a.countsAt(a.InAt, op, rank))).At(int(i)).Load()
	if n < 0 || n > most {
		a.fail(gin.RemoteError, FaultLayout, rank, int64(n), int64(most))
		return 0
	}
	return n
}
