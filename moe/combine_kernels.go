// SPDX-License-Identifier: Apache-2.0

package moe

import (
	"github.com/doorbell-net/doorbell/gin"
	"github.com/doorbell-net/doorbell/gpu"
	"github.com/doorbell-net/doorbell/internal/num"
)

// LLCombine sends the experts' outputs back to where their tokens came from, and adds up what comes back of this rank's own
// tokens. A launch does both or one of them, as LLDispatch.
//
//gpu:kernel warps=8
//gpu:variant Near=1 warps=16
func LLCombine(t gpu.Thread, a LL) {
	if gpu.WarpSize > 1 {
		a.fetchCombine(t)
	}
	at := opened.Of(t)
	if a.begin(t, at, false) {
		return
	}
	op := llOp{&a, &at.now}
	if a.Parts&sends != 0 {
		op.giveBack(t)
	}
	if a.Parts&receives != 0 && (a.Parts&sends == 0 || !a.Faults.overBlock(t)) {
		op.addUp(t)
	}
}

// fetchCombine has on its way where the first rows are that each warp answers, and the selections and weights of a block's first token.
func (a *LL) fetchCombine(t gpu.Thread) {
	if a.Parts&sends != 0 {
		a.fetchPeers(t)
	}
	if t.Lane() != 0 {
		return
	}
	if i := t.Block() + t.Warp()*t.Blocks(); a.Parts&sends != 0 && i < a.Locals*a.DC.Ranks {
		local, dst := a.to(i)
		gpu.Prefetch(gpu.Cast[byte](a.Blocks.At(int(local*a.DC.Ranks + dst))))
		gpu.Prefetch(gpu.Cast[byte](a.Infos.At(int(local*a.DC.Ranks) * int(a.Cap))))
	}
	if token := t.Block(); a.Parts&receives != 0 && t.Warp() == t.Warps()-1 && token < a.Tokens {
		gpu.Prefetch(gpu.Cast[byte](a.Idx.At(int(token * a.TopK))))
		gpu.Prefetch(gpu.Cast[byte](a.Weights.At(int(token * a.TopK))))
	}
}

// giveBack is the part that sends, and says behind the outputs that the expert has answered. A block's warps share the rows of as
// many experts and ranks as it has warps, and then each tells another rank, unless one of them could not send.
func (a *llOp) giveBack(t gpu.Thread) {
	if t.Block() == 0 && t.Index() == 0 {
		a.Answers.At(int(a.now.Set)).Store(a.now.Answers)
	}
	locals := a.first(a.DC.Rank+1) - a.first(a.DC.Rank)
	past, lost := false, false
	if gpu.WarpSize == 1 {
		rows := uint32(0)
		for l := range locals {
			rows += a.Counts.At(int(l)).Load()
		}
		past = a.pastCaches(int32(rows), a.row())
	}
	end := locals * a.DC.Ranks
	for i, step := t.Block(), t.Blocks(); i < end; i += step * t.Warps() {
		n := pairsOf(t, i, end)
		if t.Warp() < n && t.Lane() == 0 {
			r, ok := a.toAnswer(i + t.Warp()*step)
			found.Of(t)[t.Warp()], lost = r, lost || !ok
		}
		t.SyncBlock()
		s := sharesOf(t, n, a.row())
		for w := range n {
			lost = a.answer(t, found.Of(t)[w], &s, past) || lost
		}
		if lost = t.AnyOfBlock(lost); t.Warp() < n && !lost {
			a.tell(t, found.Of(t)[t.Warp()])
		}
		t.SyncBlock() // before there are others
	}
}

// to is a local expert and a rank that it answers, number i of all pairs: each rank begins with itself.
func (a *LL) to(i int32) (local, dst int32) {
	return i / a.DC.Ranks, (a.DC.Rank + i) % a.DC.Ranks
}

// toAnswer is what a pair's answers are to, all that is looked up for them; not ok: they can't be sent.
func (a *llOp) toAnswer(i int32) (r arrival, ok bool) {
	local, dst := a.to(i)
	b := a.Blocks.At(int(local*a.DC.Ranks + dst)).Load()
	r = arrival{rows: b.Rows, begin: b.Begin, local: local, rank: dst}
	if p, near := a.lsa(dst); near && !a.missing(dst) {
		c, s := gin.Open(&a.DC, a.context(local)), gin.OK
		if r.back, s = c.LSAArea(p, a.Recv, a.back(0, 0), uint64(a.MaxTokens)*uint64(a.TopK)*a.row()); s != gin.OK {
			a.failSend(s, dst, local)
			r.rows = 0
			return r, false
		}
	}
	return r, true
}

