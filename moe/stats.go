// SPDX-License-Identifier: Apache-2.0

package moe

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/doorbell-net/doorbell"
)

// Stats is what a buffer's kernels have counted since the buffer was made or recovered, of operations queued while Measure
// was on.
type Stats struct {
	Rows []uint64 // rows that each local expert received
	Last []uint32 // those of the newest dispatch, whether or not it was counted
	// Waited is how long this rank waited for each rank, by the device's clock: in a dispatch the sum over the local
	// experts, whose waits go on at once; in a combine expert after expert. A rank that is slow shows by it.
	Waited []time.Duration
	// LSA is what this rank sent by stores, to itself too, and GIN what it sent by the network.
	LSA, GIN Traffic
}

// Measure has the operations queued from now on be counted, or not: that takes a few atomics for each expert and rank, and
// none for a token. A graph keeps what was set when it was recorded. It is off at first.
func (b *Buffer) Measure(on bool) { b.measure = on }

// Stats reads what was counted, when the stream is done.
func (b *Buffer) Stats() (Stats, error) {
	l, locals := &b.lay, b.LocalExperts()
	s := Stats{Rows: make([]uint64, locals), Last: make([]uint32, locals), Waited: make([]time.Duration, l.ranks)}
	if b.own == nil {
		return s, fmt.Errorf("rank %d: stats: buffer: %w", b.comm.Rank(), doorbell.ErrClosed)
	}
	var ways [2]Traffic
	err := errors.Join(b.read(l.taken, s.Rows), b.read(l.waited, s.Waited), b.read(l.traffic, &ways))
	s.LSA, s.GIN = ways[0], ways[1]
	if n := b.queued.dispatches; n > 0 {
		err = errors.Join(err, b.read(l.counts+4*l.locals*int((n-1)%uint64(l.turns)), s.Last))
	}
	return s, err
}

// read fills in what a table has.
func (b *Buffer) read(table int, into any) error {
	buf := make([]byte, binary.Size(into))
	err := b.own.Read(b.at(table), buf)
	if err == nil {
		_, err = binary.Decode(buf, binary.NativeEndian, into)
	}
	return err
}
