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
	// PerRank sends a token once to each rank that has experts of it, in place of once to each expert, and copies it there
	// to each: fewer messages and bytes, the more experts of a token share a rank. Answers are one for each expert.
	PerRank bool
	// Deterministic has an expert's rows in the order of their ranks, tokens and selections, so that equal inputs give
	// equal bytes everywhere. A rank looks through its selections for each, and a warp packs an expert's rows alone.
	Deterministic bool
	// Outstanding is how many operations may be started and not yet finished at once; 0: 1. It multiplies the memory.
	Outstanding int
	// Format is what tokens are sent in.
	Format Format
}

// Limits of Options.
const (
	MaxTopK    = 32
	maxTokens  = 1 << 16
	maxHidden  = 1 << 20
	maxStarted = 8
	maxExperts = 1<<16 - 1 // a selection on the wire has 16 bits, all ones for none
)

// headerBytes is the size of a message's Header; its token's selections follow, 2 bytes each.
const headerBytes = 16

// resultBytes is the size of the two results.
const resultBytes = 2 * 64

func (o *Options) fill(ranks int) {
	o.Copies, o.Outstanding = max(o.Copies, 1), max(o.Outstanding, 1)
	if o.Contexts == 0 {
		o.Contexts = max(min(4, o.local(0, ranks)), 1)
	}
}

// Validate says what of the options is not accepted.
func (o Options) Validate() error {
	return limits{
		{"tokens", o.MaxTokens, 1, maxTokens}, {"hidden", o.Hidden, 8, maxHidden}, {"top-k", o.TopK, 1, MaxTopK},
		{"experts", o.Experts, 1, maxExperts}, {"contexts", o.Contexts, 0, 1024},
		{"copies", o.Copies, 0, MaxTopK}, {"outstanding", o.Outstanding, 0, maxStarted},
	}.check(o.Format, o.Hidden)
}

// limits are options with what is accepted of each.
type limits []struct {
	name         string
	v, low, high int
}

// check says what is not accepted of them, and of what both forms have.
func (l limits) check(f Format, hidden int) error {
	for _, o := range l {
		if o.v < o.low || o.v > o.high {
			return fmt.Errorf("moe: %s is %d, %d to %d is accepted", o.name, o.v, o.low, o.high)
		}
	}
	if !f.valid() {
		return fmt.Errorf("moe: format is %d, 0 to %d is accepted: %v", f, len(formatNames)-1, formatNames)
	}
	if hidden%8 != 0 {
		return fmt.Errorf("moe: hidden is %d, a multiple of 8 is accepted", hidden)
	}
	return nil
}

// fits refuses what no machine has memory for, before its size overflows.
func (o Options) fits(ranks int) error {
	rows := float64(o.local(0, ranks)*ranks) * float64(o.MaxTokens) * float64(o.Copies) * float64(o.Outstanding)
	if need := 8 * rows * float64(o.Hidden); need > 1<<46 {
		return fmt.Errorf("moe: %d tokens of %d elements to %d experts need about %.0f bytes of each rank: %w",
			o.MaxTokens, o.Hidden, o.Experts, need, doorbell.ErrOutOfMemory)
	}
	return nil
}

func (o *Options) local(rank, ranks int) int { return localExperts(o.Experts, rank, ranks) }

// localExperts is the number of experts of a rank: the first ones take one more when they do not divide.
func localExperts(experts, rank, ranks int) int {
	n := experts / ranks
	if rank < experts%ranks {
		n++
	}
	return n
}