// answer sends a pair's rows, past caches or not, and says whether the calling warp could not send one. All warps of a block call it.
func (a *llOp) answer(t gpu.Thread, b arrival, s *shares, past bool) (lost bool) {
	local, dst := b.local, b.rank
	if a.missing(dst) || dst == a.DC.Rank && a.inPlace() {
		return false
	}
	c := gin.Open(&a.DC, a.context(local))
	of, near := *s, a.Near != 0 || !b.back.IsNil()
	if !near {
		of.parts, of.each = 1, uint32(a.row())
	}
	for j := range b.rows {
		row := uint64(local*a.DC.Ranks)*uint64(a.Cap) + uint64(b.begin+j)
		for part := range of.parts {
			if !of.take(t) || lost { // whose turn it is holds for all warps, also after what one of them could not send
				continue
			}
			f := a.Infos.At(int(row)).Load()
			if f.Token < 0 {
				continue
			}
			at, n := of.part(part, a.row())
			if near {
				copyWarp(t, &a.DC, a.Near != 0, b.back.Byte(a.back(f.Token, f.K)-a.back(0, 0)+at), a.Out.Base.Byte(a.output(row)+at), n, past)
			} else {
				q := c.Put(gin.ByWarp(t), gin.World(&a.DC), dst, a.Recv, a.back(f.Token, f.K), a.Out, a.output(row), a.row(), gin.None())
				lost = !a.sent(t, q, dst, local)
			}
		}
	}
	s.next = of.next
	return lost
}

// tell says that an expert has answered a rank. A warp calls it.
func (a *llOp) tell(t gpu.Thread, b arrival) {
	local, dst := b.local, b.rank
	if a.missing(dst) {
		return
	}
	c := gin.Open(&a.DC, a.context(local))
	id := a.combineSignal(a.now.Set, a.first(a.DC.Rank)+local)
	p, near := a.lsa(dst)
	var s gin.Status
	if near {
		s = c.LSASignal(gin.ByWarp(t), p, id, 1)
	} else {
		s = c.Signal(gin.ByWarp(t), gin.World(&a.DC), dst, gin.StrongInc(id))
	}
	if a.sent(t, s, dst, local) {
		a.Meter.note(t, near, b.rows, a.row(), 1)
	}
}

// addUp is the part that adds up the answers of each token with its weights, a block each, when its experts have answered: a look
// for a signal may cross PCIe, and not all blocks have to wait for all. In float32, selections in order: round(w*v), then
// round(acc+p), at the end to BF16; nothing is fused, so that each device gives the same bits.
func (a *llOp) addUp(t gpu.Thread) {
	if t.Block() == t.Blocks()-1 { // which has the fewest tokens
		a.awaitRanks(t)
	}
	for token := t.Block(); token < a.now.Tokens; token += t.Blocks() {
		w, lost := a.weigh(t, token), false
		if gpu.WarpSize > 1 {
			lost = t.Warp() == 0 && w.e >= 0 && !a.answered(t, w.e)
		} else {
			for k := t.Index(); k < a.TopK && !lost; k += t.Threads() {
				e := a.expert(token*a.TopK + k)
				lost = e >= 0 && !a.answered(t, e)
			}
		}
		if t.AnyOfBlock(lost) { // what else has failed makes no answer of these wrong, and to look would be a trip to memory for each token
			return
		}
		a.combine(t, token, w)
	}
}

// awaitRanks waits until each rank has answered, by one of its experts: it has received then, and its slots may be written again
// by who has no token there. Where the time is counted it waits for all of them.
func (a *llOp) awaitRanks(t gpu.Thread) {
	for rank := t.Index(); rank < a.DC.Ranks; rank += t.Threads() {
		e, end := a.first(rank), a.first(rank+1)
		if e == end || a.missing(rank) {
			continue
		}
		if !a.Meter.on() {
			end = e + 1
		}
		since := a.Meter.clock(t)
		for e < end && a.answered(t, e) {
			e++
		}
		a.Meter.waited(t, rank, since)
	}
}

// answered waits until an expert has answered. A thread calls it.
func (a *llOp) answered(t gpu.Thread, e int32) bool {
	rank := a.owner(e)
	c := gin.Open(&a.DC, a.context(e-a.first(rank)))
	s := a.awaitRaised(t, &c, a.combineSignal(a.now.Set, e), rank, a.now.Answers)
	if s != gin.OK {
		a.fail(s, FaultAnswer, rank, int64(e), 0)
	}
	return s == gin.OK
}

