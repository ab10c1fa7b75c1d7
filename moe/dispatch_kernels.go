// SPDX-License-Identifier: Apache-2.0

package moe

import (
	"math/bits"

	"github.com/doorbell-net/doorbell/gin"
	"github.com/doorbell-net/doorbell/gpu"
)

// LLDispatch sends each token to its experts, and to each box its count behind the last message; and it packs what this rank's
// experts are sent. A launch does both or one of them. Where it does both its blocks must be resident: one that has sent its part
// goes on and waits for what others send.
//
//gpu:kernel warps=8
//gpu:variant Near=1 PerRank=0 Deterministic=0 warps=16
//gpu:variant Near=1 warps=16
func LLDispatch(t gpu.Thread, a LL) {
	if gpu.WarpSize > 1 {
		a.fetchDispatch(t)
	}
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

// fetchDispatch has on its way a block's first token and its selections, and what is known of the pair that each warp receives of.
func (a *LL) fetchDispatch(t gpu.Thread) {
	if token := t.Block(); a.Parts&sends != 0 {
		a.fetchPeers(t)
		if token < a.Tokens {
			prefetch(a.X.Byte(uint64(token)*a.row()), a.row(), t.Index(), t.Threads())
		}
		if token < a.Tokens && t.Index() == t.Threads()-1 { // its warp is the one that waits for it
			gpu.Prefetch(gpu.Cast[byte](a.Idx.At(int(token * a.TopK))))
		}
	}
	if i := t.Block() + t.Warp()*t.Blocks(); a.Parts&receives != 0 && i < a.Locals*a.DC.Ranks {
		local, src := a.from(i)
		if t.Lane() == 0 {
			gpu.Prefetch(gpu.Cast[byte](a.Packed.At(int(local))))
		}
		for set := t.Lane(); set < 2*a.Sets; set += gpu.WarpSize {
			gpu.Prefetch(gpu.Cast[byte](a.Ends.At(int(a.dispatchSignal(set, a.box(local), src)))))
		}
	}
}

// route is where a message goes: into which far box, -1 for none, as which number, and where the box's first message lies if its
// rank is stored to.
type route struct {
	box int32
	n   uint32
	to  gpu.Ptr[byte]
}

// routes are a token's selections', and in turn with them those of the block's next token.
var routes gpu.Shared[[2][MaxTopK]route]

// send is the part that sends. A block makes a token's message, and its warps send it, each to another expert.
func (a *llOp) send(t gpu.Thread) {
	parts := a.partsOf(t)
	unit, part := t.Warp(), int32(0) // the first selection whose message this warp sends, and which part
	if parts > 1 {
		unit, part = unit%a.TopK, unit/a.TopK
	}
	makers := max(t.Warps()-1, 1) // of the message's payload, while the last warp finds out where it goes
	for token, turn := t.Block(), 0; token < a.now.Tokens; token, turn = token+t.Blocks(), turn^1 {
		to, msg := &routes.Of(t)[turn], a.Stage.Base.Byte(a.staged(token))
		if t.Index() == 0 {
			gpu.Cast[Header](msg).Store(Header{Token: uint32(token), Op: uint32(a.now.Op)})
		}
		for k := t.Threads() - 1 - t.Index(); k < a.TopK; k += t.Threads() {
			to[k] = a.route(token*a.TopK+k, gpu.Cast[uint16](msg.Byte(headerBytes)).At(int(k)))
		}
		if x := a.X.Byte(uint64(token) * a.row()); a.Format != int32(BF16) {
			if q := (rowFormat{a.Format, a.Hidden, a.Values, a.Payload}); t.Warp() < makers {
				q.quantise(t, msg.Byte(uint64(a.Head)), x, t.Warp(), makers)
			}
		} else if a.Near == 0 { // who is stored to gets the row as it is
			share := (a.row()/uint64(t.Warps()) + 63) &^ 63 // CopyBlock would need more registers than there are
			from := min(uint64(t.Warp())*share, a.row())
			gpu.CopyWarp(t, msg.Byte(uint64(a.Head)+from), x.Byte(from), min(share, a.row()-from))
		}
		t.SyncBlock()
		for k := unit; k < a.TopK && part < parts; k += t.Warps() {
			if r := to[k]; r.box >= 0 {
				if a.Deterministic != 0 {
					r.n = a.earlier(t, r.box, token*a.TopK+k)
				}
				a.sendMessage(t, r, token, part, parts)
			}
		}
	}
	a.count(t)
	if t.Index() == t.Threads()-1 {
		a.looked(t)
	}
}

// partsOf is how many warps send a message that is stored, a part each, where a block has several for each of a token's.
func (a *llOp) partsOf(t gpu.Thread) int32 {
	if gpu.WarpSize == 1 || a.Near == 0 {
		return 1
	}
	return max(t.Warps()/a.TopK, 1)
}

// staged is where a token's message lies in the staging window.
func (a *llOp) staged(token int32) uint64 {
	return (uint64(a.now.Set)*uint64(a.MaxTokens) + uint64(token)) * a.msg()
}

// route is selection i's, which it checks and writes into the message, at named. It has the next slot of its box, or, if their
// order matters, none yet. All that is looked up for the message is looked up here, while others make it.
func (a *llOp) route(i int32, named gpu.Ptr[uint16]) route {
	e := a.Idx.At(int(i)).Load() // once: it takes a GPU as long as all the rest
	if e < -1 || e >= a.Experts {
		a.refuse(FaultSelection, int64(i), int64(e))
	}
	e = a.known(e)
	named.Store(uint16(e))
	r := route{box: a.boxOf(i, e)}
	if r.box < 0 {
		return r
	}
	if a.Deterministic == 0 {
		r.n = gpu.AtomicAdd(gpu.PtrTo(&a.Far.At(int(r.box)).Raw().Taken), 1, gpu.Relaxed, gpu.ScopeGPU)
	}
	rank, local := a.place(r.box)
	if p, near := a.lsa(rank); near {
		c, s := gin.Open(&a.DC, a.context(local)), gin.OK
		if r.to, s = c.LSAArea(p, a.Recv, a.slot(local, a.DC.Rank, 0), uint64(a.BoxCap)*a.msg()); s != gin.OK {
			a.failSend(s, rank, local)
			r.box = -1 // and nobody sends the count
		}
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

// sendMessage sends a part of a token's message, unless there is no room for so many.
func (a *llOp) sendMessage(t gpu.Thread, r route, token, part, parts int32) {
	if r.n < uint32(a.BoxCap) {
		if a.Near != 0 || !r.to.IsNil() {
			a.store(t, r.to.Byte(uint64(r.n)*a.msg()), token, part, parts)
		} else if !a.post(t, r, token) {
			return // and nobody sends the count
		}
	}
	n := uint32(0)
	if t.Lane() == 0 {
		n = a.gone(r.box, 1, parts)
	}
	a.sendCounts(t, r.box, n)
}

// store copies a part of a token's message to a rank that is stored to: a row that is sent as it is from where it lies, and what
// stands before it, which is loaded first and so costs no trip of its own.
func (a *llOp) store(t gpu.Thread, to gpu.Ptr[byte], token, part, parts int32) {
	past := a.pastCaches(a.now.Tokens*a.TopK, a.msg())
	from, size := a.Stage.Base.Byte(a.staged(token)), a.msg()
	head, toHead, heads := gpu.Cast[gpu.U32x4](from), gpu.Cast[gpu.U32x4](to), int32(0)
	if a.Format == int32(BF16) {
		from, to, size = a.X.Byte(uint64(token)*a.row()), to.Byte(uint64(a.Head)), a.row()
		if part == 0 {
			heads = a.Head / 16
		}
	}
	h := gpu.U32x4{}
	if t.Lane() < heads {
		h = head.At(int(t.Lane())).Load()
	}
	at, n := shares{each: shareOf(parts, size)}.part(part, size)
	copyWarp(t, &a.DC, a.Near != 0, to.Byte(at), from.Byte(at), n, past)
	for i := t.Lane(); i < heads; i += gpu.WarpSize {
		toHead.At(int(i)).Store(h)
		if i+gpu.WarpSize < heads {
			h = head.At(int(i + gpu.WarpSize)).Load()
		}
	}
	t.SyncWarp() // lane 0 releases, to who sends the count, what each lane has stored
}

// copyWarp copies to an LSA peer, past the caches of the software device's core or not; plain: no fault is injected.
func copyWarp(t gpu.Thread, dc *gin.DevComm, plain bool, to, from gpu.Ptr[byte], bytes uint64, past bool) {
	switch {
	case past && dc.Inject == 0:
		gpu.CopyPastCaches(to, from, bytes)
	case plain:
		gpu.CopyWarp(t, to, from, bytes)
	default:
		c := gin.Open(dc, 0)
		c.LSACopy(gin.ByWarp(t), to, from, bytes)
	}
}

// post puts a token's message for a rank that is not stored to.
func (a *llOp) post(t gpu.Thread, r route, token int32) bool {
	rank, local := a.place(r.box)
	c := gin.Open(&a.DC, a.context(local))
	s := c.Put(gin.ByWarp(t), gin.World(&a.DC), rank, a.Recv, a.slot(local, a.DC.Rank, int32(r.n)), a.Stage, a.staged(token), a.msg(), gin.None())
	return a.sent(t, s, rank, local)
}

// gone adds to what is known of a box, whose messages are so many parts each. Whoever finds that all of them are counted and on
// their way clears the box and sends the count behind them, which is 1 less than what it gets; others get 0: so nobody waits for
// another. A thread calls it.
func (a *llOp) gone(box int32, more uint64, parts int32) uint32 {
	b := a.Far.At(int(box))
	is := gpu.AtomicAdd(gpu.PtrTo(&b.Raw().Gone), more, gpu.AcqRel, gpu.ScopeGPU) + more
	all := uint32(is &^ allCounted >> 32)
	if is < allCounted || uint32(is) != all*uint32(parts) {
		return 0
	}
	if b.Store(Box{}); all > uint32(a.BoxCap) {
		a.refuse(FaultCopies, int64(all), int64(box))
		all = uint32(a.BoxCap) // the rest is not sent; nobody waits for it
	}
	return all + 1
}

// sendCounts tells the ranks of a warp's boxes how many messages came, what gone gave each lane: not 0 for no messages, which are so
// told from nothing told. Lanes store at once, and post one after another.
func (a *llOp) sendCounts(t gpu.Thread, box int32, n uint32) {
	far := false
	if n != 0 {
		rank, local := a.place(box)
		p, near := a.lsa(rank)
		if far = !near; near {
			c := gin.Open(&a.DC, a.context(local))
			if s := c.LSASignal(gin.ByThread(t), p, a.dispatchSignal(a.now.Set, local, a.DC.Rank), uint64(n)); s != gin.OK {
				a.failSend(s, rank, local)
			}
			a.Meter.add(true, n-1, a.msg(), 1)
		}
	}
	if a.Near != 0 {
		return
	}
	for left := gpu.Ballot(t, far); left != 0; left &= left - 1 {
		lane := int32(bits.TrailingZeros32(left))
		a.postCount(t, gpu.ShflIdx(t, box, lane), gpu.ShflIdx(t, n, lane))
	}
}

// postCount is sendCounts of one box of a rank that is not stored to. A warp calls it.
func (a *llOp) postCount(t gpu.Thread, box int32, n uint32) {
	rank, local := a.place(box)
	c := gin.Open(&a.DC, a.context(local))
	s := c.Signal(gin.ByWarp(t), gin.World(&a.DC), rank, gin.StrongAdd(a.dispatchSignal(a.now.Set, local, a.DC.Rank), uint64(n)))
	if a.sent(t, s, rank, local) {
		a.Meter.note(t, false, n-1, a.msg(), 1)
	}
}
