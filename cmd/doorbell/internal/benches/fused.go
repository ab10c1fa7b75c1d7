// SPDX-License-Identifier: Apache-2.0

package benches

import (
	"errors"
	"fmt"
	"time"

	"github.com/doorbell-net/doorbell"
	"github.com/doorbell-net/doorbell/cmd/doorbell/internal/report"
	"github.com/doorbell-net/doorbell/examples/fused/layers"
)

// Shape of the layers that fused measures: a tile is a token of 1,024 elements, or as many rows of the matrix.
const (
	fusedWidth = 1024
	fusedDepth = 64
)

// FusedTile is the bytes of a tile. Sizes are multiples of it.
const FusedTile = 4 * fusedWidth

// fused measures layers in three forms. A size is what a rank computes and sends to each other.
func (b *bench) fused() error {
	var err error
	if b.scratch, err = b.c.Alloc(max(64, 8*b.c.Size())); err != nil { // for the signals
		return err
	}
	for i, size := range b.cfg.Sizes {
		b.cfg.Step(i, len(b.cfg.Sizes), report.Size(size))
		if err := b.fusedSize(size); err != nil {
			return stop(err)
		}
	}
	return nil
}

// fusedGrid is some warps on goroutines, of which few run at once, and many on a GPU, where four ranks may share it.
func (b *bench) fusedGrid() doorbell.Grid {
	if b.info.Device == "soft" {
		return doorbell.Grid{Blocks: 2, Warps: 2, Cooperative: true}
	}
	return doorbell.Grid{Blocks: 16, Warps: 8, Cooperative: true}
}

func (b *bench) fusedSize(size int64) error {
	l, err := layers.New(b.ctx, b.c, layers.Options{
		Tiles: int(size / FusedTile), Width: fusedWidth, Depth: fusedDepth, Seed: b.cfg.Seed, Grid: b.fusedGrid(),
		Stores: b.cfg.LSA, HostWindow: b.cfg.HostWindows,
	})
	if err != nil {
		return err
	}
	b.st, b.dc = b.c.Stream(), l.DevComm()
	iter := uint64(0) // each check has values of its own: none is taken for one of before
	for _, work := range layers.Works {
		for _, form := range layers.Forms {
			if err := b.fusedForm(l, size, work, form, &iter); err != nil {
				return err
			}
		}
	}
	return errors.Join(b.st.Close(), l.Close())
}

// fusedForm makes a row: check rounds, rounds for the clock, and a look at what the last of those left. A sample is a round
// as the host sees it, from the first launch to the end of its wait, on each rank.
func (b *bench) fusedForm(l *layers.Layer, size int64, work layers.Work, form layers.Form, iter *uint64) error {
	const checks = 2
	var h report.Hist
	var timed part
	rounds := func(n int, h *report.Hist) (ns uint64, err error) {
		for range n {
			start := time.Now()
			if err := l.Run(b.ctx, work, form); err != nil {
				return ns, err
			}
			one := uint64(time.Since(start))
			ns += one
			if h != nil {
				h.Record(one)
			}
		}
		return ns, nil
	}
	check := func() error {
		n, err := l.Check(work)
		b.checked += n
		if errors.Is(err, layers.ErrWrong) {
			b.found("%v, %v", form, err)
			err = nil
		}
		return err
	}
	err := func() error {
		var ns uint64
		for k := range checks + 1 {
			*iter++
			if err := l.Fill(*iter); err != nil {
				return err
			}
			n := 1
			if k == checks {
				n = b.warmup(8)
			}
			all, err := rounds(n, nil)
			if err != nil {
				return err
			}
			ns = all / uint64(n)
			if err := check(); err != nil {
				return err
			}
		}
		n, err := b.iterations(ns, total/time.Duration(max(len(b.cfg.Sizes), 4)*len(layers.Works)*len(layers.Forms)))
		if err != nil {
			return err
		}
		if timed.Ns, err = rounds(n, &h); err != nil {
			return err
		}
		timed.Count = uint64(n)
		if err := check(); err != nil {
			return err
		}
		want := make([]uint64, b.c.Size())
		for p := range want {
			if p != b.c.Rank() {
				want[p] = l.Sent()
			}
		}
		return b.checkSignals(want...)
	}()
	parts, err := b.share(timed, &h, err)
	if err != nil {
		return err
	}
	row := b.row(size, b.cfg.LSA && b.c.LSASize() == b.c.Size())
	if b.cfg.LSA && b.c.LSASize() > 1 && b.c.LSASize() < b.c.Size() {
		row.Net = "lsa+" + row.Net
	}
	row.Label = fmt.Sprintf("%v %v", work, form)
	slowest := uint64(0)
	for _, p := range parts {
		slowest = max(slowest, p.Ns)
	}
	if slowest > 0 {
		// What one rank sends to all others, over the time of the slowest.
		row.GBps = float64(timed.Count) * float64(size) * float64(b.c.Size()-1) / float64(slowest)
	}
	if err := b.add(row, parts); err != nil {
		return err
	}
	b.rows[len(b.rows)-1].Iters = int64(timed.Count)
	return nil
}
