// SPDX-License-Identifier: Apache-2.0

package moe

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/doorbell-net/doorbell"
)

// Ranks are those that take part in operations, rising: those of the communicator when the buffer was made or recovered.
// Selections of other ranks' experts count as none.
func (b *Buffer) Ranks() []int { return slices.Clone(b.ranks) }

// Recover makes a buffer usable again, among the ranks that are left, after an operation has failed on any of them: one was
// lost or expelled (doorbell.Comm.Expel), was too late, or sent what can't be. It returns the ranks that go on
// (doorbell.Comm.Survivors), the same on each. Ranks keep their numbers and experts; the experts of a rank that is lost are
// none from now on. What was dispatched before is gone, and so are graphs that recorded the buffer's operations. All memory
// that others reach is new: what a rank that is out, and lives all the same, still writes is not seen, and what is left of
// broken operations is not taken for the next.
//
// Collective among the survivors: each calls it, also one whose operations were all right, and it waits for all of them,
// by default for the communicator's Timeout, and for this rank's stream. If it fails, say since one more rank died, it is
// called again by all, or the buffer is closed.
func (b *Buffer) Recover(ctx context.Context) ([]int, error) {
	if b.closed {
		return nil, closed(b.comm, "recover")
	}
	if err := b.recover(ctx); err != nil {
		b.queued.broken = err
		return nil, fmt.Errorf("rank %d: moe: recover: %w", b.comm.Rank(), err)
	}
	return b.Ranks(), nil
}

func (b *Buffer) recover(ctx context.Context) error {
	if err := withdraw(ctx, b.comm, b.stream, &b.dc, b.free); err != nil {
		return err
	}
	b.life++
	b.begin()
	return b.make(ctx)
}

// begin makes the state of a buffer that nothing was queued on.
func (b *Buffer) begin() {
	b.ranks = b.comm.Members()
	b.queued, b.tape, b.stream = b.newCourse(nil), nil, nil
	if !b.fixed {
		b.grid = b.defaultGrid()
	}
}

// Ranks are those that take part in operations: see Buffer.Ranks.
func (h *HTBuffer) Ranks() []int { return slices.Clone(h.ranks) }

// Recover is Buffer.Recover for the high-throughput form. Where ranks are missing each of the others is a node of its own
// from then on, as with NoLSA, and the sums are those of such nodes: those who passed on what came for their node may be
// among the missing.
func (h *HTBuffer) Recover(ctx context.Context) ([]int, error) {
	if h.closed {
		return nil, closed(h.comm, "recover")
	}
	if err := h.recover(ctx); err != nil {
		h.broken = err
		return nil, fmt.Errorf("rank %d: moe: recover: %w", h.comm.Rank(), err)
	}
	return h.Ranks(), nil
}

func (h *HTBuffer) recover(ctx context.Context) error {
	if err := withdraw(ctx, h.comm, h.stream, &h.dc, h.free); err != nil {
		return err
	}
	h.life++
	h.begin()
	return h.make(ctx)
}

// begin makes the state of a buffer that nothing was queued on.
func (h *HTBuffer) begin() {
	h.ranks, h.opt = h.comm.Members(), h.filled()
	h.lay = h.opt.layout(h.comm.Size(), h.nodeSize())
	h.stream, h.layouts, h.dispatches, h.newest, h.tape, h.broken = nil, make([]*HTReceived, h.opt.Layouts), 0, nil, nil, nil
}

// filled is the options that were asked for, with what they left open as it is best for the nodes that there are now.
func (h *HTBuffer) filled() HTOptions {
	o, nodes := h.asked, h.comm.Size()/h.nodeSize()
	if o.NoLSA {
		nodes = h.comm.Size()
	}
	o.fill(h.comm.Size(), channelsOf(h.comm, nodes))
	return o
}

// nodeSize is how many ranks are passed on to by one of them.
func (h *HTBuffer) nodeSize() int {
	if len(h.ranks) < h.comm.Size() {
		return 1
	}
	return h.comm.LSASize()
}

// withdraw agrees on who is left, and frees what they reached of each other. What they have on their way to one another
// arrives before it would find no window there.
func withdraw(ctx context.Context, c *doorbell.Comm, st *doorbell.Stream, dc **doorbell.DevComm, free func() error) error {
	if st != nil {
		if err := st.Wait(ctx); err != nil && ctx.Err() != nil {
			return err // else a kernel failed, and has ended
		}
	}
	if _, err := c.Survivors(ctx); err != nil {
		return err
	}
	return errors.Join(closeDevComm(dc), c.Barrier(ctx), free())
}

// closeDevComm waits until all that was posted has left.
func closeDevComm(p **doorbell.DevComm) error {
	dc := *p
	if *p = nil; dc == nil {
		return nil
	}
	return dc.Close()
}

// writeMissing tells the kernels which ranks take no part.
func writeMissing(to *doorbell.Buffer, off, ranks int, in []int) error {
	table := make([]byte, 4*ranks)
	for r := range ranks {
		if !slices.Contains(in, r) {
			binary.NativeEndian.PutUint32(table[4*r:], 1)
		}
	}
	return to.Write(off, table)
}
