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
	Recv  gin.Window // [half][local][rank][Cap] messages, then [half][token][k] rows
	Stage gin.Window // [half][token] messages
	Out   gin.Window // [local][rank*Cap] rows: what the experts made of Rows

	X       gpu.Ptr[byte]    // [token] rows to dispatch
	Idx     gpu.Ptr[int32]   // [token][k]
	Weights gpu.Ptr[float32] // [token][k]
	Y       gpu.Ptr[byte]    // [token] rows, combined

	Rows   gpu.Ptr[byte]    // [local][rank*Cap] rows
	Infos  gpu.Ptr[RowInfo] // [local][rank*Cap]
	Counts gpu.Ptr[uint32]  // [local] rows
	Blocks gpu.Ptr[Block]   // [local][rank]
	Base   gpu.Ptr[uint64]  // [half][local][rank]: what the signal ended at

	Total  gpu.Ptr[uint32] // [expert] selections of the own tokens
	Next   gpu.Ptr[uint32] // [expert] slots taken
	Done   gpu.Ptr[uint32] // [expert] messages on their way
	Result gpu.Ptr[LLResult]

	Tokens, MaxTokens, Cap int32
	Hidden, TopK, Experts  int32
	Locals                 int32
	NoLSA                  int32
	Head                   int32  // bytes before the payload
	Half                   int32  // of this operation
	Op                     uint32 // number of the dispatch
	_                      uint32
	Want                   uint64 // combine: what each expert's signal comes to
}

func (a *LL) row() uint64 { return 2 * uint64(a.Hidden) }
func (a *LL) msg() uint64 { return uint64(a.Head) + a.row() }

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

// slot is where message n of rank src for local expert l lies in the receive window.
func (a *LL) slot(l, src, n int32) uint64 {
	half := uint64(a.Locals*a.DC.Ranks) * uint64(a.Cap) * a.msg()
	return uint64(a.Half)*half + (uint64(l*a.DC.Ranks+src)*uint64(a.Cap)+uint64(n))*a.msg()
}

// back is where the answer to selection k of a token lies in the receive window.
func (a *LL) back(token, k int32) uint64 {
	slots := 2 * uint64(a.Locals*a.DC.Ranks) * uint64(a.Cap) * a.msg()
	return slots + ((uint64(a.Half)*uint64(a.MaxTokens)+uint64(token))*uint64(a.TopK)+uint64(k))*a.row()
}

// dispatchSignal counts what rank src sent to local expert l; combineSignal that expert e has answered.
func (a *LL) dispatchSignal(l, src int32) int32 { return (a.Half*a.Locals+l)*a.DC.Ranks + src }
func (a *LL) combineSignal(e int32) int32 {
	return 2*a.Locals*a.DC.Ranks + a.Half*a.Experts + e
}

// context is the lane of an expert: its messages and its signals are ordered against each other, no others need be.
func (a *LL) context(local int32) int32 { return local % a.DC.Contexts }

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

// LLCount clears what the last dispatch left, and counts how many selections name each expert. One block.
//
//gpu:kernel
func LLCount(t gpu.Thread, a LL) {
	for i := t.Index(); i < a.Experts; i += t.Threads() {
		a.Total.At(int(i)).Store(0)
		a.Next.At(int(i)).Store(0)
		a.Done.At(int(i)).Store(0)
	}
	for i := t.Index(); i < a.Locals; i += t.Threads() {
		a.Counts.At(int(i)).Store(0)
	}
	t.SyncBlock()
	for i := t.Index(); i < a.Tokens*a.TopK; i += t.Threads() {
		e := a.Idx.At(int(i)).Load()
		if e >= 0 && e < a.Experts {
			gpu.AtomicAdd(a.Total.At(int(e)), 1, gpu.Relaxed, gpu.ScopeGPU)
		} else if e != -1 {
			a.fault(gin.Invalid, FaultSelection, a.DC.Rank, int64(i), int64(e))
		}
	}
	t.SyncBlock()
	for i := t.Index(); i < a.Experts; i += t.Threads() {
		if n := a.Total.At(int(i)).Load(); n > uint32(a.Cap) {
			a.fault(gin.Invalid, FaultCopies, a.DC.Rank, int64(n), int64(i))
			a.Total.At(int(i)).Store(uint32(a.Cap)) // the rest is not sent; nobody waits for it
		}
	}
}