// layout is where everything lies. Offsets and sizes are in bytes; it is the same on all ranks.
type layout struct {
	ranks, locals int // locals: most experts of a rank
	turns, sets   int // operations in flight; sets of slots
	row           int // BF16, of an answer
	payload       int // of a dispatched token
	head, msg     int // what stands before a payload; both
	cap           int // messages of one rank to one expert
	boxes, boxCap int // of a rank: its experts' or its own; messages of one rank to one
	slots         int // size of a dispatch set: [box][rank][boxCap] messages
	back          int // size of a combine set: [token][k] rows
	combine       int // where the combine sets begin in the receive window
	recv          int // size of the receive window
	stage         int // size of a set of the staging window: [token] messages
	rows          int // size of a turn's packed payloads: [local][rank*token]
	outs          int // size of a turn's outputs: [local][rank*token] rows
	infos         int // size of what is known of each packed row of a turn
	// Offsets in the small tables.
	next, now, failed, told, answers, far, packed, counts, blocks, own, ends, missing, tables int
	meter                                                                                     meterTables
}

func (o *Options) layout(ranks int) layout {
	l := layout{ranks: ranks, locals: o.local(0, ranks), row: 2 * o.Hidden, payload: o.Format.RowBytes(o.Hidden), turns: o.Outstanding}
	l.sets = 2 * l.turns
	l.head = headerBytes + round16(2*o.TopK)
	l.msg = l.head + l.payload
	l.cap = o.MaxTokens * o.Copies
	if l.boxes, l.boxCap = l.locals, l.cap; o.PerRank {
		l.boxes, l.boxCap = 1, o.MaxTokens
	}
	l.slots = l.boxes * ranks * l.boxCap * l.msg
	l.back = o.MaxTokens * o.TopK * l.row
	l.combine = l.sets * l.slots
	l.recv = l.combine + l.sets*l.back
	l.stage = o.MaxTokens * l.msg
	l.rows = l.locals * ranks * l.cap * l.payload
	l.outs = l.locals * ranks * l.cap * l.row
	l.infos = l.locals * ranks * l.cap * headerBytes
	take := func(bytes int) (off int) {
		off = l.tables
		l.tables += (bytes + 63) &^ 63
		return off
	}
	l.next, l.now, l.failed, l.told, l.answers = take(64), take(64*l.turns), take(4), take(8), take(8*l.sets)
	l.far, l.packed = take(16*(ranks+o.Experts)), take(8*l.locals)
	l.counts, l.blocks, l.own = take(l.turns*4*l.locals), take(l.turns*8*l.locals*ranks), take(l.turns*4*o.MaxTokens*o.TopK)
	l.ends = take(2 * l.sets * 8 * l.boxes * ranks)
	l.missing, l.meter = take(4*ranks), newMeterTables(take, ranks, l.locals)
	return l
}

func (o *Options) needs(ranks int) doorbell.Needs {
	l := o.layout(ranks)
	return doorbell.Needs{Contexts: o.Contexts, Signals: l.sets * (l.boxes*ranks + o.Experts)}
}

// MessageBytes is what a dispatch puts on the wire for one selection, or for all of a token on a rank (PerRank): a header of 16 bytes, the token's selections
// (2*topK rounded up to 16) and its row. AnswerBytes is what a combine puts for it.
func (o Options) MessageBytes() int { return o.layout(1).msg }

// AnswerBytes is the size of one answer: 2*hidden.
func (o Options) AnswerBytes() int { return o.layout(1).row }

// MemoryBytes is what a buffer takes of each rank's memory, exactly, with the backend proxy:
//
//	message = MessageBytes, row = Format.RowBytes(hidden), L = ceil(experts/ranks), C = tokens*copies
//	D = outstanding; B = L*C, or tokens of PerRank
//	2*D*(B*ranks*message + tokens*topK*2*hidden)    slots of dispatch and combine
//	+ 2*D*tokens*message                              staging
//	+ D*L*ranks*C*(row + 16 + 2*hidden)               packed rows, what is known of each, the experts' outputs
//	+ Needs.MemoryBytes + small tables
func (o Options) MemoryBytes(ranks, lsaSize int) int {
	ranks = max(ranks, 1)
	o.fill(ranks)
	l := o.layout(ranks)
	return l.recv + l.sets*l.stage + l.turns*(l.rows+l.outs+l.infos) + l.tables + resultBytes + o.needs(ranks).MemoryBytes(ranks, lsaSize)
}
