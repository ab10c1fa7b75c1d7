// SPDX-License-Identifier: Apache-2.0

package moe

import (
	"cmp"
	"errors"
	"fmt"

	"github.com/doorbell-net/doorbell"
	"github.com/doorbell-net/doorbell/gpu"
)

// Dispatch sends this rank's tokens to their experts and receives what this rank's experts are sent: it queues the
// kernels on the stream and returns. All ranks call it, with 0 tokens too. When the stream is done, Check says whether
// it was right.
func (b *Buffer) Dispatch(st *doorbell.Stream, x Tokens) (*Received, error) {
	r, err := b.StartDispatch(st, x)
	if err != nil {
		return nil, err
	}
	return r, b.FinishDispatch(st, r)
}

// StartDispatch is the part of Dispatch that sends. No kernel of the operation runs between it and FinishDispatch, and
// at most Outstanding operations are between their two calls. A dispatch gets the rows of the one Outstanding before it,
// whose combine has finished or never comes.
func (b *Buffer) StartDispatch(st *doorbell.Stream, x Tokens) (*Received, error) {
	const what = "start dispatch"
	if err := cmp.Or(b.ready(what, st), b.room(what), b.check(what, x)); err != nil {
		return nil, err
	}
	r := &Received{b: b, tokens: x, op: b.dispatches}
	if old := b.turns[r.turn()]; old != nil && (old.state == sent || old.state == answering) {
		return nil, b.refuse(what, "number %d gets the rows of dispatch %d, which is in use: %s", r.op, old.op, stateNames[old.state])
	}
	b.dispatches++
	b.started++
	b.turns[r.turn()] = r
	a := b.args(r)
	count := doorbell.Grid{Blocks: 1, Warps: b.grid.Warps}
	return r, b.queue(st, doorbell.Launch(st, LLCountKernel, count, a), doorbell.Launch(st, LLSendKernel, b.grid, a))
}

// FinishDispatch is the part that receives.
func (b *Buffer) FinishDispatch(st *doorbell.Stream, r *Received) error {
	const what = "finish dispatch"
	if err := cmp.Or(b.ready(what, st), b.handle(what, r, sent)); err != nil {
		return err
	}
	r.state = received
	b.started--
	return b.queue(st, doorbell.Launch(st, LLReceiveKernel, b.grid, b.args(r)))
}

// Combine sends the experts' outputs back to their tokens' ranks, and adds up what comes back of this rank's own
// tokens: y is [N][Hidden] BF16, a multiple of 16; a token without experts becomes 0. It queues the kernels and
// returns; see Dispatch.
func (b *Buffer) Combine(st *doorbell.Stream, r *Received, y gpu.Ptr[byte]) error {
	if err := b.StartCombine(st, r, y); err != nil {
		return err
	}
	return b.FinishCombine(st, r)
}

// StartCombine is the part of Combine that sends; see StartDispatch.
func (b *Buffer) StartCombine(st *doorbell.Stream, r *Received, y gpu.Ptr[byte]) error {
	const what = "start combine"
	if err := cmp.Or(b.ready(what, st), b.handle(what, r, received), b.room(what)); err != nil {
		return err
	}
	if r.tokens.N > 0 && (y.IsNil() || y.Addr()&15 != 0 || r.tokens.Weights.IsNil()) {
		return b.refuse(what, "%d tokens need an output at a multiple of 16 and weights: output at %#x, weights at %#x",
			r.tokens.N, y.Addr(), r.tokens.Weights.Addr())
	}
	r.state, r.y = answering, y
	b.started++
	b.answers[r.set()]++
	return b.queue(st, doorbell.Launch(st, LLReturnKernel, b.grid, b.args(r)))
}

// FinishCombine is the part that receives.
func (b *Buffer) FinishCombine(st *doorbell.Stream, r *Received) error {
	const what = "finish combine"
	if err := cmp.Or(b.ready(what, st), b.handle(what, r, answering)); err != nil {
		return err
	}
	r.state = done
	b.started--
	return b.queue(st, doorbell.Launch(st, LLCombineKernel, b.grid, b.args(r)))
}

// queue notes that kernels are on the stream. If one was not taken, the other ranks wait in vain.
func (b *Buffer) queue(st *doorbell.Stream, launched ...error) error {
	b.stream = st
	if err := errors.Join(launched...); err != nil {
		b.broken = err
	}
	return b.broken
}