// weighed is the expert of the selection with this lane's number, -1 for none, its weight, 0 for none, and which lanes have one.
type weighed struct {
	e   int32
	w   float32
	all uint32
}

// weigh looks at a token's selections and weights before their answers are waited for. All lanes of a warp call it; a lane that is
// alone has too many for it.
func (a *llOp) weigh(t gpu.Thread, token int32) (w weighed) {
	if gpu.WarpSize == 1 {
		return w
	}
	w.e = -1
	if i := token*a.TopK + t.Lane(); t.Lane() < a.TopK {
		if w.e = a.expert(i); w.e >= 0 {
			w.w = a.Weights.At(int(i)).Load()
		}
	}
	w.all = gpu.Ballot(t, w.e >= 0)
	return w
}

// combine is of one token, by all threads of a block.
func (a *llOp) combine(t gpu.Thread, token int32, w weighed) {
	out, in := a.Y.Byte(uint64(token)*a.row()), a.Recv.Base.Byte(a.back(token, 0))
	if gpu.WarpSize == 1 {
		a.combineRows(t, token, gpu.Cast[uint32](out), in)
		return
	}
	if a.TopK%answersAtOnce == 0 && w.all == 1<<uint(a.TopK)-1 {
		a.combineLanes(t, out, in, w, true)
	} else {
		a.combineLanes(t, out, in, w, false)
	}
}

// combineLanes is combine by warps. every: each selection has an expert, as many as are loaded at once; then no load hangs on a
// condition, and none waits for the one before it.
func (a *llOp) combineLanes(t gpu.Thread, out, in gpu.Ptr[byte], w weighed, every bool) {
	n := a.Hidden / 8
	rows, sums := gpu.Cast[gpu.U32x4](in), gpu.Cast[gpu.U32x4](out)
	for first := t.Warp() * gpu.WarpSize; first < n; first += t.Threads() { // the same to all lanes
		s, i := sum{}, first+t.Lane()
		at := min(i, n-1) // who is behind the end loads what the last one does
		for k := int32(0); k < a.TopK; k += answersAtOnce {
			var v [answersAtOnce]gpu.U32x4
			has := w.all >> (uint32(k) % gpu.WarpSize)
			//gpu:unroll 8
			for j := range int32(answersAtOnce) {
				if every || has>>uint(j)&1 != 0 {
					v[j] = rows.At(int((k+j)*n + at)).Load()
				}
			}
			//gpu:unroll 8
			for j := range int32(answersAtOnce) {
				s.addFour(v[j], gpu.ShflIdx(t, w.w, k+j)) // of a selection without expert +0 times +0, which changes no sum: none is -0
			}
		}
		if i < n {
			sums.At(int(i)).Store(s.four())
		}
	}
}

// answersAtOnce is how many loads of a lane are on their way: a load takes a GPU as long as all the rest.
const answersAtOnce = 8

// combineRows is combine where all of a token's answers are added up in one pass.
func (a *llOp) combineRows(t gpu.Thread, token int32, out gpu.Ptr[uint32], in gpu.Ptr[byte]) {
	var rows [MaxTopK][]uint32
	var w [MaxTopK]float32
	pairs, own, n := a.Hidden/2, a.inPlace(), 0
	share := (pairs + t.Threads() - 1) / t.Threads()
	from := min(t.Index()*share, pairs)
	share = min(share, pairs-from)
	for k := range a.TopK {
		i := token*a.TopK + k
		e := a.expert(i)
		if e < 0 {
			continue
		}
		row := in.Byte(uint64(k) * a.row())
		if own && a.owner(e) == a.DC.Rank {
			row = a.Out.Base.Byte(a.output(uint64(a.Own.At(int(i)).Load())))
		}
		rows[n], w[n] = gpu.Slice(gpu.Cast[uint32](row).At(int(from)), int(share)), a.Weights.At(int(i)).Load()
		n++
	}
	num.SumPairs(gpu.Slice(out.At(int(from)), int(share)), rows[:n], w[:n])
}

// inPlace says whether what this rank's experts answer its own tokens is added up where it lies. A core takes as long to copy a row
// as to add it up. A GPU hardly gains, and its sum is quicker with one place to look at.
func (a *LL) inPlace() bool {
	_, near := a.lsa(a.DC.Rank)
	return gpu.WarpSize == 1 && near
}
