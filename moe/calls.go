// SPDX-License-Identifier: Apache-2.0

package moe

import (
	"cmp"
	"fmt"

	"github.com/doorbell-net/doorbell"
	"github.com/doorbell-net/doorbell/gpu"
)

// Dispatch sends this rank's tokens to their experts and receives what this rank's experts are sent: it queues the
// kernel on the stream and returns. All ranks call it, with 0 tokens too. When the stream is done, Check says whether it
// was right. On a stream that records a graph, it is each replay that does it: see the package's comment.
func (b *Buffer) Dispatch(st *doorbell.Stream, x Tokens) (*Received, error) {
	return b.dispatch("dispatch", st, x, sends|receives)
}

// StartDispatch is the part of Dispatch that sends. No kernel of the operation runs between it and FinishDispatch, and
// at most Outstanding operations are between their two calls. A dispatch gets the rows of the one Outstanding before it,
// whose combine has finished or never comes.
func (b *Buffer) StartDispatch(st *doorbell.Stream, x Tokens) (*Received, error) {
	return b.dispatch("start dispatch", st, x, sends)
}

// dispatch begins the next one, if it may be.
func (b *Buffer) dispatch(what string, st *doorbell.Stream, x Tokens, parts int32) (*Received, error) {
	c := b.course(st)
	if err := cmp.Or(b.ready(what, st, c), b.room(what, c), b.check(what, x)); err != nil {
		return nil, err
	}
	r := &Received{b: b, course: c, tokens: x, op: c.dispatches}
	if old := c.turns[r.turn()]; old != nil && (old.state == sent || old.state == answering) {
		return nil, b.refuse(what, "number %d gets the rows of %s, which is in use: %s", r.op, old.name(), stateNames[old.state])
	}
	if err := b.launch(st, LLDispatchKernel, r, parts); err != nil {
		return nil, err
	}
	c.dispatches++
	c.turns[r.turn()] = r
	r.begun(parts, sent, received)
	return r, nil
}

// FinishDispatch is the part that receives.
func (b *Buffer) FinishDispatch(st *doorbell.Stream, r *Received) error {
	return b.finish("finish dispatch", st, LLDispatchKernel, r, sent, received)
}

// Combine sends the experts' outputs back to their tokens' ranks, and adds up what comes back of this rank's own
// tokens: y is [N][Hidden] BF16, a multiple of 16, and not of the outputs' memory; a token without experts becomes 0. Sums are of
// float32, each product and each sum rounded, selection after selection; NaN and infinities of outputs and weights go through
// them, and stay with their token. It queues the kernel and returns; see Dispatch.
func (b *Buffer) Combine(st *doorbell.Stream, r *Received, y gpu.Ptr[byte]) error {
	return b.combine("combine", st, r, y, sends|receives)
}

// StartCombine is the part of Combine that sends; see StartDispatch.
func (b *Buffer) StartCombine(st *doorbell.Stream, r *Received, y gpu.Ptr[byte]) error {
	return b.combine("start combine", st, r, y, sends)
}

// combine begins the one of a dispatch, if it may be.
func (b *Buffer) combine(what string, st *doorbell.Stream, r *Received, y gpu.Ptr[byte], parts int32) error {
	c := b.course(st)
	if err := cmp.Or(b.ready(what, st, c), b.handle(what, r, c, received), b.room(what, c)); err != nil {
		return err
	}
	if r.tokens.N > 0 && (y.IsNil() || y.Addr()&15 != 0 || r.tokens.Weights.IsNil()) {
		return b.refuse(what, "%d tokens need an output at a multiple of 16 and weights: output at %#x, weights at %#x",
			r.tokens.N, y.Addr(), r.tokens.Weights.Addr())
	}
	r.y = y
	if err := b.launch(st, LLCombineKernel, r, parts); err != nil {
		return err
	}
	r.begun(parts, answering, done)
	return nil
}

// FinishCombine is the part that receives.
func (b *Buffer) FinishCombine(st *doorbell.Stream, r *Received) error {
	return b.finish("finish combine", st, LLCombineKernel, r, answering, done)
}

// finish is the part that receives of an operation in one state, which brings it to the next.
func (b *Buffer) finish(what string, st *doorbell.Stream, k gpu.Kernel[LL], r *Received, in, next state) error {
	c := b.course(st)
	if err := cmp.Or(b.ready(what, st, c), b.handle(what, r, c, in)); err != nil {
		return err
	}
	if err := b.launch(st, k, r, receives); err != nil {
		return err
	}
	c.started--
	r.state = next
	return nil
}

