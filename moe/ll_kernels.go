// SPDX-License-Identifier: Apache-2.0

package moe

import (
	"github.com/doorbell-net/doorbell/gin"
	"github.com/doorbell-net/doorbell/gpu"
)

// Header stands at the start of a dispatch message. The token's TopK selections follow, 16 bits each, so that the
// receiver knows which of them it serves, and the same bytes go to all of them.
type Header struct {
	Token uint32
	Op    uint32 // number of the dispatch, low bits
	_     [8]byte
}

// RowInfo says whose a packed row is.
type RowInfo struct {
	Rank, Token, K int32 // source, its token, and which of the token's selections
	Expert         int32 // in the world
}

// Block is where the rows of one source stand among those of a local expert.
type Block struct{ Begin, Rows uint32 }

// LLTurn is which operation has a turn's rows and outputs. Its dispatch fills it, and the kernels that come after it read it:
// a launch that is replayed from a graph brings the arguments that were recorded, and yet is part of another operation each
// time.
type LLTurn struct {
	Op      uint64 // number of the dispatch
	Answers uint64 // what the signals of its combine come to
	Set     int32  // of slots and signals
	Half    int32  // of Ends, that it reads; it writes the other
	Tokens  int32
	_       [36]byte
}

// LLNext is what the next dispatch will be. The last of a dispatch's blocks to have looked makes it the one after.
type LLNext struct {
	Op     uint64
	Place  int32  // its Half and Set: Op modulo 2*Sets
	_      uint32 // so far all blocks read in one load
	Looked uint32 // blocks; 0 between two dispatches
	_      [44]byte
}

// Box is what is known of this rank's messages to a box. It is 0 between two dispatches: who tells the box's rank clears it.
type Box struct {
	Gone  uint64 // parts of messages on their way, and from oneCounted on how many messages they come to
	Taken uint32 // slots
	_     uint32
}

// What is added to Box.Gone besides 1 for each part of a message.
const (
	oneCounted = 1 << 32
	allCounted = 1 << 63
)

// What a launch does of an operation.
const (
	sends    = 1
	receives = 2
)

// LL is the arguments of the low-latency kernels.
type LL struct {
	DC    gin.DevComm
	Recv  gin.Window // [set][box][rank][BoxCap] messages, then [set][token][k] rows
	Stage gin.Window // [set][token] messages
	Out   gin.Window // [turn][local][rank*Cap] rows: what the experts made of Rows

	X       gpu.Ptr[byte]    // [token] rows to dispatch
	Idx     gpu.Ptr[int32]   // [token][k]
	Weights gpu.Ptr[float32] // [token][k]
	Y       gpu.Ptr[byte]    // [token] rows, combined
	Count   gpu.Ptr[uint32]  // how many tokens there are; nil: Tokens

	Rows   gpu.Ptr[byte]    // [local][rank*Cap] payloads
	Infos  gpu.Ptr[RowInfo] // [local][rank*Cap]
	Counts gpu.Ptr[uint32]  // [local] rows
	Blocks gpu.Ptr[Block]   // [local][rank]
	Own    gpu.Ptr[uint32]  // [token][k] this rank's packed row of a selection of its own

	Next    gpu.Ptr[LLNext]
	Now     gpu.Ptr[LLTurn]
	Answers gpu.Ptr[uint64] // [set] combines so far: what the signal of each expert comes to
	Ends    gpu.Ptr[uint64] // [2][set][box][rank] what the set's last dispatch ended at, and what this one does
	Far     gpu.Ptr[Box]    // [far box], and of PerRank [expert] behind them
	Packed  gpu.Ptr[uint64] // [local] ranks whose rows have a place, times 2^32, and those rows; 0 between two dispatches
	Faults  Faults

	Missing Missing
	Meter   Meter

	Tokens, MaxTokens, Cap int32
	Hidden, TopK, Experts  int32
	Locals                 int32
	Each, More             int32 // experts of a rank; how many of the first ranks have one more
	NoLSA, Deterministic   int32 // 0 or 1
	Near                   int32 // 1: all ranks are stored to, faultlessly, and kernels have no part for others
	PerRank                int32 // 0: a box is an expert's; 1: a rank's
	Boxes, BoxCap          int32 // of a rank; messages of a rank to one
	Head                   int32 // bytes before the payload
	Sets                   int32 // of slots
	Turn                   int32 // which of the rows and outputs are this operation's
	Parts                  int32 // sends, receives, or both
	Format                 int32
	Values, Payload        int32 // bytes of a row's elements; with their scales
}

