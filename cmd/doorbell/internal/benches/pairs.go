// SPDX-License-Identifier: Apache-2.0

package benches

import (
	"fmt"
	"time"

	"github.com/doorbell-net/doorbell"
	"github.com/doorbell-net/doorbell/bench/kernels"
	"github.com/doorbell-net/doorbell/cmd/doorbell/internal/report"
	"github.com/doorbell-net/doorbell/gin"
	"github.com/doorbell-net/doorbell/gpu"
)

// one is the grid of a latency kernel.
var one = doorbell.Grid{Blocks: 1, Warps: 1}

// meanOf is how many round trips one sample is the mean of, for sizes below meanBelow: there the clock's 25 ns count.
const (
	meanOf    = 16
	meanBelow = 64 << 10
)

// total is about how long the timed parts of a run take together.
const total = 4 * time.Second

// peer is the rank that this one is paired with: i with N-1-i. The middle one of an odd number has none and returns
// itself.
func (b *bench) peer() int { return b.c.Size() - 1 - b.c.Rank() }

// exchange is a kernel's arguments for the pair.
func (b *bench) exchange(bytes int64, iters int) (kernels.Exchange, error) {
	result, err := b.result()
	x := kernels.Exchange{
		DC: b.dc.Device(), Send: b.send.Device(), Recv: b.recv.Device(), Bytes: uint64(bytes), Iters: uint64(iters), Base: b.base,
		Result: result, Peer: int32(b.peer()),
	}
	if b.lsa() {
		x.LSA = 1
	}
	return x, err
}

// lsa says whether this rank reaches its peer by stores, and may.
func (b *bench) lsa() bool {
	dc := b.dc.Device()
	return b.cfg.LSA && gin.LSARank(&dc, int32(b.peer())) >= 0
}

func largest(sizes []int64) int64 {
	n := int64(8)
	for _, s := range sizes {
		n = max(n, s)
	}
	return (n + 7) &^ 7
}

func (b *bench) pingPong() error {
	bytes := int(largest(b.cfg.Sizes))
	if err := b.setUp(bytes, bytes, doorbell.Needs{Signals: 1, Sharing: doorbell.OneThread}); err != nil {
		return err
	}
	for i, size := range b.cfg.Sizes {
		b.cfg.Step(i, len(b.cfg.Sizes), report.Size(size))
		if b.cfg.Pairs == 0 {
			if err := b.pingPongSize(size, kernels.PingPongKernel, ""); err != nil {
				return stop(err)
			}
		}
		for range b.cfg.Pairs {
			if err := b.pingPongSize(size, kernels.PingPongKernel, "ours"); err != nil {
				return stop(err)
			}
			if err := b.pingPongSize(size, b.cfg.Twin, "twin"); err != nil {
				return stop(err)
			}
		}
	}
	return nil
}

func (b *bench) pingPongSize(size int64, k gpu.Kernel[kernels.Exchange], label string) error {
	// Median and minimum are of means of some trips, so that the clock is not part of them; the tail is of single trips.
	var h, tail report.Hist
	var timed kernels.Result
	err := b.rounds(size, b.peer() != b.c.Rank(), func(iters int) (uint64, error) {
		x, err := b.exchange(size, iters)
		if err != nil {
			return 0, err
		}
		r, err := measured(b, k, one, x)
		b.base += uint64(iters)
		return r.Ns / uint64(max(iters, 1)), err
	}, func(iters int) (err error) {
		for _, run := range []struct {
			h     *report.Hist
			every int
		}{{&h, meanOf}, {&tail, 1}} {
			n := max(iters/2/run.every, 1)
			x, err := b.exchange(size, n*run.every)
			if err != nil {
				return err
			}
			x.Samples, x.Every = b.samples(), uint64(run.every)
			r, err := measured(b, k, one, x)
			b.base += uint64(n * run.every)
			if err != nil {
				return err
			}
			timed.Ns += r.Ns
			timed.Count += r.Count
			if b.c.Rank() < b.peer() {
				all, err := read[uint32](b, 64, n)
				if err != nil {
					return err
				}
				for _, ns := range all {
					run.h.Record(uint64(ns))
				}
			}
		}
		return nil
	})
	p := part{Ns: timed.Ns}
	if p.Tail, _ = tail.AppendBinary(nil); size >= meanBelow {
		h.Merge(&tail)
	}
	if b.c.Rank() < b.peer() {
		p.Count = timed.Count
	}
	parts, err := b.share(p, &h, err)
	if err != nil {
		return err
	}
	row := b.row(size, b.lsa())
	row.Label = label
	for _, p := range parts {
		if p.Count > 0 {
			row.Mops += float64(p.Count) * 1e3 / float64(p.Ns) // round trips of all pairs
		}
	}
	return b.add(row, parts)
}

