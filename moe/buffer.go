// SPDX-License-Identifier: Apache-2.0

package moe

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/doorbell-net/doorbell"
)

// Buffer is one rank's memory and state for dispatch and combine. Its calls are made from one goroutine at a time, by
// all ranks in the same order, and queue kernels on one stream: another one is taken after Wait or Check.
type Buffer struct {
	comm *doorbell.Comm
	opt  Options
	lay  layout
	dc   *doorbell.DevComm
	recv *doorbell.Window
	send *doorbell.Window // staging
	out  *doorbell.Window // the experts' outputs
	own  *doorbell.Buffer // rows, infos, tables
	host *doorbell.Buffer // two results, in memory of the host

	grid  doorbell.Grid // what kernels run with,
	fixed bool          // as SetGrid says

	stream *doorbell.Stream // that operations may still be on
	queued *course          // all that was queued
	tape   *course          // of the graph that was recorded last

	ranks   []int // that take part
	life    int   // how often it was recovered
	measure bool
	closed  bool
}

// New makes a rank's buffer. Collective: all ranks give the same options. Memory is refused before it is taken: the
// error wraps doorbell.ErrOutOfMemory and says what is needed and what there is.
func New(ctx context.Context, c *doorbell.Comm, o Options) (*Buffer, error) {
	o.fill(c.Size())
	err := o.Validate()
	if err == nil {
		err = o.fits(c.Size())
	}
	if err := agree(ctx, c, o, err); err != nil {
		return nil, err
	}
	b := &Buffer{comm: c, opt: o, lay: o.layout(c.Size())}
	b.begin()
	if err := b.make(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("rank %d: moe: %w", c.Rank(), err), b.Close())
	}
	return b, nil
}

// agree refuses options, on all ranks, that a rank has refused or that are not the same on all. err is why this one
// refuses its own: the others are told, and do not wait.
func agree[O comparable](ctx context.Context, c *doorbell.Comm, mine O, err error) error {
	text, jerr := json.Marshal(mine)
	if err = errors.Join(err, jerr); err != nil {
		text = nil
	}
	all, gerr := c.AllGather(ctx, text)
	if err != nil || gerr != nil {
		return fmt.Errorf("rank %d: %w", c.Rank(), errors.Join(err, gerr))
	}
	for _, r := range c.Members() {
		var other O
		b := all[r]
		if len(b) == 0 {
			return fmt.Errorf("rank %d: moe: options of rank %d: %w", c.Rank(), r, doorbell.ErrRefused)
		}
		if err := json.Unmarshal(b, &other); err != nil {
			return fmt.Errorf("rank %d: moe: options of rank %d: %w", c.Rank(), r, err)
		}
		if other != mine {
			return fmt.Errorf("rank %d: moe: options: %w: %+v here, %+v on rank %d", c.Rank(), doorbell.ErrDisagree, mine, other, r)
		}
	}
	return nil
}

func (b *Buffer) make(ctx context.Context) (err error) {
	c, l := b.comm, b.lay
	if err := c.Reserve(ctx, b.opt.MemoryBytes(c.Size(), c.LSASize())); err != nil {
		return err
	}
	window := func(bytes int) *doorbell.Window {
		if err != nil {
			return nil
		}
		var buf *doorbell.Buffer
		if buf, err = c.Alloc(bytes); err != nil {
			return nil
		}
		var w *doorbell.Window
		w, err = c.Register(ctx, buf)
		return w
	}
	b.recv, b.send, b.out = window(l.recv), window(l.sets*l.stage), window(l.turns*l.outs)
	if err != nil {
		return err
	}
	if b.own, err = c.Alloc(l.turns*(l.rows+l.infos) + l.tables); err != nil {
		return err
	}
	if b.host, err = c.AllocHost(resultBytes); err != nil {
		return err
	}
	if err = writeMissing(b.own, b.at(l.missing), l.ranks, b.ranks); err != nil {
		return err
	}
	b.dc, err = c.DevComm(ctx, b.opt.needs(c.Size()))
	return err
}

// defaultGrid is a warp of the software device, where more of one rank wait for each other, and on a GPU a block for each
// multiprocessor of the rank's share, which holds 64 warps: of as many as the kernels' registers allow.
func (b *Buffer) defaultGrid() doorbell.Grid {
	if b.comm.Info().Device == "soft" {
		return doorbell.Grid{Blocks: 1, Warps: 1}
	}
	g := doorbell.Grid{Blocks: max(b.comm.Warps()/64, 1), Warps: 8, Cooperative: true}
	if b.near() {
		g.Warps = 16
	}
	return g
}

// SetGrid says how many blocks and warps the kernels run with; on a GPU a block has 8 at most, or 16 if all ranks are stored to.
// Dispatch and Combine are one launch each if the grid is Cooperative or of one block, and else two, as their halves are.
// The default is one warp of the software device, and on a GPU a cooperative grid with a block of as many for each multiprocessor
// of the rank's share. One that the device refuses is refused by the operations: they begin nothing, and may be called again with another.
func (b *Buffer) SetGrid(g doorbell.Grid) { b.grid, b.fixed = g, true }

// Options are the buffer's, with defaults filled in.
func (b *Buffer) Options() Options { return b.opt }

// LocalExperts is the number of experts on this rank, FirstExpert the first one's number.
func (b *Buffer) LocalExperts() int { return b.opt.local(b.comm.Rank(), b.comm.Size()) }

// FirstExpert is the number of this rank's first expert in the world.
func (b *Buffer) FirstExpert() int {
	r, n := b.comm.Rank(), b.comm.Size()
	return r*(b.opt.Experts/n) + min(r, b.opt.Experts%n)
}

// Close ends the buffer on this rank and gives its memory back. Its stream must be done.
func (b *Buffer) Close() error {
	b.closed = true
	return b.free()
}

func (b *Buffer) free() error {
	errs := []error{closeDevComm(&b.dc)}
	for _, w := range []*doorbell.Window{b.recv, b.send, b.out} {
		if w != nil {
			errs = append(errs, w.Close(), w.Buffer().Free())
		}
	}
	for _, m := range []*doorbell.Buffer{b.own, b.host} {
		if m != nil {
			errs = append(errs, m.Free())
		}
	}
	b.recv, b.send, b.out, b.own, b.host = nil, nil, nil, nil, nil
	return errors.Join(errs...)
}