// LLSend sends each token to its experts, a warp each, and each expert's count behind the last message to it.
//
//gpu:kernel warps=16
func LLSend(t gpu.Thread, a LL) {
	warp, warps := t.Block()*t.Warps()+t.Warp(), t.Blocks()*t.Warps()
	for e := warp; e < a.Experts; e += warps {
		if a.Total.At(int(e)).Load() == 0 {
			a.sendCount(t, e, 0) // none is told too
		}
	}
	for token := warp; token < a.Tokens; token += warps {
		at := (uint64(a.Half)*uint64(a.MaxTokens) + uint64(token)) * a.msg()
		msg := a.Stage.Base.Byte(at)
		if t.Lane() == 0 {
			gpu.Cast[Header](msg).Store(Header{Token: uint32(token), Op: a.Op})
			for k := range a.TopK {
				gpu.Cast[uint16](msg.Byte(headerBytes)).At(int(k)).Store(uint16(a.expert(token, k)))
			}
		}
		gpu.CopyWarp(t, msg.Byte(uint64(a.Head)), a.X.Byte(uint64(token)*a.row()), a.row())
		t.SyncWarp()
		for k := range a.TopK {
			if e := a.expert(token, k); e >= 0 {
				a.sendMessage(t, e, msg, at)
			}
		}
	}
}

func (a *LL) sendMessage(t gpu.Thread, e int32, msg gpu.Ptr[byte], at uint64) {
	n := uint32(0)
	if t.Lane() == 0 {
		n = gpu.AtomicAdd(a.Next.At(int(e)), 1, gpu.Relaxed, gpu.ScopeGPU)
	}
	n = gpu.ShflIdx(t, n, 0)
	if n >= uint32(a.Cap) {
		return
	}
	rank := a.owner(e)
	local := e - a.first(rank)
	c := gin.Open(&a.DC, a.context(local))
	to := a.slot(local, a.DC.Rank, int32(n))
	var s gin.Status
	if p := a.lsa(rank); p >= 0 {
		s = c.LSAPut(gin.ByWarp(t), p, a.Recv, to, msg, a.msg())
	} else {
		s = c.Put(gin.ByWarp(t), gin.World(&a.DC), rank, a.Recv, to, a.Stage, at, a.msg(), gin.None())
	}
	if s != gin.OK && t.Lane() == 0 {
		a.fault(s, FaultSend, rank, int64(e), 0)
	}
	// Whoever finds all messages on their way sends the count behind them.
	last := uint32(0)
	if t.Lane() == 0 {
		total := a.Total.At(int(e)).Load()
		if gpu.AtomicAdd(a.Done.At(int(e)), 1, gpu.AcqRel, gpu.ScopeGPU)+1 == total {
			last = total
		}
	}
	if last = gpu.ShflIdx(t, last, 0); last != 0 {
		a.sendCount(t, e, last)
	}
}

// sendCount tells an expert's rank that n messages came. It adds n+1: no messages are told from nothing told.
func (a *LL) sendCount(t gpu.Thread, e int32, n uint32) {
	rank := a.owner(e)
	local := e - a.first(rank)
	c := gin.Open(&a.DC, a.context(local))
	id := a.dispatchSignal(local, a.DC.Rank)
	var s gin.Status
	if p := a.lsa(rank); p >= 0 {
		s = c.LSASignal(gin.ByWarp(t), p, id, uint64(n)+1)
	} else {
		s = c.Signal(gin.ByWarp(t), gin.World(&a.DC), rank, gin.StrongAdd(id, uint64(n)+1))
	}
	if s != gin.OK && t.Lane() == 0 {
		a.fault(s, FaultSend, rank, int64(e), 0)
	}
}