// rounds runs a pair's check rounds, whose bytes are compared whole, agrees on the timed iterations and runs those, and
// compares what the last one left. try runs so many iterations, and says how long one took; receives says whether this
// rank gets the bytes.
func (b *bench) rounds(size int64, receives bool, try func(iters int) (uint64, error), timed func(iters int) error) error {
	const checks = 3
	idle := b.peer() == b.c.Rank()
	var ns uint64
	for k := range checks + 1 {
		if !idle {
			if err := b.fill(0, size, uint64(k)); err != nil {
				return err
			}
		}
		// Nobody sends while somebody still compares.
		if err := b.c.Barrier(b.ctx); err != nil {
			return err
		}
		if idle {
			continue
		}
		n := 1
		if k == checks {
			n = b.warmup(16)
		}
		t, err := try(n)
		if err != nil {
			return err
		}
		ns = t
		if receives {
			if err := b.check(0, size, b.peer(), 0, uint64(k)); err != nil {
				return err
			}
		}
	}
	iters, err := b.iterations(ns, total/time.Duration(max(len(b.cfg.Sizes)*max(2*b.cfg.Pairs, 1), 4)))
	if err != nil {
		return err
	}
	if idle {
		return b.checkSignals()
	}
	if err := timed(iters); err != nil {
		return err
	}
	if receives {
		if err := b.check(0, size, b.peer(), 0, checks); err != nil {
			return err
		}
	}
	return b.checkSignals(b.base)
}

// Bandwidth's sizes: an iteration has up to maxBatch puts and about batchBytes, of 4 MiB eight, and two are in flight; a cold run
// goes over coldSpan.
const (
	maxBatch   = 32
	batchBytes = 32 << 20
	coldSpan   = 256 << 20
	coldFrom   = 4 << 20
)

func (b *bench) bandwidth() error {
	bytes := int(largest(b.cfg.Sizes))
	if bytes >= coldFrom {
		bytes = max(bytes, coldSpan)
	}
	if err := b.setUp(bytes, bytes, doorbell.Needs{Signals: 1, Sharing: doorbell.OneThread}); err != nil {
		return err
	}
	for i, size := range b.cfg.Sizes {
		b.cfg.Step(i, len(b.cfg.Sizes), report.Size(size))
		if err := b.bandwidthSize(size, false); err != nil {
			return stop(err)
		}
		if size >= coldFrom && size <= coldSpan {
			b.cfg.Step(i, len(b.cfg.Sizes), report.Size(size)+" cold")
			if err := b.bandwidthSize(size, true); err != nil {
				return stop(err)
			}
		}
	}
	return nil
}

