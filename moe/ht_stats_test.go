// SPDX-License-Identifier: Apache-2.0

package moe_test

import (
	"fmt"
	"slices"

	"github.com/doorbell-net/doorbell/moe"
	"github.com/doorbell-net/doorbell/moe/ref"
)

// htCounted is what a rank must have counted, by formulas of the routing alone. How often it puts messages and says that it is
// done with some depends on when they come, between once for a chunk and once for each.
type htCounted struct {
	moe.Stats
	fewest, most uint64 // signals beside GIN.Signals
	measured     bool   // something was
}

func newHTCounted(w *htWorld) []*htCounted {
	all := make([]*htCounted, len(w.bufs))
	for r, h := range w.bufs {
		all[r] = &htCounted{Stats: moe.Stats{Rows: make([]uint64, h.LocalExperts()), Last: make([]uint32, h.LocalExperts())}}
	}
	return all
}

// add adds what rank r counts when a problem is dispatched and combined so many times, with one layout.
func (c *htCounted) add(p *ref.Problem, w *htWorld, r int, times uint64, measured bool) {
	clear(c.Last)
	for _, of := range ref.Counts(p) {
		for l := range c.Last {
			c.Last[l] += uint32(of[p.FirstExpert(r)+l])
		}
	}
	if !measured {
		return
	}
	c.measured = true
	for l, n := range c.Last {
		c.Rows[l] += times * uint64(n)
	}
	o, ranks, node := w.bufs[r].Options(), uint64(p.Ranks), uint64(w.perNode)
	x := ref.HTTrafficOf(p, w.perNode)[r]
	stored, put, came := uint64(x.Stored), uint64(x.Put), uint64(x.Came)
	round16 := func(n int) int { return (n + 15) / 16 * 16 }
	row := uint64(o.Format.RowBytes(o.Hidden) + round16(16+8*o.TopK))

	layout := uint64(o.LayoutBytes(p.Ranks)) // told once, that the rows may come each time
	c.LSA.Messages += node + 2*times*stored
	c.LSA.Bytes += node*layout + times*stored*(row+uint64(2*o.Hidden+4*o.TopK))
	c.GIN.Messages += ranks - node + times*(put+came)
	c.GIN.Bytes += (ranks-node)*layout + times*(put*uint64(o.MessageBytes(w.perNode))+came*uint64(o.AnswerBytes()))

	warps := uint64(o.Channels) * min(ranks/node, 2)
	// A warp of several channels, of one node, says once that all of them are sent.
	c.LSA.Signals += times * (node + uint64(w.bufs[r].Senders())*node + uint64(o.Channels)*(ranks-node) + node + warps*node)
	c.GIN.Signals += times * (ranks - node)
	chunk := uint64(o.Chunk)
	c.fewest += 2 * times * ((put+chunk-1)/chunk + (came+chunk-1)/chunk)
	c.most += 2 * times * (put + came)
}

// compare says what of a rank's stats is wrong.
func (c *htCounted) compare(h *moe.HTBuffer) error {
	got, err := h.Stats()
	if err != nil {
		return err
	}
	more := got.GIN.Signals - c.GIN.Signals
	got.GIN.Signals = c.GIN.Signals
	if !slices.Equal(got.Rows, c.Rows) || !slices.Equal(got.Last, c.Last) || got.LSA != c.LSA || got.GIN != c.GIN || more < c.fewest || more > c.most {
		return fmt.Errorf("counted %+v and %d signals of messages, must be %+v and %d to %d", got, more, c.Stats, c.fewest, c.most)
	}
	for q, d := range got.Waited {
		if (d > 0) != c.measured {
			return fmt.Errorf("waited %v for rank %d", d, q)
		}
	}
	return nil
}
