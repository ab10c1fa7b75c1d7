// SPDX-License-Identifier: Apache-2.0

package moe

import (
	"fmt"

	"github.com/doorbell-net/doorbell"
)

// Options of a buffer. They are the same on all ranks and stay for its life.
type Options struct {
	MaxTokens int // tokens that a rank dispatches at once, at most; 1 to 65,536
	Hidden    int // elements of a token, a multiple of 8, 8 to 1,048,576
	TopK      int // selections of a token, 1 to 32
	Experts   int // in the whole world, 1 to 65,535
	// Copies is how many selections of a rank's tokens may name one expert, in MaxTokens: 0 or 1 is enough as long as no
	// token names an expert twice; TopK is enough always. It multiplies the memory for rows.
	Copies int
	// Contexts is how many independent lanes carry the experts' messages; 0: 4, or fewer with fewer experts.
	Contexts int
	// NoLSA puts to all ranks, also to those of this node.
	NoLSA bool
}

// Limits of Options.
const (
	MaxTopK    = 32
	maxTokens  = 1 << 16
	maxHidden  = 1 << 20
	maxExperts = 1<<16 - 1 // a selection on the wire has 16 bits, all ones for none
)

// headerBytes is the size of a message's Header; its token's selections follow, 2 bytes each.
const headerBytes = 16

func (o *Options) fill(ranks int) {
	o.Copies = max(o.Copies, 1)
	if o.Contexts == 0 {
		o.Contexts = max(min(4, o.local(0, ranks)), 1)
	}
}

// Validate says what of the options is not accepted.
func (o Options) Validate() error {
	for _, f := range []struct {
		name         string
		v, low, high int
	}{
		{"tokens", o.MaxTokens, 1, maxTokens}, {"hidden", o.Hidden, 8, maxHidden}, {"top-k", o.TopK, 1, MaxTopK},
		{"experts", o.Experts, 1, maxExperts}, {"contexts", o.Contexts, 0, 1024},
		{"copies", o.Copies, 0, MaxTopK},
	} {
		if f.v < f.low || f.v > f.high {
			return fmt.Errorf("moe: %s is %d, %d to %d is accepted", f.name, f.v, f.low, f.high)
		}
	}
	if o.Hidden%8 != 0 {
		return fmt.Errorf("moe: hidden is %d, a multiple of 8 is accepted", o.Hidden)
	}
	return nil
}

// fits refuses what no machine has memory for, before its size overflows.
func (o Options) fits(ranks int) error {
	rows := float64(o.local(0, ranks)*ranks) * float64(o.MaxTokens) * float64(o.Copies)
	if need := 8 * rows * float64(o.Hidden); need > 1<<46 {
		return fmt.Errorf("moe: %d tokens of %d elements to %d experts need about %.0f bytes of each rank: %w",
			o.MaxTokens, o.Hidden, o.Experts, need, doorbell.ErrOutOfMemory)
	}
	return nil
}

// local is the number of experts of a rank: the first ones take one more when they do not divide.
func (o *Options) local(rank, ranks int) int {
	n := o.Experts / ranks
	if rank < o.Experts%ranks {
		n++
	}
	return n
}

// layout is where everything lies. Offsets and sizes are in bytes; it is the same on all ranks.
type layout struct {
	ranks, locals int // locals: most experts of a rank
	row           int // payload
	head, msg     int // what stands before it; both
	cap           int // messages of one rank to one expert
	slots         int // size of a dispatch half: [local][rank][token] messages
	back          int // size of a combine half: [token][k] rows
	combine       int // where the combine halves begin in the receive window
	recv          int // size of the receive window
	stage         int // size of a half of the staging window: [token] messages
	rows          int // size of the packed rows, and of the outputs: [local][rank*token] rows
	infos         int // size of what is known of each packed row
	// Offsets in the small tables.
	result, total, next, done, counts, blocks, base, tables int
}

func (o *Options) layout(ranks int) layout {
	l := layout{ranks: ranks, locals: o.local(0, ranks), row: 2 * o.Hidden}
	l.head = headerBytes + (2*o.TopK+15)&^15
	l.msg = l.head + l.row
	l.cap = o.MaxTokens * o.Copies
	l.slots = l.locals * ranks * l.cap * l.msg
	l.back = o.MaxTokens * o.TopK * l.row
	l.combine = 2 * l.slots
	l.recv = l.combine + 2*l.back
	l.stage = o.MaxTokens * l.msg
	l.rows = l.locals * ranks * l.cap * l.row
	l.infos = l.locals * ranks * l.cap * headerBytes
	take := func(bytes int) (off int) {
		off = l.tables
		l.tables += (bytes + 63) &^ 63
		return off
	}
	l.result = take(64)
	l.total, l.next, l.done = take(4*o.Experts), take(4*o.Experts), take(4*o.Experts)
	l.counts, l.blocks, l.base = take(4*l.locals), take(8*l.locals*ranks), take(8*2*l.locals*ranks)
	return l
}

func (o *Options) needs(ranks int) doorbell.Needs {
	l := o.layout(ranks)
	return doorbell.Needs{Contexts: o.Contexts, Signals: 2*l.locals*ranks + 2*o.Experts}
}

// MemoryBytes is what a buffer takes of each rank's memory, exactly:
//
//	message = 16 + 2*topK (rounded up to 16) + 2*hidden, L = ceil(experts/ranks), C = tokens*copies
//	2*L*ranks*C*message + 2*tokens*topK*2*hidden      slots of dispatch and combine, two halves
//	+ 2*tokens*message                                staging, two halves
//	+ L*ranks*C*(2*2*hidden + 16)                     packed rows, what is known of each, the experts' outputs
//	+ Needs.MemoryBytes + small tables
func (o Options) MemoryBytes(ranks, lsaSize int) int {
	o.fill(ranks)
	l := o.layout(ranks)
	return l.recv + 2*l.stage + 2*l.rows + l.infos + l.tables + o.needs(ranks).MemoryBytes(ranks, lsaSize)
}
