// SPDX-License-Identifier: Apache-2.0

package moe

import (
	"github.com/doorbell-net/doorbell/gin"
	"github.com/doorbell-net/doorbell/gpu"
)

// LLDispatch sends each token to its experts, and to each box its count behind the last message; and it packs what this rank's
// experts are sent. A launch does both or one of them. Where it does both its blocks must be resident: one that has sent its part
// goes on and waits for what others send.
//
//gpu:kernel warps=8
//gpu:variant Near=1 warps=16
func LLDispatch(t gpu.Thread, a LL) {
	at := opened.Of(t)
	if a.begin(t, at, a.Parts&sends != 0) {
		return
	}
	op := llOp{&a, &at.now}
	if a.Parts&sends != 0 {
		op.send(t)
	}
	if a.Parts&receives != 0 {
		op.receive(t)
	}
}

// route is where a message goes: into which far box, -1 for none, and as which number.
type route struct {
	box int32
	n   uint32
}

// routes are a token's selections', and in turn with them those of the block's next token.
var routes gpu.Shared[[2][MaxTopK]route]

// send is the part that sends. A block makes a token's message, and its warps send it, each to another expert.
func (a *llOp) send(t gpu.Thread) {
	for token, turn := t.Block(), 0; token < a.now.Tokens; token, turn = token+t.Blocks(), turn^1 {
		to, msg := &routes.Of(t)[turn], a.Stage.Base.Byte(a.staged(token))
		if t.Index() == 0 {
			gpu.Cast[Header](msg).Store(Header{Token: uint32(token), Op: uint32(a.now.Op)})
		}
		for k := t.Threads() - 1 - t.Index(); k < a.TopK; k += t.Threads() { // the last warp has the least of a row
			i := token*a.TopK + k
			gpu.Cast[uint16](msg.Byte(headerBytes)).At(int(k)).Store(uint16(a.expert(i)))
			to[k] = a.route(i)
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
			if r := to[k]; r.box >= 0 {
				if a.Deterministic != 0 {
					r.n = a.earlier(t, r.box, token*a.TopK+k)
				}
				a.sendMessage(t, r, token)
			}
		}
	}
	a.count(t)
	if t.Index() == t.Threads()-1 {
		a.looked(t)
	}
}

// staged is where a token's message lies in the staging window.
func (a *llOp) staged(token int32) uint64 {
	return (uint64(a.now.Set)*uint64(a.MaxTokens) + uint64(token)) * a.msg()
}

// route is selection i's, which it checks. It has the next slot of its box, or, if their order matters, none yet.
func (a *llOp) route(i int32) route {
	if e := a.Idx.At(int(i)).Load(); e < -1 || e >= a.Experts {
		a.refuse(FaultSelection, int64(i), int64(e))
	}
	r := route{box: a.goes(i)}
	if r.box >= 0 && a.Deterministic == 0 {
		r.n = gpu.AtomicAdd(gpu.PtrTo(&a.Far.At(int(r.box)).Raw().Taken), 1, gpu.Relaxed, gpu.ScopeGPU)
	}
	return r
}

// earlier is how many selections before number i put a message into a box: the slot where their order matters. A warp calls it.
func (a *llOp) earlier(t gpu.Thread, box, i int32) (n uint32) {
	for j := t.Lane(); j < i; j += gpu.WarpSize {
		if a.goes(j) == box {
			n++
		}
	}
	for mask := int32(gpu.WarpSize / 2); mask > 0; mask /= 2 {
		n += gpu.ShflXor(t, n, mask)
	}
	return n
}

// sendMessage sends a token, unless there is no room for so many.
func (a *llOp) sendMessage(t gpu.Thread, r route, token int32) {
	if r.n < uint32(a.BoxCap) {
		rank, local := a.place(r.box)
		c := gin.Open(&a.DC, a.context(local))
		c.SetPastCaches(a.pastCaches(a.now.Tokens*a.TopK, a.msg()))
		to, at := a.slot(local, a.DC.Rank, int32(r.n)), a.staged(token)
		s := gin.OK
		if p, near := a.lsa(rank); near {
			from, off, n := a.Stage.Base.Byte(at), uint64(0), a.msg()
			if a.Format == int32(BF16) { // the row as it is, and then what stands before it: one copy of the code does both
				from, off, n = a.X.Byte(uint64(token)*a.row()), uint64(a.Head), a.row()
			}
			for {
				s = max(s, c.LSAPut(gin.ByWarp(t), p, a.Recv, to+off, from, n))
				if off == 0 {
					break
				}
				from, off, n = a.Stage.Base.Byte(at), 0, uint64(a.Head)
			}
			t.SyncWarp() // lane 0 releases, to who sends the count, what each lane has stored
		} else {
			s = c.Put(gin.ByWarp(t), gin.World(&a.DC), rank, a.Recv, to, a.Stage, at, a.msg(), gin.None())
		}
		if !a.sent(t, s, rank, local) {
			return // and nobody sends the count
		}
	}
	a.gone(t, r.box, 1)
}

// gone adds to what is known of a box. Whoever finds that all of its messages are counted and on their way sends the count behind
// them, and clears the box: so nobody waits for another. A warp calls it.
func (a *llOp) gone(t gpu.Thread, box int32, more uint64) {
	n := uint32(0)
	if t.Lane() == 0 {
		b := a.Far.At(int(box))
		is := gpu.AtomicAdd(gpu.PtrTo(&b.Raw().Gone), more, gpu.AcqRel, gpu.ScopeGPU) + more
		if all := uint32(is &^ allCounted >> 32); is >= allCounted && uint32(is) == all {
			if b.Store(Box{}); all > uint32(a.BoxCap) {
				a.refuse(FaultCopies, int64(all), int64(box))
				all = uint32(a.BoxCap) // the rest is not sent; nobody waits for it
			}
			n = all + 1
		}
	}
	if n = gpu.ShflIdx(t, n, 0); n != 0 {
		a.sendCount(t, box, n-1)
	}
}

// sendCount tells a box's rank that n messages came. It adds n+1: no messages are told from nothing told.
func (a *llOp) sendCount(t gpu.Thread, box int32, n uint32) {
	rank, local := a.place(box)
	c := gin.Open(&a.DC, a.context(local))
	id := a.dispatchSignal(a.now.Set, local, a.DC.Rank)
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
