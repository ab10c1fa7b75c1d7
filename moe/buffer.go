// SPDX-License-Identifier: Apache-2.0

package moe

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/doorbell-net/doorbell"
	"github.com/doorbell-net/doorbell/gin"
	"github.com/doorbell-net/doorbell/gpu"
)

// Buffer is one rank's memory and state for dispatch and combine. Its calls are made from one goroutine at a time, by
// all ranks in the same order: Dispatch, then Combine of what it brought, and again.
type Buffer struct {
	comm *doorbell.Comm
	opt  Options
	lay  layout
	dc   *doorbell.DevComm
	recv *doorbell.Window
	send *doorbell.Window // staging
	out  *doorbell.Window // the experts' outputs
	own  *doorbell.Buffer // rows, infos, tables
	grid doorbell.Grid

	dispatches, combines uint64
	pending              *Received // of the last dispatch, until its combine
	broken               error     // why no further operation can be right
}

// New makes a rank's buffer. Collective: all ranks give the same options. Memory is refused before it is taken: the
// error wraps doorbell.ErrOutOfMemory and says what is needed and what there is.
func New(ctx context.Context, c *doorbell.Comm, o Options) (*Buffer, error) {
	o.fill(c.Size())
	err := o.Validate()
	if err == nil {
		err = o.fits(c.Size())
	}
	mine, jerr := json.Marshal(o)
	if err = errors.Join(err, jerr); err != nil {
		mine = nil
	}
	// Also when this rank's are refused: the others are told, and do not wait.
	all, gerr := c.AllGather(ctx, mine)
	if err != nil || gerr != nil {
		return nil, fmt.Errorf("rank %d: %w", c.Rank(), errors.Join(err, gerr))
	}
	for r, b := range all {
		var other Options
		if len(b) == 0 {
			return nil, fmt.Errorf("rank %d: moe: rank %d refused its options", c.Rank(), r)
		}
		if err := json.Unmarshal(b, &other); err != nil {
			return nil, fmt.Errorf("rank %d: moe: options of rank %d: %w", c.Rank(), r, err)
		}
		if other != o {
			return nil, fmt.Errorf("rank %d: moe: options differ: %+v here, %+v on rank %d", c.Rank(), o, other, r)
		}
	}
	b := &Buffer{comm: c, opt: o, lay: o.layout(c.Size()), grid: doorbell.Grid{Blocks: 1, Warps: 1}}
	if err := c.Reserve(ctx, o.MemoryBytes(c.Size(), c.LSASize())); err != nil {
		return nil, fmt.Errorf("rank %d: moe: %w", c.Rank(), err)
	}
	if err := b.make(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("rank %d: moe: %w", c.Rank(), err), b.Close())
	}
	return b, nil
}

func (b *Buffer) make(ctx context.Context) (err error) {
	c, l := b.comm, b.lay
	window := func(bytes int) *doorbell.Window {
		if err != nil {
			return nil
		}
		var buf *doorbell.Buffer
		if buf, err = c.Alloc(bytes); err != nil {
			return nil
		}
		var w *doorbell.Window
		w, err = c.Register(ctx, buf)
		return w
	}
	b.recv, b.send, b.out = window(l.recv), window(2*l.stage), window(l.rows)
	if err != nil {
		return err
	}
	if b.own, err = c.Alloc(l.rows + l.infos + l.tables); err != nil {
		return err
	}
	b.dc, err = c.DevComm(ctx, b.opt.needs(c.Size()))
	return err
}

// SetGrid says how many blocks and warps the kernels run with; default one warp.
func (b *Buffer) SetGrid(g doorbell.Grid) { b.grid = g }

// Options are the buffer's, with defaults filled in.
func (b *Buffer) Options() Options { return b.opt }

// LocalExperts is the number of experts on this rank, FirstExpert the first one's number.
func (b *Buffer) LocalExperts() int { return b.opt.local(b.comm.Rank(), b.comm.Size()) }

// FirstExpert is the number of this rank's first expert in the world.
func (b *Buffer) FirstExpert() int {
	r, n := b.comm.Rank(), b.comm.Size()
	return r*(b.opt.Experts/n) + min(r, b.opt.Experts%n)
}

// Tokens is what a rank dispatches, in memory of its device.
type Tokens struct {
	N       int              // tokens, 0 to MaxTokens
	X       gpu.Ptr[byte]    // [N][Hidden] BF16, a multiple of 16
	Experts gpu.Ptr[int32]   // [N][TopK] experts of the world, -1 for none
	Weights gpu.Ptr[float32] // [N][TopK]; read by Combine
}

// Received is what a dispatch brought to this rank. It is valid until the next Dispatch of its buffer.
type Received struct {
	b      *Buffer
	tokens Tokens
}

