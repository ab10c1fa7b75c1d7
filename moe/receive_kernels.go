// SPDX-License-Identifier: Apache-2.0

package moe

import (
	"math/bits"

	"github.com/doorbell-net/doorbell/gin"
	"github.com/doorbell-net/doorbell/gpu"
)

// receive is the part of LLDispatch that waits for what each rank sent to each local expert, and packs the rows of an expert
// together. Each warp of a block waits for another rank or expert, and then all of them share the rows. Where their order matters
// an expert's are one block's, rank after rank.
func (a *llOp) receive(t gpu.Thread) {
	ranks := a.DC.Ranks
	first, end := t.Block(), (a.first(a.DC.Rank+1)-a.first(a.DC.Rank))*ranks
	if a.Deterministic != 0 {
		first *= ranks
	}
	for i := first; i < end; {
		n := int32(1)
		if a.Deterministic == 0 {
			n = pairsOf(t, i, end)
		}
		a.receivePairs(t, i, n)
		if a.Deterministic == 0 {
			i += t.Blocks() * t.Warps()
		} else if i++; i%ranks == 0 {
			i += (t.Blocks() - 1) * ranks
		}
	}
}

// from is a local expert and a rank, number i of all pairs: nearest ranks first, so that not all wait for rank 0.
func (a *LL) from(i int32) (local, src int32) {
	if local, src = i/a.DC.Ranks, i%a.DC.Ranks; a.Deterministic == 0 {
		src = (src + a.DC.Rank) % a.DC.Ranks
	}
	return local, src
}

// receivePairs packs what came of n pairs, as many as there are blocks apart, behind what is there of their experts'.
func (a *llOp) receivePairs(t gpu.Thread, first, n int32) {
	if t.Warp() < n {
		a.arrive(t, first+t.Warp()*t.Blocks())
	}
	t.SyncBlock()
	s := sharesOf(t, n, a.payload())
	for w := range n {
		a.pack(t, found.Of(t)[w], &s)
	}
	t.SyncBlock() // before there are others
}

// arrival is what came of a rank for a local expert, and where its rows begin among the expert's.
type arrival struct {
	messages, rows, begin uint32
	local, rank           int32
	back                  gpu.Ptr[byte] // where their answers go, if the rank is stored to
}

// found is what a block's warps have found, of which it has 32 at most.
var found gpu.Shared[[32]arrival]

// shares deals parts of rows out to a block's warps in turn: where there are few rows, several warps share each.
type shares struct {
	next, parts int32
	each        uint32 // bytes of a part
}

// pairsOf is how many pairs a block's warps have before the end, one each, the first of them number i. All lanes of a warp call it,
// each of which stands for another warp: a GPU divides by many instructions.
func pairsOf(t gpu.Thread, i, end int32) int32 {
	if gpu.WarpSize == 1 {
		return min(t.Warps(), (end-i+t.Blocks()-1)/t.Blocks())
	}
	return int32(bits.OnesCount32(gpu.Ballot(t, t.Lane() < t.Warps() && i+t.Lane()*t.Blocks() < end)))
}

// sharesOf is for the rows, of so many bytes, of the first n that are found.
func sharesOf(t gpu.Thread, n int32, bytes uint64) shares {
	rows := int32(0)
	for w := range n {
		rows += int32(found.Of(t)[w].rows)
	}
	parts := max(1, t.Warps()/max(rows, 1))
	return shares{parts: parts, each: shareOf(parts, bytes)}
}

// shareOf is the size of a part, of so many of so many bytes.
func shareOf(parts int32, bytes uint64) uint32 {
	return ((uint32(bytes)+uint32(parts)-1)/uint32(parts) + 15) &^ 15
}

// take says whether the next part is the calling warp's.
func (s *shares) take(t gpu.Thread) bool {
	mine := s.next == t.Warp()
	if s.next++; s.next == t.Warps() {
		s.next = 0
	}
	return mine
}

// part is where part i of a row begins, and its size.
func (s shares) part(i int32, bytes uint64) (from, n uint64) {
	from = min(uint64(uint32(i)*s.each), bytes)
	return from, min(uint64(s.each), bytes-from)
}

// arrive waits for a pair. A warp calls it.
func (a *llOp) arrive(t gpu.Thread, i int32) {
	local, src := a.from(i)
	e, box := a.first(a.DC.Rank)+local, a.box(local)
	messages := uint32(0)
	if t.Lane() == 0 && !a.missing(src) {
		messages = a.awaitCount(t, box, src, e)
	}
	rows := messages
	if a.PerRank != 0 {
		messages = gpu.ShflIdx(t, messages, 0)
		t.SyncWarp() // what lane 0 has seen, all see
		rows = a.rowsOf(t, src, e, messages)
	}
	if t.Lane() == 0 {
		begin := a.room(local, rows)
		a.Blocks.At(int(local*a.DC.Ranks + src)).Store(Block{begin, rows})
		a.Meter.took(local, rows)
		found.Of(t)[t.Warp()] = arrival{messages: messages, rows: rows, begin: begin, local: local, rank: src}
	}
}

// room is where the next so many rows of a local expert begin. Who takes the last leaves word of how many they are in all.
func (a *llOp) room(local int32, rows uint32) (begin uint32) {
	p := a.Packed.At(int(local))
	was := gpu.AtomicAdd(p, 1<<32|uint64(rows), gpu.Relaxed, gpu.ScopeGPU)
	if begin = uint32(was); was>>32 == uint64(a.DC.Ranks-1) {
		a.Counts.At(int(local)).Store(begin + rows)
		p.Store(0)
	}
	return begin
}