// args is the kernels' arguments for a dispatch and its combine.
func (b *Buffer) args(r *Received) LL {
	l, o, x := &b.lay, &b.opt, &r.tokens
	base := func(next int) gpu.Ptr[uint64] { // two tables, in turn: all who wait for one signal read what it was
		return gpu.Cast[uint64](b.table(l.base)).At((int(r.op)/l.sets + next) % 2 * l.sets * l.boxes * l.ranks)
	}
	a := LL{
		DC: b.dc.Device(), Recv: b.recv.Device(), Stage: b.send.Device(), Out: b.out.Device(),
		X: x.X, Idx: x.Experts, Weights: x.Weights, Y: r.y, Rows: r.Rows(), Infos: r.Infos(), Counts: r.Counts(),
		Blocks: gpu.Cast[Block](b.table(l.blocks)).At(r.turn() * l.locals * l.ranks), Base: base(0), Ended: base(1),
		Total: gpu.Cast[uint32](b.table(l.total)), Next: gpu.Cast[uint32](b.table(l.next)), Done: gpu.Cast[uint32](b.table(l.done)),
		Result: b.result(), Tokens: int32(x.N), MaxTokens: int32(o.MaxTokens), Cap: int32(l.cap), Hidden: int32(o.Hidden),
		TopK: int32(o.TopK), Experts: int32(o.Experts), Locals: int32(l.locals), Head: int32(l.head), Op: uint32(r.op),
		Sets: int32(l.sets), Set: int32(r.set()), Turn: int32(r.turn()), Boxes: int32(l.boxes), BoxCap: int32(l.boxCap), Want: b.answers[r.set()],
		Format: int32(o.Format), Values: int32(o.Format.ValueBytes(o.Hidden)), Payload: int32(l.payload),
	}
	a.NoLSA, a.Deterministic, a.PerRank = flag(o.NoLSA), flag(o.Deterministic), flag(o.PerRank)
	return a
}

func flag(b bool) int32 {
	if b {
		return 1
	}
	return 0
}

func (b *Buffer) table(off int) gpu.Ptr[byte] {
	l := &b.lay
	return b.own.Ptr().Byte(uint64(l.turns*(l.rows+l.infos) + off))
}

func (b *Buffer) refuse(what, format string, args ...any) error {
	return fmt.Errorf("rank %d: %s: %s", b.comm.Rank(), what, fmt.Sprintf(format, args...))
}

// ready refuses a buffer that is closed or broken, and a second stream beside one that may not be done.
func (b *Buffer) ready(what string, st *doorbell.Stream) error {
	switch {
	case b.broken != nil:
		return fmt.Errorf("rank %d: %s: an earlier operation failed: %w", b.comm.Rank(), what, b.broken)
	case b.dc == nil:
		return fmt.Errorf("rank %d: %s: buffer: %w", b.comm.Rank(), what, doorbell.ErrClosed)
	case b.stream != nil && b.stream != st:
		return b.refuse(what, "operations of this buffer may still run on another stream: Wait or Check comes first")
	}
	return nil
}

// room refuses one operation more than may be started and not finished. A rank that has received an operation knows that
// its peers have received the one Outstanding before it, so twice as many sets of slots are enough, and no more are there.
func (b *Buffer) room(what string) error {
	if b.started >= b.lay.turns {
		return b.refuse(what, "%d operations are started and not finished, %d may be (Outstanding)", b.started, b.lay.turns)
	}
	return nil
}

// handle refuses one that the call is not for.
func (b *Buffer) handle(what string, r *Received, want state) error {
	switch {
	case r == nil:
		return b.refuse(what, "of what no dispatch brought: nil")
	case r.b != b:
		return b.refuse(what, "dispatch %d is another buffer's", r.op)
	case b.turns[r.turn()] != r:
		return b.refuse(what, "dispatch %d: its rows are dispatch %d's now", r.op, b.turns[r.turn()].op)
	case r.state != want:
		return b.refuse(what, "dispatch %d: %s; wanted: %s", r.op, stateNames[r.state], stateNames[want])
	}
	return nil
}

func (b *Buffer) check(what string, x Tokens) error {
	switch {
	case x.N < 0 || x.N > b.opt.MaxTokens:
		return b.refuse(what, "%d tokens, 0 to %d are accepted (MaxTokens)", x.N, b.opt.MaxTokens)
	case x.N > 0 && (x.X.IsNil() || x.X.Addr()&15 != 0 || x.Experts.IsNil()):
		return b.refuse(what, "%d tokens need rows at a multiple of 16 and experts: rows at %#x, experts at %#x", x.N, x.X.Addr(), x.Experts.Addr())
	}
	return nil
}