// Capacity is how many rows of a local expert there is room for.
func (r *Received) Capacity() int { return r.b.comm.Size() * r.b.lay.cap }

// Rows is [LocalExperts][Capacity][Hidden] BF16: an expert's rows stand together at the start of its part, those of
// one source together, in no particular order. Rows at and after the expert's count have no meaning.
func (r *Received) Rows() gpu.Ptr[byte] { return r.b.own.Ptr() }

// Infos is [LocalExperts][Capacity]: whose each row is.
func (r *Received) Infos() gpu.Ptr[RowInfo] {
	return gpu.Cast[RowInfo](r.b.own.Ptr().Byte(uint64(r.b.lay.rows)))
}

// Counts is [LocalExperts]: the number of rows of each.
func (r *Received) Counts() gpu.Ptr[uint32] { return gpu.Cast[uint32](r.b.table(r.b.lay.counts)) }

// Outputs is [LocalExperts][Capacity][Hidden] BF16: where the experts write what they make of Rows, each row at its
// place, before Combine.
func (r *Received) Outputs() gpu.Ptr[byte] { return r.b.out.Device().Base }

func (b *Buffer) table(off int) gpu.Ptr[byte] {
	return b.own.Ptr().Byte(uint64(b.lay.rows + b.lay.infos + off))
}

// Dispatch sends this rank's tokens to their experts and receives what this rank's experts are sent: it queues the
// kernels on the stream and returns. All ranks call it, with 0 tokens too. When the stream is done, Check says whether
// it was right.
func (b *Buffer) Dispatch(st *doorbell.Stream, x Tokens) (*Received, error) {
	if err := b.ready("dispatch", x); err != nil {
		return nil, err
	}
	a := b.args(x, b.dispatches)
	b.dispatches++
	r := &Received{b: b, tokens: x}
	b.pending = r
	count := doorbell.Grid{Blocks: 1, Warps: b.grid.Warps}
	return r, errors.Join(doorbell.Launch(st, LLCountKernel, count, a), doorbell.Launch(st, LLSendKernel, b.grid, a),
		doorbell.Launch(st, LLReceiveKernel, b.grid, a))
}

// Combine sends the experts' outputs back to their tokens' ranks, and adds up what comes back of this rank's own
// tokens: y is [N][Hidden] BF16, a multiple of 16; a token without experts becomes 0. It queues the kernels and
// returns; see Dispatch.
func (b *Buffer) Combine(st *doorbell.Stream, r *Received, y gpu.Ptr[byte]) error {
	if r == nil || r != b.pending {
		return fmt.Errorf("rank %d: combine: it is of the last dispatch, once; this is not what that brought", b.comm.Rank())
	}
	if err := b.ready("combine", r.tokens); err != nil {
		return err
	}
	if r.tokens.N > 0 && (y.IsNil() || y.Addr()&15 != 0 || r.tokens.Weights.IsNil()) {
		return fmt.Errorf("rank %d: combine: %d tokens need an output at a multiple of 16 and weights: output at %#x, weights at %#x",
			b.comm.Rank(), r.tokens.N, y.Addr(), r.tokens.Weights.Addr())
	}
	b.pending = nil
	a := b.args(r.tokens, b.combines)
	a.Y = y
	a.Want = b.combines/2 + 1
	b.combines++
	return errors.Join(doorbell.Launch(st, LLReturnKernel, b.grid, a), doorbell.Launch(st, LLCombineKernel, b.grid, a))
}

// args is the kernels' arguments for operation number op of its kind.
func (b *Buffer) args(x Tokens, op uint64) LL {
	l, o := &b.lay, &b.opt
	a := LL{
		DC: b.dc.Device(), Recv: b.recv.Device(), Stage: b.send.Device(), Out: b.out.Device(),
		X: x.X, Idx: x.Experts, Weights: x.Weights, Rows: b.own.Ptr(), Infos: gpu.Cast[RowInfo](b.own.Ptr().Byte(uint64(l.rows))),
		Counts: gpu.Cast[uint32](b.table(l.counts)), Blocks: gpu.Cast[Block](b.table(l.blocks)), Base: gpu.Cast[uint64](b.table(l.base)),
		Total: gpu.Cast[uint32](b.table(l.total)), Next: gpu.Cast[uint32](b.table(l.next)), Done: gpu.Cast[uint32](b.table(l.done)),
		Result: b.result(), Tokens: int32(x.N), MaxTokens: int32(o.MaxTokens), Cap: int32(l.cap), Hidden: int32(o.Hidden),
		TopK: int32(o.TopK), Experts: int32(o.Experts), Locals: int32(l.locals), Head: int32(l.head), Half: int32(op & 1), Op: uint32(op),
	}
	if o.NoLSA {
		a.NoLSA = 1
	}
	return a
}

