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
// lost, was too late, or sent what can't be. It returns the ranks that go on (doorbell.Comm.Survivors), the same on each.
// Ranks keep their numbers and experts; the experts of a rank that is lost are none from now on. What was dispatched before
// is gone, and so are graphs that recorded the buffer's operations. All memory that others reach is new: what a rank
// that is out, and lives all the same, still writes is not seen, and what is left of broken operations is not taken for the
// next.
//
// Collective among the survivors: each calls it, also one whose operations were all right, and it waits for all of them,
// by default for the communicator's Timeout, and for this rank's stream. If it fails, say since one more rank died, it is
// called again by all, or the buffer is closed.
func (b *Buffer) Recover(ctx context.Context) ([]int, error) {
	if err := b.recover(ctx); err != nil {
		b.queued.broken = err
		return nil, fmt.Errorf("rank %d: moe: recover: %w", b.comm.Rank(), err)
	}
	return b.Ranks(), nil
}

func (b *Buffer) recover(ctx context.Context) error {
	if b.closed {
		return fmt.Errorf("buffer: %w", doorbell.ErrClosed)
	}
	if b.stream != nil {
		if err := b.stream.Wait(ctx); err != nil && ctx.Err() != nil {
			return err // else a kernel failed, and has ended
		}
	}
	if _, err := b.comm.Survivors(ctx); err != nil {
		return err
	}
	// What survivors have on their way to one another is to arrive before it finds no window there.
	if err := errors.Join(b.closeDevComm(), b.comm.Barrier(ctx), b.free()); err != nil {
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
}

// exclude tells the kernels which ranks take no part.
func (b *Buffer) exclude() error {
	table := make([]byte, 4*b.lay.ranks)
	for r := range b.lay.ranks {
		if !slices.Contains(b.ranks, r) {
			binary.NativeEndian.PutUint32(table[4*r:], 1)
		}
	}
	return b.own.Write(b.at(b.lay.missing), table)
}