// llOp is a kernel's arguments and the operation that it is of, in the block's own memory: that costs no registers.
type llOp struct {
	*LL
	now *LLTurn
}

// opening is what the first thread of a block reads for all.
type opening struct {
	now  LLTurn
	over bool
}

var opened gpu.Shared[opening]

// begin reads the operation, and says whether operations have failed: the same to all threads of a block.
func (a *LL) begin(t gpu.Thread, p *opening, next bool) (over bool) {
	if t.Index() == 0 {
		over = a.Faults.failed()
		if next {
			p.now = a.ahead()
		} else {
			p.now = a.Now.Load()
		}
		p.over = over
	}
	t.SyncBlock()
	return p.over
}

// fetchPeers has on its way what is looked up of ranks that are stored to. Kernels begin with what they read first, while they wait for
// what the operation is: each trip to memory takes a GPU as long as a hundred instructions.
func (a *LL) fetchPeers(t gpu.Thread) {
	for i := t.Index(); i < a.DC.LSASize; i += t.Threads() {
		gpu.Prefetch(gpu.Cast[byte](a.Recv.Peer(a.Recv.LSA0 + i)))
		gpu.Prefetch(gpu.Cast[byte](a.DC.PeerLSA.At(int(i))))
	}
}

// prefetch is of bytes by so many threads, of which the calling one is number i.
func prefetch(p gpu.Ptr[byte], bytes uint64, i, threads int32) {
	const line = 128
	for at := uint64(i) * line; at < bytes; at += uint64(threads) * line {
		gpu.Prefetch(p.Byte(at))
	}
}

// ahead is the next dispatch.
func (a *LL) ahead() LLTurn {
	next, tokens := gpu.Cast[gpu.U32x4](a.Next).Load(), uint32(a.Tokens)
	if !a.Count.IsNil() {
		tokens = min(tokens, a.Count.Load())
	}
	now := LLTurn{Op: uint64(next[1])<<32 | uint64(next[0]), Set: int32(next[2]), Tokens: int32(tokens)}
	if now.Set >= a.Sets {
		now.Set, now.Half = now.Set-a.Sets, 1
	}
	return now
}

// looked is called once by each block of a dispatch that sends: the last one leaves word of the dispatch, and makes the one
// after it the next. Nobody waits for that.
func (a *llOp) looked(t gpu.Thread) {
	next, now := a.Next.Raw(), *a.now
	if gpu.AtomicAdd(gpu.PtrTo(&next.Looked), 1, gpu.AcqRel, gpu.ScopeGPU)+1 != uint32(t.Blocks()) {
		return
	}
	now.Answers = a.Answers.At(int(now.Set)).Load() + 1 // the combine of before, in this set, has been or never comes
	a.Now.Store(now)
	next.Looked = 0
	next.Op++
	if next.Place++; next.Place == 2*a.Sets {
		next.Place = 0
	}
	if a.Count.IsNil() {
		return
	}
	if n := a.Count.Load(); n > uint32(a.Tokens) {
		a.refuse(FaultTokens, int64(n), int64(a.Tokens))
	}
}

// end is where what a dispatch's signal came to is noted: before this one (0) and after it (1). There are two tables, used
// in turn, so that all who wait for one signal read what it was.
func (a *llOp) end(after, id int32) gpu.Ptr[uint64] {
	return a.Ends.At(int((a.now.Half^after)*a.Sets*a.Boxes*a.DC.Ranks + id))
}

// row is the size of a row as the caller has it and of an answer: BF16. payload is that of one on its way to an expert.
func (a *LL) row() uint64     { return 2 * uint64(a.Hidden) }
func (a *LL) payload() uint64 { return uint64(a.Payload) }
func (a *LL) msg() uint64     { return uint64(a.Head) + a.payload() }

