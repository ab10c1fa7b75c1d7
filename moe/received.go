// SPDX-License-Identifier: Apache-2.0

package moe

import (
	"fmt"

	"github.com/doorbell-net/doorbell/gpu"
)

// Tokens is what a rank dispatches, in memory of its device.
type Tokens struct {
	N int // tokens, 0 to MaxTokens
	// Count is for graphs, in which N is the same in each replay: the kernels take the number of tokens from there, and N
	// is the most that it says: more is reported as Invalid, and N are sent. Read by the kernel that sends.
	Count   gpu.Ptr[uint32]
	X       gpu.Ptr[byte]    // [N][Hidden] BF16, a multiple of 16, and no rows of the buffer's; read by the kernel that sends
	Experts gpu.Ptr[int32]   // [N][TopK] experts of the world, -1 for none; read until the combine has finished
	Weights gpu.Ptr[float32] // [N][TopK]; read by the kernel that adds up
}

// check says what of the tokens no kernel may be given, "" if nothing.
func (x *Tokens) check(most int) string {
	switch {
	case x.N < 0 || x.N > most:
		return fmt.Sprintf("%d tokens, 0 to %d are accepted (MaxTokens)", x.N, most)
	case x.Count.Addr()&3 != 0:
		return fmt.Sprintf("a count at %#x, a multiple of 4 is accepted", x.Count.Addr())
	case x.N > 0 && (x.X.IsNil() || x.X.Addr()&15 != 0 || x.Experts.IsNil()):
		return fmt.Sprintf("%d tokens need rows at a multiple of 16 and experts: rows at %#x, experts at %#x", x.N, x.X.Addr(), x.Experts.Addr())
	}
	return ""
}

// Received is what a dispatch brought to this rank, when it has finished. It is valid until its combine has finished, or
// Outstanding further dispatches have been started, and not after Buffer.Close: there is no memory then. Of a dispatch that was recorded, it is what each replay brings anew.
type Received struct {
	b      *Buffer
	course *course
	tokens Tokens
	op     uint64 // number of the dispatch in its course
	state  state
	y      gpu.Ptr[byte] // of the combine
}

// state is what has been asked for of a dispatch and its combine.
type state int

const (
	sent      state = iota // dispatch started
	received               // dispatch finished
	answering              // combine started
	done                   // combine finished
)

var stateNames = [...]string{"its dispatch is not finished", "its dispatch is finished, its combine not started", "its combine is started, not finished", "its combine is finished"}

func (r *Received) turn() int { return int(r.op % uint64(r.b.lay.turns)) }

// Capacity is how many rows of a local expert there is room for.
func (r *Received) Capacity() int { return r.b.comm.Size() * r.b.lay.cap }

// Rows is [LocalExperts][Capacity] rows of RowBytes: an expert's rows stand together at the start of its part, those of
// one source together, in an order that is Deterministic if that was asked for. Rows at and after the expert's count have no meaning.
func (r *Received) Rows() gpu.Ptr[byte] { return r.b.own.Ptr().Byte(uint64(r.turn() * r.b.lay.rows)) }

// RowBytes is from one row to the next, a multiple of 16: Format.RowBytes.
func (r *Received) RowBytes() int { return r.b.lay.payload }

// Scales is where the scales of the first row are; those of the next are RowBytes further. BF16 has none.
func (r *Received) Scales() gpu.Ptr[byte] {
	return r.Rows().Byte(uint64(r.b.opt.Format.ValueBytes(r.b.opt.Hidden)))
}

// Infos is [LocalExperts][Capacity]: whose each row is.
func (r *Received) Infos() gpu.Ptr[RowInfo] {
	l := &r.b.lay
	return gpu.Cast[RowInfo](r.b.own.Ptr().Byte(uint64(l.turns*l.rows + r.turn()*l.infos)))
}

// Counts is [LocalExperts]: the number of rows of each.
func (r *Received) Counts() gpu.Ptr[uint32] {
	return gpu.Cast[uint32](r.b.table(r.b.lay.counts)).At(r.turn() * r.b.lay.locals)
}

// name is what errors call it.
func (r *Received) name() string {
	if r.course != nil && r.course.graph != nil {
		return fmt.Sprintf("dispatch %d of a graph", r.op)
	}
	return fmt.Sprintf("dispatch %d", r.op)
}

// Outputs is [LocalExperts][Capacity][Hidden] BF16: where the experts write what they make of Rows, each row at its
// place, before Combine. It is what the answers are sent from, and nobody writes there until the combine has finished: nothing is
// copied before, and on the software device those of this rank's own tokens are added up where they lie.
func (r *Received) Outputs() gpu.Ptr[byte] {
	return r.b.out.Device().Base.Byte(uint64(r.turn() * r.b.lay.outs))
}