// LLReceive waits for what each rank sent to each local expert, a warp each, and packs the rows of an expert together.
//
//gpu:kernel warps=16
func LLReceive(t gpu.Thread, a LL) {
	warp, warps := t.Block()*t.Warps()+t.Warp(), t.Blocks()*t.Warps()
	first := a.first(a.DC.Rank)
	locals := a.first(a.DC.Rank+1) - first
	for i := warp; i < locals*a.DC.Ranks; i += warps {
		// Nearest ranks first, and not all wait for rank 0.
		local, src := i/a.DC.Ranks, (a.DC.Rank+i)%a.DC.Ranks
		n := a.awaitCount(t, local, src)
		begin := uint32(0)
		if t.Lane() == 0 {
			begin = gpu.AtomicAdd(a.Counts.At(int(local)), n, gpu.Relaxed, gpu.ScopeGPU)
			a.Blocks.At(int(local*a.DC.Ranks + src)).Store(Block{begin, n})
		}
		begin = gpu.ShflIdx(t, begin, 0)
		for j := range n {
			row := int(local*a.DC.Ranks)*int(a.Cap) + int(begin+j)
			msg := a.Recv.Base.Byte(a.slot(local, src, int32(j)))
			if t.Lane() == 0 {
				a.Infos.At(row).Store(a.info(local, src, int32(j), first+local, msg))
			}
			gpu.CopyWarp(t, a.Rows.Byte(uint64(row)*a.row()), msg.Byte(uint64(a.Head)), a.row())
		}
		t.SyncWarp()
	}
}

// awaitCount is how many messages a rank sent to a local expert.
func (a *LL) awaitCount(t gpu.Thread, local, src int32) uint32 {
	c := gin.Open(&a.DC, a.context(local))
	id := a.dispatchSignal(local, src)
	base := a.Base.At(int(id))
	from := base.Load()
	a.cutShort(&c)
	s := c.WaitSignal(gin.ByWarp(t), id, from+1, 64, gin.FromPeer(gin.World(&a.DC), src))
	n := uint64(0)
	if t.Lane() == 0 {
		if s != gin.OK {
			a.waitFailed(s, src, a.first(a.DC.Rank)+local)
		} else {
			now := c.ReadSignal(id)
			n = now - from - 1
			base.Store(now)
			if n > uint64(a.Cap) {
				a.fault(gin.RemoteError, FaultCount, src, int64(n), int64(a.first(a.DC.Rank)+local))
				n = 0
			}
		}
	}
	n = gpu.ShflIdx(t, n, 0)
	t.SyncWarp()
	return uint32(n)
}

