// SPDX-License-Identifier: Apache-2.0

package moe

import (
	"encoding/binary"
	"errors"
	"time"

	"github.com/doorbell-net/doorbell"
	"github.com/doorbell-net/doorbell/gpu"
)

// Stats is what a buffer's kernels have counted since the buffer was made or recovered, of operations queued while Measure
// was on.
type Stats struct {
	Rows []uint64 // rows that each local expert received; of the high-throughput form selections that name it
	Last []uint32 // those of the newest dispatch, whether or not it was counted
	// Waited is how long this rank waited for each rank, by the device's clock: in a dispatch the sum over the local
	// experts, whose waits go on at once; in a combine expert after expert; in the high-throughput form the sum over
	// channels, and what another rank passes on is waited for as that one's. A rank that is slow shows by it.
	Waited []time.Duration
	// LSA is what this rank sent by stores, to itself too, and GIN what it sent by the network. A combine of the
	// high-throughput form reads rows where they lie: LSA has them at the rank that reads. So does one on the software device its
	// own experts' rows: they count as sent.
	LSA, GIN Traffic
}

// Measure has the operations queued from now on be counted, or not: that takes a few atomics for each expert and rank, and
// none for a token. A graph keeps what was set when it was recorded. It is off at first.
func (b *Buffer) Measure(on bool) { b.measure = on }

// Stats reads what was counted, when the stream is done.
func (b *Buffer) Stats() (Stats, error) {
	l, last := &b.lay, -1
	if n := b.queued.dispatches; n > 0 {
		last = l.counts + 4*l.locals*int((n-1)%uint64(l.turns))
	}
	return l.meter.read(b.comm, b.own, b.at(0), last, b.LocalExperts())
}

// Measure is Buffer.Measure, with a few atomics for each channel and rank.
func (h *HTBuffer) Measure(on bool) { h.measure = on }

// Stats reads what was counted, when the stream is done.
func (h *HTBuffer) Stats() (Stats, error) {
	l, last := &h.lay, -1
	if r := h.newest; r != nil {
		last = l.layouts + r.slot()*l.layoutBytes + l.selections
	}
	return l.meter.read(h.comm, h.own, 0, last, h.LocalExperts())
}

// meterTables are where a Meter's numbers begin among a buffer's small tables.
type meterTables struct{ ranks, waited, taken, traffic int }

func newMeterTables(take func(bytes int) (off int), ranks, locals int) meterTables {
	return meterTables{ranks, take(8 * ranks), take(8 * locals), take(2 * trafficBytes)}
}

// on is a meter that counts there.
func (m meterTables) on(tables gpu.Ptr[byte]) Meter {
	at := func(off int) gpu.Ptr[byte] { return tables.Byte(uint64(off)) }
	return Meter{gpu.Cast[uint64](at(m.waited)), gpu.Cast[uint64](at(m.taken)), gpu.Cast[Traffic](at(m.traffic))}
}

// read is the stats of so many experts from the tables at an offset of a buffer; last is where the newest dispatch's rows are,
// -1: there was none.
func (m meterTables) read(c *doorbell.Comm, own *doorbell.Buffer, tables, last, locals int) (Stats, error) {
	s := Stats{Rows: make([]uint64, locals), Last: make([]uint32, locals), Waited: make([]time.Duration, m.ranks)}
	if own == nil {
		return s, closed(c, "stats")
	}
	var ways [2]Traffic
	get := func(table int, into any) error {
		buf := make([]byte, binary.Size(into))
		err := own.Read(tables+table, buf)
		if err == nil {
			_, err = binary.Decode(buf, binary.NativeEndian, into)
		}
		return err
	}
	err := errors.Join(get(m.taken, s.Rows), get(m.waited, s.Waited), get(m.traffic, &ways))
	s.LSA, s.GIN = ways[0], ways[1]
	if last >= 0 {
		err = errors.Join(err, get(last, s.Last))
	}
	return s, err
}
