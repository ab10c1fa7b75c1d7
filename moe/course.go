// SPDX-License-Identifier: Apache-2.0

package moe

import (
	"cmp"
	"fmt"

	"github.com/doorbell-net/doorbell"
)

// course is how far the calls have come, of those that were queued or of those that a graph recorded.
type course struct {
	graph      *doorbell.Graph // nil: queued
	dispatches uint64
	started    int         // operations not yet finished
	turns      []*Received // of dispatch n at n % Outstanding
	broken     error       // why no further operation can be right
	life       int         // the buffer's when it began
}

func (b *Buffer) newCourse(g *doorbell.Graph) *course {
	return &course{graph: g, turns: make([]*Received, b.lay.turns), life: b.life}
}

// course is that of a stream's calls. The first one that a graph records begins one, which each replay adds to what was
// queued.
func (b *Buffer) course(st *doorbell.Stream) *course {
	g := st.Graph()
	if g == nil {
		return b.queued
	}
	if b.tape == nil || b.tape.graph != g {
		c := b.newCourse(g)
		g.AtReplay(func(on *doorbell.Stream) error { return b.mayReplay(c, on) }, func(on *doorbell.Stream) { b.replayed(c, on) })
		b.tape = c
	}
	return b.tape
}

// mayReplay refuses a replay at a time, or of a recording, that would leave operations started and not finished: which
// sets of slots are free is known between whole operations alone.
func (b *Buffer) mayReplay(c *course, on *doorbell.Stream) error {
	const what = "replay"
	switch err := b.ready(what, on, b.queued); {
	case err != nil:
		return err
	case c.life != b.life:
		return b.refuse(what, "the graph was recorded before the buffer was recovered")
	case c.broken != nil:
		return fmt.Errorf("rank %d: %s: an operation was not recorded: %w", b.comm.Rank(), what, c.broken)
	case c.started > 0:
		return b.refuse(what, "the graph starts %d operations that it does not finish", c.started)
	case b.queued.started > 0:
		return b.refuse(what, "%d operations are started and not finished", b.queued.started)
	}
	return nil
}

func (b *Buffer) replayed(c *course, on *doorbell.Stream) {
	b.stream = on
	b.queued.dispatches += c.dispatches
	for i, r := range c.turns {
		if r != nil {
			b.queued.turns[i] = r
		}
	}
}

// ready refuses a buffer that is closed or broken, and a second stream beside one that may not be done.
func (b *Buffer) ready(what string, st *doorbell.Stream, c *course) error {
	switch {
	case b.dc == nil:
		return closed(b.comm, what)
	case b.queued.broken != nil || c.broken != nil:
		return fmt.Errorf("rank %d: %s: an earlier operation failed: %w", b.comm.Rank(), what, cmp.Or(b.queued.broken, c.broken))
	case c.graph == nil && b.stream != nil && b.stream != st:
		return b.refuse(what, "operations of this buffer may still run on another stream: Wait or Check comes first")
	}
	return nil
}

// room refuses one operation more than may be started and not finished. A rank that has received an operation knows that
// its peers have received the one Outstanding before it, so twice as many sets of slots are enough, and no more are there.
func (b *Buffer) room(what string, c *course) error {
	if c.started >= b.lay.turns {
		return b.refuse(what, "%d operations are started and not finished, %d may be (Outstanding)", c.started, b.lay.turns)
	}
	return nil
}

// handle refuses one that the call is not for.
func (b *Buffer) handle(what string, r *Received, c *course, want state) error {
	switch {
	case r == nil:
		return b.refuse(what, "of what no dispatch brought: nil")
	case r.b != b:
		return b.refuse(what, "%s is another buffer's", r.name())
	case r.course.life != b.life:
		return b.refuse(what, "%s is gone: the buffer was recovered since", r.name())
	case r.course != c:
		return b.refuse(what, "%s: what a graph records is of its own dispatches, and what is queued of those that were queued", r.name())
	case c.turns[r.turn()] != r:
		return b.refuse(what, "%s: its rows are %s's now", r.name(), c.turns[r.turn()].name())
	case r.state != want:
		return b.refuse(what, "%s: %s; wanted: %s", r.name(), stateNames[r.state], stateNames[want])
	}
	return nil
}