// begun notes that an operation was: it is in one state if it is yet to be finished, and else in the other.
func (r *Received) begun(parts int32, started, finished state) {
	if r.state = finished; parts&receives == 0 {
		r.state = started
		r.course.started++
	}
}

// launch queues parts of an operation: in one launch if its blocks are resident, since they wait for one another then. If that is
// refused, by the grid say, nothing was begun and the call may be made again. Not where half of it was queued: the other ranks
// wait in vain then, as they do for a graph that has not recorded it.
func (b *Buffer) launch(st *doorbell.Stream, k gpu.Kernel[LL], r *Received, parts int32) error {
	g, a, c := b.grid, b.args(r), r.course
	whole := parts == sends|receives
	if whole && g.Blocks > 1 && !g.Cooperative {
		err := b.launch(st, k, r, sends)
		if err == nil {
			err = b.launch(st, k, r, receives)
			c.broken = err
		}
		return err
	}
	a.Parts, g.Cooperative = parts, whole && g.Blocks > 1
	err := doorbell.Launch(st, k, g, a)
	if err == nil && c.graph == nil {
		b.stream = st
	}
	if err != nil && c.graph != nil {
		c.broken = err
	}
	return err
}

// args is the kernels' arguments for a dispatch and its combine.
func (b *Buffer) args(r *Received) LL {
	l, o, x := &b.lay, &b.opt, &r.tokens
	word := func(off int) gpu.Ptr[uint32] { return gpu.Cast[uint32](b.table(off)) }
	a := LL{
		DC: b.dc.Device(), Recv: b.recv.Device(), Stage: b.send.Device(), Out: b.out.Device(),
		X: x.X, Idx: x.Experts, Weights: x.Weights, Y: r.y, Count: x.Count, Rows: r.Rows(), Infos: r.Infos(), Counts: r.Counts(),
		Blocks: gpu.Cast[Block](b.table(l.blocks)).At(r.turn() * l.locals * l.ranks), Own: word(l.own).At(r.turn() * o.MaxTokens * o.TopK),
		Next: gpu.Cast[LLNext](b.table(l.next)), Now: gpu.Cast[LLTurn](b.table(l.now)).At(r.turn()), Answers: gpu.Cast[uint64](b.table(l.answers)), Ends: gpu.Cast[uint64](b.table(l.ends)),
		Far: gpu.Cast[Box](b.table(l.far)), Packed: gpu.Cast[uint64](b.table(l.packed)), Faults: Faults{word(l.failed), word(l.told), gpu.Cast[Result](b.host.Ptr())},
		Tokens: int32(x.N), MaxTokens: int32(o.MaxTokens), Cap: int32(l.cap), Hidden: int32(o.Hidden),
		TopK: int32(o.TopK), Experts: int32(o.Experts), Locals: int32(l.locals), Head: int32(l.head),
		Sets: int32(l.sets), Turn: int32(r.turn()), Boxes: int32(l.boxes), BoxCap: int32(l.boxCap),
		Format: int32(o.Format), Values: int32(o.Format.ValueBytes(o.Hidden)), Payload: int32(l.payload),
	}
	a.Each, a.More = a.Experts/int32(l.ranks), a.Experts%int32(l.ranks)
	if len(b.ranks) < l.ranks {
		a.Missing.Ranks = word(l.missing)
	}
	if b.measure {
		a.Meter = l.meter.on(b.table(0))
	}
	a.Near = flag(b.near() && a.DC.Inject == 0)
	a.NoLSA, a.Deterministic, a.PerRank = flag(o.NoLSA), flag(o.Deterministic), flag(o.PerRank)
	return a
}

// near says whether all ranks are stored to.
func (b *Buffer) near() bool {
	return !b.opt.NoLSA && b.comm.LSASize() == b.comm.Size() && len(b.ranks) == b.lay.ranks
}

func flag(b bool) int32 {
	if b {
		return 1
	}
	return 0
}

// at is where a table begins in the buffer's own memory.
func (b *Buffer) at(table int) int { return b.lay.turns*(b.lay.rows+b.lay.infos) + table }

func (b *Buffer) table(off int) gpu.Ptr[byte] { return b.own.Ptr().Byte(uint64(b.at(off))) }

func (b *Buffer) refuse(what, format string, args ...any) error {
	return fmt.Errorf("rank %d: %s: %s", b.comm.Rank(), what, fmt.Sprintf(format, args...))
}

func (b *Buffer) check(what string, x Tokens) error {
	if why := x.check(b.opt.MaxTokens); why != "" {
		return b.refuse(what, "%s", why)
	}
	return nil
}