func (b *bench) bandwidthSize(size int64, cold bool) error {
	sender := b.c.Rank() < b.peer()
	args := func(iters, batch int) (kernels.BandwidthArgs, error) {
		x, err := b.exchange(size, iters)
		a := kernels.BandwidthArgs{X: x, Batch: uint64(batch), Span: uint64(size)}
		if cold {
			a.Span, a.Step = uint64(coldSpan/size*size), uint64(size)
		}
		return a, err
	}
	batch := int(min(max(batchBytes/max(size, 1), 1), maxBatch))
	advance := func(iters, batch int) {
		if sender {
			b.base += uint64(iters)
		} else {
			b.base += uint64(iters * batch)
		}
	}
	var timed kernels.Result
	runs := func(iters, batch int) (r kernels.Result, err error) {
		a, err := args(iters, batch)
		if err != nil {
			return r, err
		}
		r, err = measured(b, kernels.BandwidthKernel, one, a)
		advance(iters, batch)
		return r, err
	}
	var err error
	if cold {
		timed, err = b.coldRounds(size, func(puts int) (kernels.Result, error) { return runs((puts+batch-1)/batch, batch) })
	} else {
		err = b.rounds(size, !sender, func(iters int) (uint64, error) {
			n := batch
			if iters == 1 {
				n = 1 // a check round: no put may hide what another did
			}
			r, err := runs(iters, n)
			return r.Ns / uint64(max(iters, 1)), err
		}, func(iters int) (err error) {
			timed, err = runs(iters, batch)
			return err
		})
	}
	p := part{Ns: timed.Ns}
	if sender {
		p.Count = timed.Count
	}
	parts, err := b.share(p, nil, err)
	if err != nil {
		return err
	}
	row := b.row(size, b.lsa())
	row.Label = "hot"
	if cold {
		row.Label = fmt.Sprintf("cold (%s span)", report.Size(coldSpan))
	}
	for _, p := range parts {
		if p.Count > 0 {
			row.GBps += float64(p.Count) * float64(size) / float64(p.Ns)
			row.Mops += float64(p.Count) * 1e3 / float64(p.Ns)
		}
	}
	return b.add(row, parts)
}

// coldRounds goes over the whole span once for the check, and then some times for the clock.
func (b *bench) coldRounds(size int64, runs func(int) (kernels.Result, error)) (timed kernels.Result, err error) {
	span := coldSpan / size * size
	puts := int(span / size)
	sender, idle := b.c.Rank() < b.peer(), b.peer() == b.c.Rank()
	for k := range 4 {
		if sender && k == 0 {
			if err := b.fill(0, span, 99); err != nil {
				return timed, err
			}
		}
		if err := b.c.Barrier(b.ctx); err != nil || idle {
			if err != nil {
				return timed, err
			}
			continue
		}
		r, err := runs(puts)
		if err != nil {
			return timed, err
		}
		if !sender && k == 0 {
			if err := b.check(0, span, b.peer(), 0, 99); err != nil {
				return timed, err
			}
		}
		if k > 0 {
			timed.Ns += r.Ns
			timed.Count += r.Count
		}
	}
	if idle {
		return timed, b.checkSignals()
	}
	return timed, b.checkSignals(b.base)
}

func (b *bench) rate() error {
	const bytes = kernels.RateSlots*8 + 8
	if err := b.setUp(bytes, bytes, doorbell.Needs{Signals: 3, Sharing: doorbell.OneThread}); err != nil {
		return err
	}
	for i, size := range b.cfg.Sizes {
		if size != 8 {
			return fmt.Errorf("bench rate: size %d: 8 is accepted, the size of a word", size)
		}
		b.cfg.Step(i, len(b.cfg.Sizes), report.Size(size))
	}
	var r kernels.Result
	err := b.c.Barrier(b.ctx)
	if err == nil && b.peer() != b.c.Rank() {
		a := kernels.RateArgs{Ns: uint64(2 * time.Second), Seed: b.cfg.Seed, Iter: 1}
		if a.X, err = b.exchange(8, kernels.RateAck); err != nil {
			return err
		}
		if b.cfg.Iters > 0 {
			a.X.Iters, a.Ns = uint64((b.cfg.Iters+kernels.RateAck-1)/kernels.RateAck*kernels.RateAck), 0
		}
		r, err = measured(b, kernels.RateKernel, one, a)
	}
	p := part{Ns: r.Ns}
	if err == nil {
		switch {
		case b.c.Rank() > b.peer():
			p.Count = r.Count
			b.checked += int64(8 * r.Count)
			err = b.checkSignals(r.Count, 0, 1)
		case b.c.Rank() < b.peer():
			err = b.checkSignals(0, r.Count/kernels.RateAck, 0)
		default:
			err = b.checkSignals()
		}
	}
	parts, err := b.share(p, nil, err)
	if err != nil {
		return err
	}
	row := b.row(8, false)
	for _, p := range parts {
		if p.Count > 0 {
			row.Mops += float64(p.Count) * 1e3 / float64(p.Ns)
			row.GBps += float64(p.Count) * 8 / float64(p.Ns)
		}
	}
	return stop(b.add(row, parts))
}
