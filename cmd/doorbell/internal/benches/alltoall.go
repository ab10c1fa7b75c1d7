// SPDX-License-Identifier: Apache-2.0

package benches

import (
	"time"

	"github.com/doorbell-net/doorbell"
	"github.com/doorbell-net/doorbell/bench/kernels"
	"github.com/doorbell-net/doorbell/cmd/doorbell/internal/report"
)

func (b *bench) allToAll() error {
	n := b.c.Size()
	bytes := int(largest(b.cfg.Sizes)) * n
	if err := b.setUp(bytes, bytes, doorbell.Needs{Signals: n}); err != nil {
		return err
	}
	for i, size := range b.cfg.Sizes {
		b.cfg.Step(i, len(b.cfg.Sizes), report.Size(size))
		if err := b.allToAllSize(size); err != nil {
			return stop(err)
		}
	}
	return nil
}

func (b *bench) allToAllSize(size int64) error {
	n := b.c.Size()
	step := (size + 7) &^ 7
	args := func(iters int) (kernels.AllToAllArgs, error) {
		x, err := b.exchange(size, iters)
		x.LSA = 0
		if b.cfg.LSA {
			x.LSA = 1
		}
		return kernels.AllToAllArgs{X: x, Step: uint64(step)}, err
	}
	var h report.Hist
	var timed kernels.Result
	err := func() error {
		const checks = 3
		var ns uint64
		for k := range checks + 1 {
			if err := b.fill(0, step*int64(n), uint64(k)); err != nil {
				return err
			}
			if err := b.c.Barrier(b.ctx); err != nil {
				return err
			}
			iters := 1
			if k == checks {
				iters = b.warmup(8)
			}
			a, err := args(iters)
			if err != nil {
				return err
			}
			r, err := measured(b, kernels.AllToAllKernel, one, a)
			b.base += uint64(iters)
			if err != nil {
				return err
			}
			ns = r.Ns / uint64(iters)
			if err := b.checkChunks(size, step, uint64(k)); err != nil {
				return err
			}
		}
		iters, err := b.iterations(ns, total/time.Duration(max(len(b.cfg.Sizes), 4)))
		if err != nil {
			return err
		}
		a, err := args(iters)
		if err != nil {
			return err
		}
		a.X.Samples = b.samples()
		timed, err = measured(b, kernels.AllToAllKernel, one, a)
		b.base += uint64(iters)
		if err != nil {
			return err
		}
		all, err := read[uint32](b, 64, iters)
		if err != nil {
			return err
		}
		for _, ns := range all {
			h.Record(uint64(ns))
		}
		if err := b.checkChunks(size, step, checks); err != nil {
			return err
		}
		want := make([]uint64, n)
		for i := range want {
			want[i] = b.base
		}
		return b.checkSignals(want...)
	}()
	parts, err := b.share(part{Ns: timed.Ns, Count: timed.Count}, &h, err)
	if err != nil {
		return err
	}
	row := b.row(size, b.cfg.LSA && b.c.LSASize() == n)
	if b.cfg.LSA && b.c.LSASize() > 1 && b.c.LSASize() < n {
		row.Net = "lsa+" + row.Net
	}
	var slowest, count uint64
	for _, p := range parts {
		slowest, count = max(slowest, p.Ns), p.Count
	}
	if slowest > 0 {
		// What one rank sends, itself included, over the time of the slowest.
		row.GBps = float64(count) * float64(size) * float64(n) / float64(slowest)
	}
	if err := b.add(row, parts); err != nil {
		return err
	}
	b.rows[len(b.rows)-1].Iters = int64(count)
	return nil
}

func (b *bench) checkChunks(size, step int64, iter uint64) error {
	for p := range b.c.Size() {
		if err := b.check(int64(p)*step, size, p, int64(b.c.Rank())*step, iter); err != nil {
			return err
		}
	}
	return nil
}