func (a *LL) first(rank int32) int32 { return spread{a.Each, a.More}.first(rank) }
func (a *LL) owner(e int32) int32    { return spread{a.Each, a.More}.owner(e) }

// slot is where message n of rank src to a box of this rank lies in the receive window.
func (a *llOp) slot(box, src, n int32) uint64 {
	set := uint64(a.Boxes*a.DC.Ranks) * uint64(a.BoxCap) * a.msg()
	return uint64(a.now.Set)*set + (uint64(box*a.DC.Ranks+src)*uint64(a.BoxCap)+uint64(n))*a.msg()
}

// back is where the answer to selection k of a token lies in the receive window.
func (a *llOp) back(token, k int32) uint64 {
	slots := uint64(a.Sets) * uint64(a.Boxes*a.DC.Ranks) * uint64(a.BoxCap) * a.msg()
	return slots + ((uint64(a.now.Set)*uint64(a.MaxTokens)+uint64(token))*uint64(a.TopK)+uint64(k))*a.row()
}

// output is where what an expert made of a row lies in the window of outputs.
func (a *LL) output(row uint64) uint64 {
	return (uint64(a.Turn)*uint64(a.Locals*a.DC.Ranks)*uint64(a.Cap) + row) * a.row()
}

// dispatchSignal counts what rank src sent to a box; combineSignal that expert e has answered.
func (a *LL) dispatchSignal(set, box, src int32) int32 { return (set*a.Boxes+box)*a.DC.Ranks + src }
func (a *LL) combineSignal(set, e int32) int32 {
	return a.Sets*a.Boxes*a.DC.Ranks + set*a.Experts + e
}

// context is the lane of a box or an expert of a rank: its messages and its signals are ordered against each other, no
// others need be.
func (a *LL) context(local int32) int32 { return local % a.DC.Contexts }

// farBoxes is how many boxes all ranks have: messages to an expert go into its own, or into its rank's.
func (a *LL) farBoxes() int32 {
	if a.PerRank != 0 {
		return a.DC.Ranks
	}
	return a.Experts
}

// place is the rank of a far box, and which of the rank's it is.
func (a *LL) place(box int32) (rank, local int32) {
	if a.PerRank != 0 {
		return box, 0
	}
	rank = a.owner(box)
	return rank, box - a.first(rank)
}

// goes is the far box that a message is put into for selection i of all tokens': -1 if there is none, or an earlier selection of
// its token has put one there already.
func (a *LL) goes(i int32) int32 { return a.boxOf(i, a.expert(i)) }

// boxOf is goes of selection i that is of expert e, or of none.
func (a *LL) boxOf(i, e int32) int32 {
	if e < 0 || a.PerRank == 0 {
		return e
	}
	rank := a.owner(e)
	for j := i - i%a.TopK; j < i; j++ {
		if f := a.expert(j); f >= 0 && a.owner(f) == rank {
			return -1
		}
	}
	return rank
}

// lsa is the LSA rank of a rank, and whether it is stored to.
func (a *LL) lsa(rank int32) (p int32, near bool) {
	p = gin.LSARank(&a.DC, rank)
	return p, a.Near != 0 || a.NoLSA == 0 && p >= 0
}

// raised is the value of a signal of this rank that one rank alone raises.
func (a *LL) raised(c *gin.Context, id, by int32) uint64 {
	if _, near := a.lsa(by); near {
		return c.ReadLSASignal(id)
	}
	return c.ReadSignal(id)
}

// awaitRaised is awaitFrom of a rank.
func (a *LL) awaitRaised(t gpu.Thread, c *gin.Context, id, by int32, least uint64) gin.Status {
	_, near := a.lsa(by)
	return awaitFrom(t, &a.DC, c, id, least, near)
}

// awaitFrom waits for a signal of this rank that one rank alone raises, a near one by stores. A thread calls it. As all waits, it
// ends when any rank is lost: who has lost one sends nothing more.
func awaitFrom(t gpu.Thread, dc *gin.DevComm, c *gin.Context, id int32, least uint64, near bool) gin.Status {
	all := gin.FromTeam(gin.World(dc))
	if near {
		return c.WaitLSASignal(gin.ByThread(t), id, least, 64, all)
	}
	return c.WaitSignal(gin.ByThread(t), id, least, 64, all)
}