// info reads the header of message j: which selection of which token it is. A token that names the expert twice sent it
// twice; the messages serve its selections in their order.
func (a *LL) info(local, src, j, e int32, msg gpu.Ptr[byte]) RowInfo {
	h := gpu.Cast[Header](msg).Load()
	skip := int32(0)
	if a.names(msg, e) > 1 {
		for i := range j {
			if gpu.Cast[Header](a.Recv.Base.Byte(a.slot(local, src, i))).Load().Token == h.Token {
				skip++
			}
		}
	}
	k := int32(0)
	for k < a.TopK {
		if a.selection(msg, k) == uint16(e) {
			if skip == 0 {
				break
			}
			skip--
		}
		k++
	}
	if k == a.TopK || h.Token >= uint32(a.MaxTokens) || h.Op != a.Op {
		a.fault(gin.RemoteError, FaultHeader, src, int64(j), int64(e))
		return RowInfo{src, -1, -1, e}
	}
	return RowInfo{src, int32(h.Token), k, e}
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

// LLReturn sends the experts' outputs back to where their tokens came from, a warp for each local expert and rank, and
// says behind them that the expert has answered.
//
//gpu:kernel warps=16
func LLReturn(t gpu.Thread, a LL) {
	warp, warps := t.Block()*t.Warps()+t.Warp(), t.Blocks()*t.Warps()
	first := a.first(a.DC.Rank)
	locals := a.first(a.DC.Rank+1) - first
	world := gin.World(&a.DC)
	for i := warp; i < locals*a.DC.Ranks; i += warps {
		local, dst := i/a.DC.Ranks, (a.DC.Rank+i)%a.DC.Ranks
		b := a.Blocks.At(int(local*a.DC.Ranks + dst)).Load()
		c := gin.Open(&a.DC, a.context(local))
		p := a.lsa(dst)
		s := gin.OK
		for j := range b.Rows {
			row := int(local*a.DC.Ranks)*int(a.Cap) + int(b.Begin+j)
			f := a.Infos.At(row).Load()
			if f.Token < 0 {
				continue
			}
			at := uint64(row) * a.row()
			var q gin.Status
			if p >= 0 {
				q = c.LSAPut(gin.ByWarp(t), p, a.Recv, a.back(f.Token, f.K), a.Out.Base.Byte(at), a.row())
			} else {
				q = c.Put(gin.ByWarp(t), world, dst, a.Recv, a.back(f.Token, f.K), a.Out, at, a.row(), gin.None())
			}
			if s == gin.OK {
				s = q
			}
		}
		var q gin.Status
		if p >= 0 {
			q = c.LSASignal(gin.ByWarp(t), p, a.combineSignal(first+local), 1)
		} else {
			q = c.Signal(gin.ByWarp(t), world, dst, gin.StrongInc(a.combineSignal(first+local)))
		}
		if s == gin.OK {
			s = q
		}
		if s != gin.OK && t.Lane() == 0 {
			a.fault(s, FaultSend, dst, int64(first+local), 0)
		}
	}
}

// LLCombine waits until each expert has answered, and adds up the answers of each token with its weights, a warp each.
// In float32, selections in order: round(w*v), then round(acc+p), at the end to BF16; nothing is fused, so that each
// device gives the same bits.
//
//gpu:kernel warps=16
func LLCombine(t gpu.Thread, a LL) {
	for e := range a.Experts {
		rank := a.owner(e)
		c := gin.Open(&a.DC, a.context(e-a.first(rank)))
		s := c.WaitSignal(gin.ByWarp(t), a.combineSignal(e), a.Want, 64, gin.FromPeer(gin.World(&a.DC), rank))
		if s != gin.OK {
			if t.Lane() == 0 {
				a.waitFailed(s, rank, e)
			}
			return
		}
	}
	warp, warps := t.Block()*t.Warps()+t.Warp(), t.Blocks()*t.Warps()
	for token := warp; token < a.Tokens; token += warps {
		a.combine(t, token)
	}
}

// combineLanes is how many pairs of elements a lane adds up at once.
const combineLanes = 4 * (32 / gpu.WarpSize)

func (a *LL) combine(t gpu.Thread, token int32) {
	out := gpu.Cast[uint32](a.Y.Byte(uint64(token) * a.row()))
	pairs := a.Hidden / 2
	for at := t.Lane() * combineLanes; at < pairs; at += combineLanes * gpu.WarpSize {
		var lo, hi [combineLanes]float32
		n := min(pairs-at, combineLanes)
		for k := range a.TopK {
			if a.expert(token, k) < 0 {
				continue
			}
			w := a.Weights.At(int(token)*int(a.TopK) + int(k)).Load()
			v := gpu.Slice(gpu.Cast[uint32](a.Recv.Base.Byte(a.back(token, k))).At(int(at)), int(n))
			addUp(&lo, &hi, v, w)
		}
		for j := range int32(combineLanes) {
			if j < n {
				out.At(int(at + j)).Store(gpu.BF16x2(lo[j], hi[j]))
			}
		}
	}
}

func addUp(lo, hi *[combineLanes]float32, v []uint32, w float32) {
	for j := range combineLanes { // a constant, so that sums stay in registers
		if j >= len(v) {
			break
		}
		lo[j] = gpu.Add(lo[j], gpu.Mul(w, gpu.BF16Lo(v[j])))
		hi[j] = gpu.Add(hi[j], gpu.Mul(w, gpu.BF16Hi(v[j])))
	}
}

// LLSignalsArgs is the arguments of LLSignals.
type LLSignalsArgs struct {
	A      LL
	Values gpu.Ptr[uint64] // [half][local][rank], then [half][expert]
}

// LLSignals copies the values of all signals, for who compares them with what they must be.
//
//gpu:kernel
func LLSignals(t gpu.Thread, a LLSignalsArgs) {
	for half := range int32(2) {
		a.A.Half = half
		for i := t.Index(); i < a.A.Locals*a.A.DC.Ranks; i += t.Threads() {
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
