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

// LLResult is what the kernels of one operation leave for the host.
type LLResult struct {
	State  uint32 // 0: nothing went wrong; 1: somebody fills it; 2: filled
	Status gin.Status
	What   uint32 // Fault*
	Rank   int32
	A, B   int64
	Cut    uint32 // not 0 once a wait failed: the others look once and do not wait
	_      [28]byte
}

// What went wrong.
const (
	FaultSend      = 1 // status of a put or signal to Rank
	FaultWait      = 2 // status of a wait for Rank; A is the expert
	FaultSelection = 3 // selection A of the own tokens is B: no expert
	FaultCopies    = 4 // A selections name expert B: more than fit
	FaultCount     = 5 // Rank sent A rows for expert B: more than it can
	FaultHeader    = 6 // Rank's row A for expert B has a header that cannot be
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

	Rows   gpu.Ptr[byte]    // [local][rank*Cap] payloads
	Infos  gpu.Ptr[RowInfo] // [local][rank*Cap]
	Counts gpu.Ptr[uint32]  // [local] rows
	Blocks gpu.Ptr[Block]   // [local][rank]
	Base   gpu.Ptr[uint64]  // [set][box][rank]: what the signal ended at before
	Ended  gpu.Ptr[uint64]  // [set][box][rank]: what it ends at; the Base of the set's next dispatch

	Total  gpu.Ptr[uint32] // [far box] messages of the own tokens
	Next   gpu.Ptr[uint32] // [far box] slots taken
	Done   gpu.Ptr[uint32] // [far box] messages on their way
	Result gpu.Ptr[LLResult]

	Tokens, MaxTokens, Cap int32
	Hidden, TopK, Experts  int32
	Locals                 int32
	NoLSA, Deterministic   int32  // 0 or 1
	PerRank                int32  // 0: a box is an expert's; 1: a rank's
	Boxes, BoxCap          int32  // of a rank; messages of a rank to one
	Head                   int32  // bytes before the payload
	Sets, Set              int32  // of slots; that of this operation
	Turn                   int32  // which of the rows and outputs are its
	Op                     uint32 // number of the dispatch
	Format                 int32
	Values, Payload        int32  // bytes of a row's elements; with their scales
	Want                   uint64 // combine: what each expert's signal comes to
}

// row is the size of a row as the caller has it and of an answer: BF16. payload is that of one on its way to an expert.
func (a *LL) row() uint64     { return 2 * uint64(a.Hidden) }
func (a *LL) payload() uint64 { return uint64(a.Payload) }
func (a *LL) msg() uint64     { return uint64(a.Head) + a.payload() }

// first is the first expert of a rank.
func (a *LL) first(rank int32) int32 {
	return rank*(a.Experts/a.DC.Ranks) + min(rank, a.Experts%a.DC.Ranks)
}

// owner is the rank that an expert lives on: the first ranks have one more where they do not divide.
func (a *LL) owner(e int32) int32 {
	each, more := a.Experts/a.DC.Ranks, a.Experts%a.DC.Ranks
	if e < more*(each+1) {
		return e / (each + 1)
	}
	return more + (e-more*(each+1))/each
}

// slot is where message n of rank src to a box of this rank lies in the receive window.
func (a *LL) slot(box, src, n int32) uint64 {
	set := uint64(a.Boxes*a.DC.Ranks) * uint64(a.BoxCap) * a.msg()
	return uint64(a.Set)*set + (uint64(box*a.DC.Ranks+src)*uint64(a.BoxCap)+uint64(n))*a.msg()
}

// back is where the answer to selection k of a token lies in the receive window.
func (a *LL) back(token, k int32) uint64 {
	slots := uint64(a.Sets) * uint64(a.Boxes*a.DC.Ranks) * uint64(a.BoxCap) * a.msg()
	return slots + ((uint64(a.Set)*uint64(a.MaxTokens)+uint64(token))*uint64(a.TopK)+uint64(k))*a.row()
}