// pack copies a pair's rows. All warps of a block call it.
func (a *llOp) pack(t gpu.Thread, came arrival, s *shares) {
	local, src := came.local, came.rank
	e, box := a.first(a.DC.Rank)+local, a.box(local)
	row := uint32(0)
	to := a.Rows.Byte((uint64(local*a.DC.Ranks)*uint64(a.Cap) + uint64(came.begin)) * a.payload())
	infos := a.Infos.At(int(local*a.DC.Ranks)*int(a.Cap) + int(came.begin))
	msg := a.Recv.Base.Byte(a.slot(box, src, 0))
	for j := range came.messages {
		times := int32(1)
		if a.PerRank != 0 {
			times = a.names(msg, e)
		}
		for i := int32(0); i < times && row < came.rows; i++ {
			for part := range s.parts {
				if !s.take(t) {
					continue
				}
				if part == 0 {
					if f := a.info(t, local, src, int32(j), i, e, msg); t.Lane() == 0 {
						infos.Store(f)
						if src == a.DC.Rank && f.Token >= 0 && a.inPlace() {
							a.Own.At(int(f.Token*a.TopK + f.K)).Store(uint32(local*a.DC.Ranks)*uint32(a.Cap) + came.begin + row)
						}
					}
				}
				at, n := s.part(part, a.payload())
				gpu.CopyWarp(t, to.Byte(at), msg.Byte(uint64(a.Head)+at), n)
			}
			row++
			to, infos = to.Byte(a.payload()), infos.At(1)
		}
		msg = msg.Byte(a.msg())
	}
}

// rowsOf is how many rows an expert gets of a rank's messages to all experts here.
func (a *llOp) rowsOf(t gpu.Thread, src, e int32, messages uint32) uint32 {
	n := uint32(0)
	for j := t.Lane(); j < int32(messages); j += gpu.WarpSize {
		n += uint32(a.names(a.Recv.Base.Byte(a.slot(0, src, j)), e))
	}
	for mask := int32(gpu.WarpSize / 2); mask > 0; mask /= 2 {
		n += gpu.ShflXor(t, n, mask)
	}
	return min(n, uint32(a.Cap))
}

// awaitCount is how many messages a rank sent to a box, on behalf of expert e. Of those who wait for one box, the first
// expert's thread notes what its signal came to.
func (a *llOp) awaitCount(t gpu.Thread, box, src, e int32) uint32 {
	c := gin.Open(&a.DC, a.context(box))
	id := a.dispatchSignal(a.now.Set, box, src)
	from := a.end(0, id).Load()
	since := a.Meter.clock(t)
	now, s := a.raised(&c, id, src), gin.OK
	if now == from { // a look may cross PCIe: what is there already takes one
		if s = a.awaitRaised(t, &c, id, src, from+1); s == gin.OK {
			now = a.raised(&c, id, src)
		}
	}
	a.Meter.waited(t, src, since)
	what, x, y := uint32(FaultWait), int64(e), int64(0)
	if s == gin.OK {
		if e == a.first(a.DC.Rank)+box {
			a.end(1, id).Store(now)
		}
		n := now - from - 1
		if n <= uint64(a.BoxCap) {
			return uint32(n)
		}
		s, what, x, y = gin.RemoteError, FaultCount, int64(n), int64(e)
	}
	a.fail(s, what, src, x, y)
	return 0
}

// info reads the header of message j: which selection of which token it is. A token that names the expert twice sent it
// twice, and the messages serve its selections in their order; of a message to the rank, skip selections are served. All lanes
// of a warp call it.
func (a *llOp) info(t gpu.Thread, local, src, j, skip, e int32, msg gpu.Ptr[byte]) RowInfo {
	h, of := gpu.Cast[Header](msg).Load(), a.selects(t, msg, e)
	if a.PerRank == 0 && bits.OnesCount32(of) > 1 {
		for i := t.Lane(); i < j; i += gpu.WarpSize {
			if gpu.Cast[Header](a.Recv.Base.Byte(a.slot(local, src, i))).Load().Token == h.Token {
				skip++
			}
		}
		for mask := int32(gpu.WarpSize / 2); mask > 0; mask /= 2 {
			skip += gpu.ShflXor(t, skip, mask)
		}
	}
	for ; skip > 0; skip-- {
		of &= of - 1
	}
	if of == 0 || h.Token >= uint32(a.MaxTokens) || h.Op != uint32(a.now.Op) {
		if t.Lane() == 0 {
			a.fail(gin.RemoteError, FaultHeader, src, int64(j), int64(e))
		}
		return RowInfo{src, -1, -1, e}
	}
	return RowInfo{src, int32(h.Token), int32(bits.TrailingZeros32(of)), e}
}

// selects has bit k set where selection k of a message's token is of an expert. All lanes of a warp call it.
func (a *LL) selects(t gpu.Thread, msg gpu.Ptr[byte], e int32) (of uint32) {
	for first := int32(0); first < a.TopK; first += gpu.WarpSize {
		k := first + t.Lane()
		of |= gpu.Ballot(t, k < a.TopK && a.selection(msg, k) == uint16(e)) << uint(first)
	}
	return of
}

func (a *LL) selection(msg gpu.Ptr[byte], k int32) uint16 {
	return gpu.Cast[uint16](msg.Byte(headerBytes)).At(int(k)).Load()
}

func (a *LL) names(msg gpu.Ptr[byte], e int32) (n int32) {
	for k := range a.TopK {
		if a.selection(msg, k) == uint16(e) {
			n++
		}
	}
	return n
}
