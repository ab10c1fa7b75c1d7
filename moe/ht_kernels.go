// SPDX-License-Identifier: Apache-2.0

package moe

import (
	"github.com/doorbell-net/doorbell/gin"
	"github.com/doorbell-net/doorbell/gpu"
)

// HTInfo says whose a received row is. Its token's TopK experts follow, 4 bytes each, and then as many weights.
type HTInfo struct {
	Rank, Token int32
	_           [8]byte
}

// HTPlan is what a dispatch's layout comes to.
type HTPlan struct {
	Rows    uint32 // that this rank receives
	Refused uint32 // 1: some rank has no room for its rows, and nothing was sent
	Tokens  int32  // of this rank
	_       [52]byte
}

// HTState is what grows with each operation. Kernels alone change it, so that launches that were recorded may be replayed.
type HTState struct {
	Dispatches, Combines     uint64 // that have ended; that have begun
	Begin, Known, Sent, Done uint64 // of the last dispatch, on the device's clock: begun, layout known, own rows sent, all there
	_                        [16]byte
}

// HTWay is what has gone between this rank and the one with its place in another node, over one channel. All but Left are
// since the beginning.
type HTWay struct {
	Staged, Put  uint64 // messages to the peer
	Taken, Freed uint64 // messages from the peer: done with; of these told
	Left         uint64 // of this operation: messages to come, or to be sent
	_            [24]byte
}

// htHeader stands at the start of a message between nodes. The token's row at each rank of the node follows (-1: none), its
// TopK experts and as many weights, 4 bytes each.
type htHeader struct {
	Token uint32
	Op    uint32 // number of the dispatch, low bits
	_     [8]byte
}

const (
	htInfoBytes   = 16
	htHeaderBytes = 16
	htPlanBytes   = 64
)

// HT is the arguments of the high-throughput kernels.
type HT struct {
	DC  gin.DevComm
	Win gin.Window // all that peers read and write; what lies where: the offsets below

	X, Y     gpu.Ptr[byte]    // [token] rows: to dispatch, combined
	Idx      gpu.Ptr[int32]   // [token][k]
	Weights  gpu.Ptr[float32] // [token][k], or nil
	Count    gpu.Ptr[uint32]  // how many tokens there are; nil: Tokens
	YWeights gpu.Ptr[float32] // [token][k], combined, or nil
	Bias     [2]gpu.Ptr[byte] // [token] rows, or nil

	Plan       gpu.Ptr[HTPlan]
	Place      gpu.Ptr[int32] // [token][rank]: the token's row there, -1 for none; until the rows are sent, of its part's alone
	Base       gpu.Ptr[int32] // [rank]: where this rank's rows begin there
	Routes     gpu.Ptr[int32] // [channel][node][message][rank of this node]: row of what came from that node
	Routed     gpu.Ptr[int32] // [channel][node]: how many messages those are
	Selections gpu.Ptr[int32] // [local], none of a layout that was refused
	ExpertRows gpu.Ptr[int32] // [local]: selections, rounded up

	State   gpu.Ptr[HTState]
	Ways    gpu.Ptr[HTWay] // [channel][node]
	Before  gpu.Ptr[int32] // [rank][part] rows of this rank's tokens of the parts before
	Mine    gpu.Ptr[int32] // [rank] rows, then [channel][node] messages, of this rank's tokens
	Chosen  gpu.Ptr[int32] // [expert] selections of this rank's tokens; 0 between dispatches
	Scratch gpu.Ptr[byte]  // [warp] a payload
	Faults  Faults
	Missing Missing // then Node is 1
	Meter   Meter

	RowsAt, InfosAt     uint64 // [row] payloads; infos
	OutsAt, OutWeightAt uint64 // [row] rows; [row][k]
	RingsAt, StageAt    uint64 // [channel][node] rings of what comes from there, and goes there
	InAt, OutAt         uint64 // [2][rank] layouts of others; for them
	RingBytes           uint64 // from one ring to the next

	Tokens, MaxTokens, MaxRows   int32
	Hidden, TopK, Experts, Align int32
	Node                         int32 // ranks of a node
	Channels, ChannelRows        int32 // parts of the tokens; tokens of one, at most
	Ring, Chunk                  int32 // messages
	CountBytes, InfoBytes        int32
	Head, Msg, Answer            int32 // before a message's payload; both; what a combine puts
	Format, Values, Payload      int32 // bytes of a row's elements; with their scales
	Again                        int32 // 1: the layout is there already
	OneNode                      int32 // 1: there is one node, and kernels have no part for others
	Combine                      int32 // 1: of a combine: the dispatch has ended
	_                            [4]byte
}