// box is which of this rank's boxes messages to a local expert are put into.
func (a *LL) box(local int32) int32 {
	if a.PerRank != 0 {
		return 0
	}
	return local
}

// coreBytes is about what a core's own caches hold. Stores past them are quicker beyond it and slower below: a row of 14 KiB is
// copied in 2.6 us and past caches in 1.6 where all rows are 56 MiB, in 0.45 and 0.6 where they are 448 KiB (internal/sys:
// BenchmarkCopyPastCaches, on an EPYC).
const coreBytes = 1 << 20

// pastCaches says whether so many messages of so many bytes are to go past the caches of the software device's core.
func (a *LL) pastCaches(messages int32, bytes uint64) bool {
	return gpu.WarpSize == 1 && uint64(messages)*bytes > coreBytes
}

// refuse and fail are Faults'.
func (a *llOp) refuse(what uint32, x, y int64) { a.Faults.refuse(a.now.Op, what, a.DC.Rank, x, y) }
func (a *llOp) fail(s gin.Status, what uint32, rank int32, x, y int64) {
	a.Faults.fail(&a.DC, a.now.Op, s, what, rank, x, y)
}

// sent says whether a put or signal to a rank, for one of its experts, was taken, and fails if it was not.
func (a *llOp) sent(t gpu.Thread, s gin.Status, rank, local int32) bool {
	if s != gin.OK && t.Lane() == 0 {
		a.failSend(s, rank, local)
	}
	return s == gin.OK
}

// failSend is fail for a rank, and one of its experts, that something could not be sent to.
func (a *llOp) failSend(s gin.Status, rank, local int32) {
	a.fail(s, FaultSend, rank, int64(a.first(rank)+local), 0)
}

// missing says that a rank takes no part, and nowhere that an expert is of such a rank.
func (a *LL) missing(rank int32) bool { return a.Near == 0 && a.Missing.has(rank) }
func (a *LL) nowhere(e int32) bool {
	return a.Near == 0 && a.Missing.some() && a.Missing.has(a.owner(e))
}

// expert is selection i of all tokens', -1 for none. What is no expert counts as none (its dispatch has reported it), and so does
// one of a rank that is missing.
func (a *LL) expert(i int32) int32 { return a.known(a.Idx.At(int(i)).Load()) }

// known is e, or -1 if that is none.
func (a *LL) known(e int32) int32 {
	if e < 0 || e >= a.Experts || a.nowhere(e) {
		return -1
	}
	return e
}

// LLSignalsArgs is the arguments of LLSignals.
type LLSignalsArgs struct {
	A      LL
	Values gpu.Ptr[uint64] // [set][box][rank], then [set][expert], then combines by [set]
}

// LLSignals copies the values of all signals, for who compares them with what they must be.
//
//gpu:kernel
func LLSignals(t gpu.Thread, a LLSignalsArgs) {
	values := a.A.Sets * (a.A.Boxes*a.A.DC.Ranks + a.A.Experts)
	for set := range a.A.Sets {
		if t.Index() == 0 {
			a.Values.At(int(values + set)).Store(a.A.Answers.At(int(set)).Load())
		}
		for i := t.Index(); i < a.A.Boxes*a.A.DC.Ranks; i += t.Threads() {
			id := a.A.dispatchSignal(set, i/a.A.DC.Ranks, i%a.A.DC.Ranks)
			c := gin.Open(&a.A.DC, a.A.context(i/a.A.DC.Ranks))
			a.Values.At(int(id)).Store(c.ReadSignal(id))
		}
		for e := t.Index(); e < a.A.Experts; e += t.Threads() {
			id := a.A.combineSignal(set, e)
			c := gin.Open(&a.A.DC, a.A.context(e-a.A.first(a.A.owner(e))))
			a.Values.At(int(id)).Store(c.ReadSignal(id))
		}
	}
}