// output is where what an expert made of a row lies in the window of outputs.
func (a *LL) output(row uint64) uint64 {
	return (uint64(a.Turn)*uint64(a.Locals*a.DC.Ranks)*uint64(a.Cap) + row) * a.row()
}

// dispatchSignal counts what rank src sent to a box; combineSignal that expert e has answered.
func (a *LL) dispatchSignal(box, src int32) int32 { return (a.Set*a.Boxes+box)*a.DC.Ranks + src }
func (a *LL) combineSignal(e int32) int32 {
	return a.Sets*a.Boxes*a.DC.Ranks + a.Set*a.Experts + e
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

// goes is the far box that a message is put into for selection k of a token: -1 if there is none, or one has it already.
func (a *LL) goes(token, k int32) int32 {
	e := a.expert(token, k)
	if e < 0 || a.PerRank == 0 {
		return e
	}
	rank := a.owner(e)
	for i := range k {
		if f := a.expert(token, i); f >= 0 && a.owner(f) == rank {
			return -1
		}
	}
	return rank
}

// lsa is the LSA rank of a rank that is stored to, -1 for one that is put to.
func (a *LL) lsa(rank int32) int32 {
	if a.NoLSA != 0 {
		return -1
	}
	return gin.LSARank(&a.DC, rank)
}

func (a *LL) fault(s gin.Status, what uint32, rank int32, x, y int64) {
	state := gpu.PtrTo(&a.Result.Raw().State)
	if !gpu.AtomicCAS(state, 0, 1, gpu.Relaxed, gpu.ScopeGPU) {
		return
	}
	r := a.Result.Raw()
	r.Status, r.What, r.Rank, r.A, r.B = s, what, rank, x, y
	gpu.Store(state, 2, gpu.Release, gpu.ScopeSys)
}

// waitFailed notes it, and ends the other waits of this operation: its result is lost anyway.
func (a *LL) waitFailed(s gin.Status, rank, e int32) {
	a.fault(s, FaultWait, rank, int64(e), 0)
	gpu.Store(gpu.PtrTo(&a.Result.Raw().Cut), 1, gpu.Relaxed, gpu.ScopeGPU)
}

func (a *LL) cutShort(c *gin.Context) {
	if gpu.Load(gpu.PtrTo(&a.Result.Raw().Cut), gpu.Relaxed, gpu.ScopeGPU) != 0 {
		c.SetTimeout(0)
	}
}

// expert is selection k of a token, -1 for none. What is no expert counts as none: LLCount has reported it.
func (a *LL) expert(token, k int32) int32 {
	e := a.Idx.At(int(token)*int(a.TopK) + int(k)).Load()
	if e < 0 || e >= a.Experts {
		return -1
	}
	return e
}

// LLSignalsArgs is the arguments of LLSignals.
type LLSignalsArgs struct {
	A      LL
	Values gpu.Ptr[uint64] // [set][box][rank], then [set][expert]
}

// LLSignals copies the values of all signals, for who compares them with what they must be.
//
//gpu:kernel
func LLSignals(t gpu.Thread, a LLSignalsArgs) {
	for set := range a.A.Sets {
		a.A.Set = set
		for i := t.Index(); i < a.A.Boxes*a.A.DC.Ranks; i += t.Threads() {
			id := a.A.dispatchSignal(i/a.A.DC.Ranks, i%a.A.DC.Ranks)
			c := gin.Open(&a.A.DC, a.A.context(i/a.A.DC.Ranks))
			a.Values.At(int(id)).Store(c.ReadSignal(id))
		}
		for e := t.Index(); e < a.A.Experts; e += t.Threads() {
			id := a.A.combineSignal(e)
			c := gin.Open(&a.A.DC, a.A.context(e-a.A.first(a.A.owner(e))))
			a.Values.At(int(id)).Store(c.ReadSignal(id))
		}
	}
}
