// SPDX-License-Identifier: Apache-2.0

package moe

import (
	"math/bits"

	"github.com/doorbell-net/doorbell/gin"
	"github.com/doorbell-net/doorbell/gpu"
)

// partTokens is how many tokens a warp numbers at once.
const partTokens = 32

// HTLayout finds how many rows go to each rank, which of them each token's is, how many messages go to each node, and how
// many selections name each expert: a warp for each part of the tokens, of which it numbers the rows by themselves.
//
//gpu:kernel
func HTLayout(t gpu.Thread, a HT) {
	tokens := a.tokens()
	me, warps := t.Block()*t.Warps()+t.Warp(), t.Blocks()*t.Warps()
	for part := me; part*partTokens < tokens; part += warps {
		from := part * partTokens
		to := min(from+partTokens, tokens)
		for rank := range a.DC.Ranks {
			n := a.placeRows(t, rank, from, to)
			if t.Lane() == 0 {
				a.before(rank, part, tokens).Store(n)
			}
		}
		for i := from*a.TopK + t.Lane(); i < to*a.TopK; i += gpu.WarpSize {
			e := a.Idx.At(int(i)).Load()
			if e < -1 || e >= a.Experts {
				a.Faults.refuse(a.State.Raw().Dispatches, FaultSelection, a.DC.Rank, int64(i), int64(e))
			} else if e >= 0 && !a.nowhere(e) {
				gpu.AtomicAdd(a.Chosen.At(int(e)), 1, gpu.Relaxed, gpu.ScopeGPU)
			}
		}
	}
	if a.nodes() == 1 {
		return
	}
	for i := me; i < a.Channels*a.nodes(); i += warps {
		a.countMessages(t, i/a.nodes(), i%a.nodes(), tokens)
	}
}