func (b *Buffer) result() gpu.Ptr[LLResult] { return gpu.Cast[LLResult](b.table(b.lay.result)) }

func (b *Buffer) ready(what string, x Tokens) error {
	rank, o := b.comm.Rank(), &b.opt
	switch {
	case b.broken != nil:
		return fmt.Errorf("rank %d: %s: an earlier operation failed: %w", rank, what, b.broken)
	case b.dc == nil:
		return fmt.Errorf("rank %d: %s: buffer: %w", rank, what, doorbell.ErrClosed)
	case x.N < 0 || x.N > o.MaxTokens:
		return fmt.Errorf("rank %d: %s: %d tokens, 0 to %d are accepted (MaxTokens)", rank, what, x.N, o.MaxTokens)
	case x.N > 0 && (x.X.IsNil() || x.X.Addr()&15 != 0 || x.Experts.IsNil()):
		return fmt.Errorf("rank %d: %s: %d tokens need rows at a multiple of 16 and experts: rows at %#x, experts at %#x",
			rank, what, x.N, x.X.Addr(), x.Experts.Addr())
	}
	return nil
}

// Wait waits for the stream and says whether the operations on it were right.
func (b *Buffer) Wait(ctx context.Context, st *doorbell.Stream) error {
	if err := st.Wait(ctx); err != nil {
		b.broken = err
		return err
	}
	return b.Check()
}

// Check says whether the operations were right, when their stream is done. An Invalid input (a selection that names no
// expert, more copies than there is room for) is reported once: what was valid was sent, and the buffer stays usable.
// After any other failure it is not: the other ranks' state is not known.
func (b *Buffer) Check() error {
	if b.broken != nil {
		return b.broken
	}
	r := *b.result().Raw()
	if r.State == 0 {
		return nil
	}
	*b.result().Raw() = LLResult{}
	err := b.explain(&r)
	if r.Status != gin.Invalid || r.What == FaultSend {
		b.broken = err
	}
	return err
}

// Error is what went wrong in an operation.
type Error struct {
	Rank   int // where it was noticed
	Peer   int
	Status gin.Status
	Text   string
	Cause  error // what the device communicator knows
}

func (e *Error) Error() string {
	s := fmt.Sprintf("rank %d: moe: %s: %v", e.Rank, e.Text, e.Status)
	if e.Cause != nil {
		s += ": " + e.Cause.Error()
	}
	return s
}

// Unwrap is the cause.
func (e *Error) Unwrap() error { return e.Cause }

func (b *Buffer) explain(r *LLResult) error {
	e := &Error{Rank: b.comm.Rank(), Peer: int(r.Rank), Status: r.Status}
	op := fmt.Sprintf("dispatch %d, combine %d", b.dispatches, b.combines)
	switch r.What {
	case FaultSend:
		e.Text = fmt.Sprintf("send to rank %d for expert %d (%s)", r.Rank, r.A, op)
	case FaultWait:
		e.Text = fmt.Sprintf("wait for rank %d, expert %d (%s)", r.Rank, r.A, op)
	case FaultSelection:
		e.Text = fmt.Sprintf("token %d, selection %d names expert %d; 0 to %d and -1 are accepted", int(r.A)/b.opt.TopK, int(r.A)%b.opt.TopK, r.B, b.opt.Experts-1)
	case FaultCopies:
		e.Text = fmt.Sprintf("%d selections name expert %d; %d fit (MaxTokens * Copies)", r.A, r.B, b.lay.cap)
	case FaultCount:
		e.Text = fmt.Sprintf("rank %d says it sent %d rows for expert %d; %d fit (%s)", r.Rank, r.A, r.B, b.lay.cap, op)
	case FaultHeader:
		e.Text = fmt.Sprintf("row %d of rank %d for expert %d has a header that does not fit: the ranks are not at the same call, or bytes are wrong (%s)", r.A, r.Rank, r.B, op)
	}
	if r.Status != gin.Invalid {
		e.Cause = b.dc.Cause()
	}
	return e
}

// Close ends the buffer on this rank and gives its memory back. Its stream must be done.
func (b *Buffer) Close() error {
	var errs []error
	if b.dc != nil {
		errs = append(errs, b.dc.Close())
	}
	for _, w := range []*doorbell.Window{b.recv, b.send, b.out} {
		if w != nil {
			errs = append(errs, w.Close(), w.Buffer().Free())
		}
	}
	if b.own != nil {
		errs = append(errs, b.own.Free())
	}
	b.dc, b.recv, b.send, b.out, b.own = nil, nil, nil, nil, nil
	return errors.Join(errs...)
}
