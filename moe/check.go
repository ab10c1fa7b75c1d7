// SPDX-License-Identifier: Apache-2.0

package moe

import (
	"context"
	"errors"
	"fmt"

	"github.com/doorbell-net/doorbell"
	"github.com/doorbell-net/doorbell/gin"
	"github.com/doorbell-net/doorbell/gpu"
)

// Wait waits for the stream and says whether the operations on it were right.
func (b *Buffer) Wait(ctx context.Context, st *doorbell.Stream) error {
	if err := st.Wait(ctx); err != nil {
		b.queued.broken = err
		return err
	}
	if b.stream != nil && b.stream != st {
		return fmt.Errorf("rank %d: moe: wait for a stream that this buffer's operations are not on", b.comm.Rank())
	}
	return b.Check()
}

// Check says whether the operations were right, when their stream is done. An Invalid input (a selection that names no
// expert, more copies than there is room for, a count that is too large) is reported once, of many the first: what was
// valid was sent, and the buffer stays usable. After any other failure it is not: nothing more is sent, the other ranks'
// state is not known, and Recover makes it usable again. Of what came while it failed nothing may be used.
func (b *Buffer) Check() error {
	b.stream = nil
	return checked(b.comm, b.host, &b.queued.broken, b.explain, func() error { return b.own.Write(b.at(b.lay.told), make([]byte, 4)) })
}

// closed is what a call of a buffer that is closed returns.
func closed(c *doorbell.Comm, what string) error {
	return fmt.Errorf("rank %d: %s: buffer: %w", c.Rank(), what, doorbell.ErrClosed)
}

// checked says what kernels left in the two results. A failure stays, and is in broken from then on; what is wrong with the
// input is told once: clear has the kernels report again.
func checked(c *doorbell.Comm, host *doorbell.Buffer, broken *error, explain func(*Result) error, clear func() error) error {
	if *broken != nil {
		return *broken
	}
	if host == nil {
		return closed(c, "check")
	}
	results := gpu.Cast[Result](host.Ptr())
	input, failure := results.Raw(), results.At(1).Raw()
	if failure.Filled != 0 {
		*broken = explain(failure)
	}
	if input.Filled == 0 {
		return *broken
	}
	err := explain(input)
	*input = Result{}
	return errors.Join(err, clear(), *broken)
}

// Error is what went wrong in an operation. errors.Is finds doorbell.ErrPeerLost, ErrAborted and ErrRevoked in it.
type Error struct {
	Rank   int // where it was noticed
	Peer   int // whom it happened with; the rank that was waited for, if a wait ended
	Status gin.Status
	Lost   []int // ranks that took part and are lost, rising: Buffer.Recover goes on without them
	Text   string
	Cause  error // what the device communicator knows
}

func (e *Error) Error() string {
	s := fmt.Sprintf("rank %d: moe: %s: %v", e.Rank, e.Text, e.Status)
	if len(e.Lost) > 0 {
		s += fmt.Sprintf(": lost are ranks %v", e.Lost)
	}
	if e.Cause != nil {
		s += ": " + e.Cause.Error()
	}
	return s
}

// Unwrap is the cause.
func (e *Error) Unwrap() error { return e.Cause }

// lostOf is those of the ranks that are lost.
func lostOf(c *doorbell.Comm, ranks []int) (out []int) {
	lost := c.Lost()
	for _, r := range ranks {
		if lost[r] != nil {
			out = append(out, r)
		}
	}
	return out
}

// causeOf is what the device communicator knows of a failure. That other waits were given up for it is no cause.
func causeOf(dc *doorbell.DevComm, s gin.Status) error {
	err := dc.Cause()
	var c *doorbell.Cause
	if s != gin.Aborted && errors.As(err, &c) && c.Status == gin.Aborted {
		return nil
	}
	return err
}

func (b *Buffer) explain(r *Result) error {
	e := &Error{Rank: b.comm.Rank(), Peer: int(r.Rank), Status: r.Status}
	op := fmt.Sprintf("dispatch %d", r.Op)
	switch r.What {
	case FaultSend:
		e.Text = fmt.Sprintf("send to rank %d for expert %d (%s)", r.Rank, r.A, op)
	case FaultWait:
		e.Text = fmt.Sprintf("wait for rank %d, expert %d (%s)", r.Rank, r.A, op)
	case FaultAnswer:
		e.Text = fmt.Sprintf("wait for the answer of rank %d, expert %d (combine of %s)", r.Rank, r.A, op)
	case FaultTokens:
		e.Text = fmt.Sprintf("the count says %d tokens; 0 to %d are accepted (N) (%s)", r.A, r.B, op)
	case FaultSelection:
		e.Text = fmt.Sprintf("token %d, selection %d names expert %d; 0 to %d and -1 are accepted (%s)", int(r.A)/b.opt.TopK, int(r.A)%b.opt.TopK, r.B, b.opt.Experts-1, op)
	case FaultCopies:
		e.Text = fmt.Sprintf("%d selections name expert %d; %d fit (MaxTokens * Copies) (%s)", r.A, r.B, b.lay.cap, op)
	case FaultCount:
		e.Text = fmt.Sprintf("rank %d says it sent %d rows for expert %d; %d fit (%s)", r.Rank, r.A, r.B, b.lay.cap, op)
	case FaultHeader:
		e.Text = fmt.Sprintf("row %d of rank %d for expert %d has a header that does not fit: the ranks are not at the same call, or bytes are wrong (%s)", r.A, r.Rank, r.B, op)
	}
	if r.Status != gin.Invalid {
		e.Cause, e.Lost = causeOf(b.dc, r.Status), lostOf(b.comm, b.ranks)
	}
	return e
}