// placeRows numbers those of some tokens that go to a rank, from 0, and says how many they are.
func (a *HT) placeRows(t gpu.Thread, rank, from, to int32) (n int32) {
	first, end := a.experts(rank, 1)
	for ; from < to; from += gpu.WarpSize {
		token := from + t.Lane()
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
	return n
}

// partsOf is how many parts so many tokens have.
func partsOf(tokens int32) int32 { return (tokens + partTokens - 1) / partTokens }

// before is how many rows a part has for a rank and, once HTTell has added up, the parts before it.
func (a *HT) before(rank, part, tokens int32) gpu.Ptr[int32] {
	return a.Before.At(int(rank*partsOf(tokens) + part))
}

// countMessages counts the tokens of a channel that go to a node.
func (a *HT) countMessages(t gpu.Thread, channel, node, tokens int32) {
	first, end := a.experts(node*a.Node, a.Node)
	from, to := a.part(channel, tokens)
	n := int32(0)
	for ; from < to; from += gpu.WarpSize {
		token := from + t.Lane()
		n += int32(bits.OnesCount32(gpu.Ballot(t, token < to && a.goes(token, first, end))))
	}
	if t.Lane() == 0 {
		a.Mine.At(int(a.DC.Ranks + channel*a.nodes() + node)).Store(n)
	}
}

// HTTell tells each rank this one's layout, waits for theirs, and adds up where rows begin. That each has told also says
// that it is done with the rows of the operation before. One block.
//
//gpu:kernel warps=16
func HTTell(t gpu.Thread, a HT) {
	if a.Faults.over(t) {
		return // all warps, or none: nothing fails here before the barrier
	}
	op := a.op()
	if t.Index() == 0 {
		a.State.Raw().Begin = t.Clock()
	}
	a.addParts(t)
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
	if a.Faults.overBlock(t) { // what did not come yet may be coming
		return
	}
	a.plan(t, op)
	if a.Meter.on() {
		a.takeRows(t)
	}
	if t.Index() == 0 {
		a.State.Raw().Known = t.Clock()
	}
}

// addParts finds how many rows for each rank are of the parts before each, and how many of all: a warp for each rank, whose lanes
// have as many parts each.
func (a *HT) addParts(t gpu.Thread) {
	tokens := a.tokens()
	parts := partsOf(tokens)
	per := (parts + gpu.WarpSize - 1) / gpu.WarpSize
	from := min(t.Lane()*per, parts)
	to := min(from+per, parts)
	for rank := t.Warp(); rank < a.DC.Ranks; rank += t.Warps() {
		n := int32(0)
		//gpu:unroll 4
		for part := from; part < to; part++ {
			n += a.before(rank, part, tokens).Load()
		}
		n = sumToLane(t, n) - n
		//gpu:unroll 4
		for part := from; part < to; part++ {
			p := a.before(rank, part, tokens)
			more := p.Load()
			p.Store(n)
			n += more
		}
		if t.Lane() == gpu.WarpSize-1 {
			a.Mine.At(int(rank)).Store(n)
		}
	}
}

// sumToLane is the sum of the numbers of a warp's lanes up to the calling one's.
func sumToLane(t gpu.Thread, n int32) int32 {
	for d := int32(1); d < gpu.WarpSize; d *= 2 {
		if before := gpu.ShflIdx(t, n, max(t.Lane()-d, 0)); t.Lane() >= d {
			n += before
		}
	}
	return n
}

// tell sends a rank how many rows each rank gets of this one, how many messages each channel has for its node, and how
// many selections each of its experts.
func (a *HT) tell(t gpu.Thread, op uint64, rank int32) {
	c, bytes, to, here := gin.Open(&a.DC, 0), uint64(a.CountBytes), a.countsAt(a.InAt, op, a.DC.Rank), a.here(rank)
	at, p, s := a.countsAt(a.OutAt, op, rank), int32(-1), gin.OK
	words := a.Win.Base.Byte(at)
	if here {
		p = gin.LSARank(&a.DC, rank)
		words, s = c.LSAArea(p, a.Win, to, bytes)
	}
	if s == gin.OK {
		a.writeCounts(t, gpu.Cast[int32](words), rank)
		if here {
			t.SyncWarp()
			s = c.LSASignal(gin.ByWarp(t), p, a.told(a.DC.Rank), 1)
		} else {
			s = c.Put(gin.ByWarp(t), gin.World(&a.DC), rank, a.Win, to, a.Win, at, bytes, gin.StrongInc(a.told(a.DC.Rank)))
		}
	}
	a.Meter.note(t, here, 1, bytes, 1)
	if s != gin.OK && t.Lane() == 0 {
		a.fail(s, FaultSend, rank, 0, 0)
	}
}

// writeCounts writes what a rank is told, and clears what was counted of its experts.
func (a *HT) writeCounts(t gpu.Thread, out gpu.Ptr[int32], rank int32) {
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
	//gpu:unroll 4
	for i := first + t.Lane(); i < end; i += gpu.WarpSize {
		chosen := a.Chosen.At(int(i))
		out.At(int(i - first)).Store(chosen.Load())
		chosen.Store(0)
	}
}

// plan makes a layout of what all ranks told. Each finds for itself whether all rows of all ranks have room, by the same
// numbers, so that all do the same.
func (a *HT) plan(t gpu.Thread, op uint64) {
	p, rows, refused := a.Plan.Raw(), uint32(0), false
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
			refused = true
		}
		if rank == a.DC.Rank {
			rows = uint32(n)
		}
	}
	refused = t.AnyOfBlock(refused)
	if refused {
		rows = 0
	}
	if t.Index() == a.DC.Rank%t.Threads() {
		p.Rows = rows
	}
	if t.Index() == 0 {
		p.Refused, p.Tokens = 0, a.tokens()
		if refused {
			p.Refused = 1
		}
		if !a.Count.IsNil() && a.Count.Load() > uint32(a.Tokens) {
			a.Faults.refuse(op-1, FaultTokens, a.DC.Rank, int64(a.Count.Load()), int64(a.Tokens))
		}
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