func (a *HT) row() uint64 { return 2 * uint64(a.Hidden) }

func (a *HT) nodes() int32 {
	if a.OneNode != 0 {
		return 1
	}
	return a.DC.Ranks / a.Node
}

func (a *HT) node() int32 {
	if a.OneNode != 0 {
		return 0
	}
	return a.DC.Rank / a.Node
}

// here says whether a rank is of this node.
func (a *HT) here(rank int32) bool { return a.OneNode != 0 || rank/a.Node == a.node() }

// near is the rank of this node with that place in it, peer that of another node with this rank's place.
func (a *HT) near(place int32) int32 { return a.node()*a.Node + place }
func (a *HT) peer(node int32) int32  { return node*a.Node + a.DC.Rank%a.Node }

// experts are those of a rank, or of several that follow it, and where they end.
func (a *HT) experts(rank, ranks int32) (first, end int32) {
	s := spreadOf(a.Experts, a.DC.Ranks)
	return s.first(rank), s.first(rank + ranks)
}

// nowhere says that an expert is of a rank that is missing.
func (a *HT) nowhere(e int32) bool {
	return a.Missing.some() && a.Missing.has(spreadOf(a.Experts, a.DC.Ranks).owner(e))
}

// goes says whether a token selects one of some experts, which are one rank's where ranks are missing. All selections are looked
// at, so that all loads are on their way at once.
func (a *HT) goes(token, first, end int32) bool {
	idx, n := a.Idx.At(int(token)*int(a.TopK)), 0
	//gpu:unroll 8
	for k := range a.TopK {
		if e := idx.At(int(k)).Load(); e >= first && e < end {
			n++
		}
	}
	return n > 0 && !a.nowhere(first)
}

// channel is the tokens of one, of which none are sent where the layout was refused.
func (a *HT) channel(c int32) (first, end int32) {
	if a.Plan.Raw().Refused != 0 {
		return 0, 0
	}
	return a.part(c, a.Plan.Raw().Tokens)
}

func (a *HT) part(c, tokens int32) (first, end int32) {
	per := (tokens + a.Channels - 1) / a.Channels
	return min(c*per, tokens), min((c+1)*per, tokens)
}

// tokens is how many this rank has, before the plan says it.
func (a *HT) tokens() int32 {
	if a.Count.IsNil() {
		return a.Tokens
	}
	return int32(min(a.Count.Load(), uint32(a.Tokens)))
}

// pastCaches is LL.pastCaches for the rows of this rank's tokens.
func (a *HT) pastCaches() bool {
	return gpu.WarpSize == 1 && uint64(a.Plan.Raw().Tokens)*uint64(a.Payload) > coreBytes
}

// op is the number of a dispatch, from 1 on, until it has ended.
func (a *HT) op() uint64 { return a.State.Raw().Dispatches + 1 }

// fail is Faults', of the newest dispatch.
func (a *HT) fail(s gin.Status, what uint32, rank int32, x, y int64) {
	a.Faults.fail(&a.DC, a.State.Raw().Dispatches-uint64(a.Combine), s, what, rank, x, y)
}

// What lies where.
func (a *HT) rowAt(row int32) uint64  { return a.RowsAt + uint64(row)*uint64(a.Payload) }
func (a *HT) infoAt(row int32) uint64 { return a.InfosAt + uint64(row)*uint64(a.InfoBytes) }
func (a *HT) outAt(row int32) uint64  { return a.OutsAt + uint64(row)*a.row() }
func (a *HT) outWeightsAt(row int32) uint64 {
	return a.OutWeightAt + uint64(row)*uint64(4*a.TopK)
}

// countsAt is what a rank says of its layout to another; there are two sets, used in turn.
func (a *HT) countsAt(base uint64, op uint64, rank int32) uint64 {
	return base + (op%2*uint64(a.DC.Ranks)+uint64(rank))*uint64(a.CountBytes)
}

