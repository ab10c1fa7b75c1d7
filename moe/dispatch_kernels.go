// SPDX-License-Identifier: Apache-2.0

package moe

import (
	"github.com/doorbell-net/doorbell/gin"
	"github.com/doorbell-net/doorbell/gpu"
)

// LLCount begins a dispatch: it clears what the last one left, counts how many messages go to each box, and the dispatch
// itself. One block.
//
//gpu:kernel
func LLCount(t gpu.Thread, a LL) {
	if t.Index() == 0 {
		a.begin()
	}
	for i := t.Index(); i < max(a.Experts, a.DC.Ranks); i += t.Threads() {
		a.Total.At(int(i)).Store(0)
		a.Next.At(int(i)).Store(0)
		a.Done.At(int(i)).Store(0)
	}
	for i := t.Index(); i < a.Locals; i += t.Threads() {
		a.Counts.At(int(i)).Store(0)
	}
	t.SyncBlock()
	for i := t.Index(); i < a.tokens()*a.TopK; i += t.Threads() {
		e := a.Idx.At(int(i)).Load()
		if e < -1 || e >= a.Experts {
			a.refuse(FaultSelection, int64(i), int64(e))
		} else if e >= 0 && !a.nowhere(e) {
			gpu.AtomicAdd(a.Total.At(int(e)), 1, gpu.Relaxed, gpu.ScopeGPU)
		}
	}
	t.SyncBlock()
	for i := t.Index(); i < a.Experts; i += t.Threads() {
		n := a.Total.At(int(i)).Load()
		if n > uint32(a.Cap) {
			a.refuse(FaultCopies, int64(n), int64(i))
			n = uint32(a.Cap) // the rest is not sent; nobody waits for it
		}
		if a.PerRank != 0 {
			n = 0
		}
		a.Total.At(int(i)).Store(n)
	}
	if a.PerRank == 0 {
		return
	}
	t.SyncBlock()
	for i := t.Index(); i < a.tokens()*a.TopK; i += t.Threads() {
		if box := a.goes(i/a.TopK, i%a.TopK); box >= 0 {
			gpu.AtomicAdd(a.Total.At(int(box)), 1, gpu.Relaxed, gpu.ScopeGPU)
		}
	}
}

// LLSend sends each token to its experts, and to each box its count behind the last message. A block makes a token's message,
// and its warps send it, each to another expert.
//
//gpu:kernel warps=8
//gpu:variant Near=1 warps=16
func LLSend(t gpu.Thread, a LL) {
	if a.Faults.overBlock(t) {
		return
	}
	for token := t.Block(); token < a.tokens(); token += t.Blocks() {
		msg := a.Stage.Base.Byte(a.staged(token))
		if t.Index() == 0 {
			gpu.Cast[Header](msg).Store(Header{Token: uint32(token), Op: uint32(a.op())})
		}
		for k := t.Index(); k < a.TopK; k += t.Threads() {
			gpu.Cast[uint16](msg.Byte(headerBytes)).At(int(k)).Store(uint16(a.expert(token, k)))
		}
		if x := a.X.Byte(uint64(token) * a.row()); a.Format != int32(BF16) {
			q := rowFormat{a.Format, a.Hidden, a.Values, a.Payload}
			q.quantise(t, msg.Byte(uint64(a.Head)), x, t.Warp(), t.Warps())
		} else if a.Near == 0 { // who is stored to gets the row as it is
			share := (a.row()/uint64(t.Warps()) + 63) &^ 63 // CopyBlock would need more registers than there are
			from := min(uint64(t.Warp())*share, a.row())
			gpu.CopyWarp(t, msg.Byte(uint64(a.Head)+from), x.Byte(from), min(share, a.row()-from))
		}
		t.SyncBlock()
		for k := t.Warp(); k < a.TopK; k += t.Warps() {
			if box := a.goes(token, k); box >= 0 {
				a.sendMessage(t, box, a.take(t, box, token*a.TopK+k), token)
			}
		}
	}
	// Who gets none is told too, by blocks without tokens where there are any.
	warps := t.Blocks() * t.Warps()
	for box := warps - 1 - t.Block()*t.Warps() - t.Warp(); box < a.farBoxes(); box += warps {
		rank, _ := a.place(box)
		if a.Total.At(int(box)).Load() == 0 && a.first(rank) < a.first(rank+1) && !a.Missing.has(rank) {
			a.sendCount(t, box, 0)
		}
	}
}

