// SPDX-License-Identifier: Apache-2.0

package moe_test

import (
	"context"
	"fmt"

	"github.com/doorbell-net/doorbell"
	"github.com/doorbell-net/doorbell/gpu"
	"github.com/doorbell-net/doorbell/moe"
	"github.com/doorbell-net/doorbell/moe/ref"
)

// solved is a problem with what the reference makes of it.
type solved struct {
	p    *ref.Problem
	f    moe.Format
	do   ref.Expert
	rows ref.Rows
	want [][]uint16
}

func solve(p *ref.Problem, f moe.Format, do ref.Expert) (*solved, error) {
	sent := p.Sent(f)
	rows, err := ref.Dispatch(sent)
	if err != nil {
		return nil, err
	}
	want, err := ref.Combine(sent, ref.Apply(sent, rows, do))
	return &solved{p, f, do, rows, want}, err
}

// step is one rank's part of a problem, on its way through a buffer.
type step struct {
	*solved
	r    int
	c    *doorbell.Comm
	b    *moe.Buffer
	st   *doorbell.Stream
	in   moe.Tokens
	y    gpu.Ptr[uint16]
	got  *moe.Received
	rank string
}

func (w *world) step(s *solved, r int, st *doorbell.Stream) (*step, error) {
	p, c := s.p, w.comms[r]
	x, err := memory(c, p.X[r])
	if err != nil {
		return nil, err
	}
	idx, err := memory(c, p.Idx[r])
	if err != nil {
		return nil, err
	}
	weights, err := memory(c, p.Weights[r])
	if err != nil {
		return nil, err
	}
	y, err := memory(c, make([]uint16, len(p.X[r])))
	in := moe.Tokens{N: p.Tokens(r), X: gpu.Cast[byte](x), Experts: idx, Weights: weights}
	return &step{solved: s, r: r, c: c, b: w.bufs[r], st: st, in: in, y: y, rank: fmt.Sprintf("rank %d", r)}, err
}

// The parts of a step. Each that waits looks at what has come.
func (s *step) startDispatch() (err error) {
	s.got, err = s.b.StartDispatch(s.st, s.in)
	return err
}

func (s *step) finishDispatch() error {
	if err := s.b.FinishDispatch(s.st, s.got); err != nil {
		return err
	}
	return s.dispatched()
}

func (s *step) dispatched() error {
	if err := s.b.Wait(context.Background(), s.st); err != nil {
		return err
	}
	if err := compareRows(s.c, s.p, s.b.Options(), s.got, s.rows[s.r], s.do); err != nil {
		return fmt.Errorf("%s: dispatch: %w", s.rank, err)
	}
	return nil
}

func (s *step) startCombine() error { return s.b.StartCombine(s.st, s.got, gpu.Cast[byte](s.y)) }

func (s *step) finishCombine() error {
	if err := s.b.FinishCombine(s.st, s.got); err != nil {
		return err
	}
	return s.combined()
}

func (s *step) combined() error {
	if err := s.b.Wait(context.Background(), s.st); err != nil {
		return err
	}
	y, err := values(s.c, s.y, len(s.p.X[s.r]))
	if err != nil {
		return err
	}
	if err := ref.DiffBits(s.want[s.r], y); err != nil {
		return fmt.Errorf("%s: combine: %w", s.rank, err)
	}
	return nil
}

// fused is all of it by the calls that do both parts.
func (s *step) fused() (err error) {
	if s.got, err = s.b.Dispatch(s.st, s.in); err != nil {
		return err
	}
	if err = s.dispatched(); err != nil {
		return err
	}
	if err = s.b.Combine(s.st, s.got, gpu.Cast[byte](s.y)); err != nil {
		return err
	}
	return s.combined()
}

// check runs a problem and compares it with the reference, bit by bit.
func (w *world) check(p *ref.Problem, do ref.Expert) error {
	s, err := solve(p, w.opt.Format, do)
	if err != nil {
		return err
	}
	return w.eachStep(s, (*step).fused)
}

// eachStep does something with each rank's part of a problem, on a stream of its own.
func (w *world) eachStep(s *solved, do func(*step) error) error {
	return eachOnStream(w.comms, s.p.Ranks, func(r int, st *doorbell.Stream) (*step, error) { return w.step(s, r, st) }, do)
}

// eachOnStream makes each rank's part on a stream of its own, and does something with it.
func eachOnStream[P any](comms []*doorbell.Comm, ranks int, part func(r int, st *doorbell.Stream) (P, error), do func(P) error) error {
	return each(ranks, func(r int) error {
		st := comms[r].Stream()
		defer st.Close()
		one, err := part(r, st)
		if err != nil {
			return err
		}
		return do(one)
	})
}