// Signals. Of each rank, in context 0: it has told its layout; its rows are there, a channel each; its outputs are; it has
// read those of this rank, a warp each.
func (a *HT) told(rank int32) int32    { return rank }
func (a *HT) arrived(rank int32) int32 { return a.DC.Ranks + rank }
func (a *HT) ready(rank int32) int32   { return 2*a.DC.Ranks + rank }
func (a *HT) read(rank int32) int32    { return 3*a.DC.Ranks + rank }

// Of each way, in its channel's context: messages put from that node; of those put to it, messages done with.
func (a *HT) tail(channel, node int32) int32 {
	return 4*a.DC.Ranks + channel*a.nodes() + node
}
func (a *HT) head(channel, node int32) int32 {
	return a.tail(channel, node) + a.Channels*a.nodes()
}

// roles is how many warps a channel has: the second is for what comes from other nodes.
func (a *HT) roles() int32 { return min(a.nodes(), 2) }

// role is which channel the calling warp is of, and which of its warps.
func (a *HT) role(t gpu.Thread) (channel, role int32) {
	w := t.Block()*t.Warps() + t.Warp()
	return w / a.roles(), w % a.roles()
}

// signalNode raises a signal of context 0 by n at each rank of this node, a lane each, unless something has failed: it would say
// that all came before it.
func (a *HT) signalNode(t gpu.Thread, id int32, n uint64) {
	if a.Faults.over(t) {
		return
	}
	t.SyncWarp() // each lane releases what all of them have stored
	c := gin.Open(&a.DC, 0)
	for i := t.Lane(); i < a.Node; i += gpu.WarpSize {
		rank := a.near((a.DC.Rank + i) % a.Node)
		if s := c.LSASignal(gin.ByThread(t), gin.LSARank(&a.DC, rank), id, n); s != gin.OK {
			a.fail(s, FaultSend, rank, 0, 0)
		}
	}
	a.Meter.note(t, true, 0, 0, uint32(a.Node))
}

// await is awaitFrom of a rank, in context 0. A thread calls it.
func (a *HT) await(t gpu.Thread, id int32, least uint64, rank int32) bool {
	c := gin.Open(&a.DC, 0)
	since := a.Meter.clock(t)
	s := awaitFrom(t, &a.DC, &c, id, least, a.here(rank))
	a.Meter.waited(t, rank, since)
	if s != gin.OK {
		a.fail(s, FaultWait, rank, 0, 0)
	}
	return s == gin.OK
}

// awaitAll waits for the signals of ranks first to end, a lane each: base is that of rank 0. All lanes of a warp call it.
func (a *HT) awaitAll(t gpu.Thread, base, first, end int32, least uint64) bool {
	all := true
	for rank := first + t.Lane(); rank < end && all; rank += gpu.WarpSize {
		all = a.Missing.has(rank) || a.await(t, base+rank, least, a.bringer(rank))
	}
	all = gpu.All(t, all)
	t.SyncWarp() // what one lane has seen, all see
	return all
}

// bringer is the rank of this node that stores a rank's rows here: itself, or who passes them on.
func (a *HT) bringer(src int32) int32 { return a.near(src % a.Node) }

// HTValuesArgs is the arguments of HTValues.
type HTValuesArgs struct {
	A      HT
	Values gpu.Ptr[uint64] // by id
}

// HTValues copies the values of all signals, for who compares them with what they must be.
//
//gpu:kernel
func HTValues(t gpu.Thread, a HTValuesArgs) {
	ways := a.A.Channels * a.A.nodes()
	for i := t.Index(); i < 4*a.A.DC.Ranks; i += t.Threads() {
		c := gin.Open(&a.A.DC, 0)
		a.Values.At(int(i)).Store(c.ReadSignal(i))
	}
	for i := t.Index(); i < 2*ways; i += t.Threads() {
		c := gin.Open(&a.A.DC, i%ways/a.A.nodes()%a.A.DC.Contexts)
		a.Values.At(int(4*a.A.DC.Ranks + i)).Store(c.ReadSignal(4*a.A.DC.Ranks + i))
	}
}