// staged is where a token's message lies in the staging window.
func (a *LL) staged(token int32) uint64 {
	return (uint64(a.set())*uint64(a.MaxTokens) + uint64(token)) * a.msg()
}

// take is the slot that the message of selection i gets in its box: the next one, or, if their order matters, as many as
// earlier selections put there.
func (a *LL) take(t gpu.Thread, box, i int32) uint32 {
	n := uint32(0)
	if a.Deterministic != 0 {
		for j := t.Lane(); j < i; j += gpu.WarpSize {
			if a.goes(j/a.TopK, j%a.TopK) == box {
				n++
			}
		}
		for mask := int32(gpu.WarpSize / 2); mask > 0; mask /= 2 {
			n += gpu.ShflXor(t, n, mask)
		}
		return n
	}
	if t.Lane() == 0 {
		n = gpu.AtomicAdd(a.Next.At(int(box)), 1, gpu.Relaxed, gpu.ScopeGPU)
	}
	return gpu.ShflIdx(t, n, 0)
}

// sendMessage sends a token as number n of a box.
func (a *LL) sendMessage(t gpu.Thread, box int32, n uint32, token int32) {
	if n >= uint32(a.BoxCap) {
		return
	}
	rank, local := a.place(box)
	c := gin.Open(&a.DC, a.context(local))
	c.SetPastCaches(a.pastCaches(a.tokens()*a.TopK, a.msg()))
	to, at := a.slot(local, a.DC.Rank, int32(n)), a.staged(token)
	s := gin.OK
	if p, near := a.lsa(rank); near {
		size := a.msg()
		if a.Format == int32(BF16) {
			s = c.LSAPut(gin.ByWarp(t), p, a.Recv, to+uint64(a.Head), a.X.Byte(uint64(token)*a.row()), a.row())
			size = uint64(a.Head)
		}
		if q := c.LSAPut(gin.ByWarp(t), p, a.Recv, to, a.Stage.Base.Byte(at), size); q != gin.OK {
			s = q
		}
		t.SyncWarp() // lane 0 releases, to who sends the count, what each lane has stored
	} else {
		s = c.Put(gin.ByWarp(t), gin.World(&a.DC), rank, a.Recv, to, a.Stage, at, a.msg(), gin.None())
	}
	if !a.sent(t, s, rank, local) {
		return // and nobody sends the count
	}
	// Whoever finds all messages on their way sends the count behind them.
	last := uint32(0)
	if t.Lane() == 0 {
		total := a.Total.At(int(box)).Load()
		if gpu.AtomicAdd(a.Done.At(int(box)), 1, gpu.AcqRel, gpu.ScopeGPU)+1 == total {
			last = total
		}
	}
	if last = gpu.ShflIdx(t, last, 0); last != 0 {
		a.sendCount(t, box, last)
	}
}

// sendCount tells a box's rank that n messages came. It adds n+1: no messages are told from nothing told.
func (a *LL) sendCount(t gpu.Thread, box int32, n uint32) {
	rank, local := a.place(box)
	c := gin.Open(&a.DC, a.context(local))
	id := a.dispatchSignal(a.set(), local, a.DC.Rank)
	var s gin.Status
	p, near := a.lsa(rank)
	if near {
		s = c.LSASignal(gin.ByWarp(t), p, id, uint64(n)+1)
	} else {
		s = c.Signal(gin.ByWarp(t), gin.World(&a.DC), rank, gin.StrongAdd(id, uint64(n)+1))
	}
	if a.sent(t, s, rank, local) {
		a.Meter.note(t, near, n, a.msg(), 1)
	}
}
