// SPDX-License-Identifier: Apache-2.0

package moe_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/doorbell-net/doorbell"
	"github.com/doorbell-net/doorbell/gpu"
	"github.com/doorbell-net/doorbell/moe"
	"github.com/doorbell-net/doorbell/moe/ref"
	"github.com/doorbell-net/doorbell/moe/routing"
)

// htWorld is ranks of this process that run one problem after another.
type htWorld struct {
	tb      testing.TB
	comms   []*doorbell.Comm
	bufs    []*moe.HTBuffer
	last    []*moe.HTReceived // of each rank: tells where rows come
	perNode int               // ranks of a node, as the sums count them
}

func newHT(tb testing.TB, ranks int, on doorbell.Options, o moe.HTOptions) *htWorld {
	tb.Helper()
	on.Timeout = 20 * time.Second
	cs, err := doorbell.Local(ranks, on)
	if err != nil {
		tb.Fatal(err)
	}
	w := &htWorld{tb: tb, comms: cs, bufs: make([]*moe.HTBuffer, ranks), last: make([]*moe.HTReceived, ranks), perNode: cs[0].LSASize()}
	if o.NoLSA {
		w.perNode = 1
	}
	err = each(ranks, func(r int) (err error) {
		w.bufs[r], err = moe.NewHT(context.Background(), cs[r], o)
		return err
	})
	if err != nil {
		w.close()
		tb.Fatal(err)
	}
	return w
}

func (w *htWorld) close() {
	for _, c := range w.comms {
		if err := c.Close(); err != nil {
			w.tb.Error(err)
		}
	}
}

// htSolved is a problem with what the reference makes of it.
type htSolved struct {
	p      *ref.Problem
	rows   [][]ref.HTRow
	outs   [][]ref.HTOutput
	biases [][][]uint16
	y      [][]uint16
	w      [][]float32
}

// htSolve solves a problem whose tokens are sent in a format, with so many biases. What a rank makes of a row, and of its
// weights, tells ranks, elements and selections apart.
func htSolve(p *ref.Problem, perNode int, f moe.Format, biases int) (*htSolved, error) {
	s := &htSolved{p: p}
	sent := p.Sent(f)
	var err error
	if s.rows, err = ref.HTDispatch(sent); err != nil {
		return nil, err
	}
	s.outs = make([][]ref.HTOutput, p.Ranks)
	for r := range s.rows {
		for _, row := range s.rows[r] {
			o := ref.HTOutput{Y: make([]uint16, p.Hidden), Weights: make([]float32, p.TopK)}
			for j, v := range row.Payload {
				o.Y[j] = ref.ExpertFn(r, j, v)
			}
			for k, x := range row.Weights {
				o.Weights[k] = x*1.25 + float32(r)/3
			}
			s.outs[r] = append(s.outs[r], o)
		}
	}
	for b := range biases {
		var of [][]uint16
		for r := range p.X {
			x := make([]uint16, len(p.X[r]))
			routing.FillTokens(x, 11, uint64(b), r, p.Hidden)
			of = append(of, x)
		}
		s.biases = append(s.biases, of)
	}
	s.y, s.w, err = ref.HTCombine(sent, perNode, s.outs, s.biases...)
	return s, err
}

// htStep is one rank's part of a problem.
type htStep struct {
	*htSolved
	world *htWorld
	r     int
	c     *doorbell.Comm
	h     *moe.HTBuffer
	st    *doorbell.Stream
	in    moe.Tokens
	out   moe.HTCombined
	got   *moe.HTReceived
}

func (w *htWorld) step(s *htSolved, r int, st *doorbell.Stream) (*htStep, error) {
	p, c := s.p, w.comms[r]
	x, err1 := memory(c, p.X[r])
	idx, err2 := memory(c, p.Idx[r])
	y, err3 := memory(c, make([]uint16, len(p.X[r])))
	yw, err4 := memory(c, make([]float32, len(p.Idx[r])))
	one := &htStep{htSolved: s, world: w, r: r, c: c, h: w.bufs[r], st: st,
		in:  moe.Tokens{N: p.Tokens(r), X: gpu.Cast[byte](x), Experts: idx},
		out: moe.HTCombined{Y: gpu.Cast[byte](y), Weights: yw}}
	var err5 error
	if p.Weights != nil {
		one.in.Weights, err5 = memory(c, p.Weights[r])
	}
	for _, err := range []error{err1, err2, err3, err4, err5} {
		if err != nil {
			return nil, err
		}
	}
	for b := range s.biases {
		bias, err := memory(c, s.biases[b][r])
		if err != nil {
			return nil, err
		}
		one.out.Bias[b] = gpu.Cast[byte](bias)
	}
	return one, nil
}

const htCanary = 0xa5

// rowsOf is all rows that a rank has memory for, and what is known of each.
func (s *htStep) rowsOf(r *moe.HTReceived) (rows, infos []byte, err error) {
	n := s.h.Options().MaxRows
	rows, err1 := values(s.c, r.Rows(), n*r.RowBytes())
	infos, err2 := values(s.c, gpu.Cast[byte](r.Infos()), n*r.InfoBytes())
	return rows, infos, errors.Join(err1, err2)
}

// spoil writes canaries where rows come: none comes before this rank has begun the dispatch.
func (s *htStep) spoil() error {
	r := s.world.last[s.r]
	if r == nil {
		return nil
	}
	canaries := func(to gpu.Ptr[byte], size int) error {
		return doorbell.Write(s.c, to, bytes.Repeat([]byte{htCanary}, s.h.Options().MaxRows*size))
	}
	return errors.Join(canaries(r.Rows(), r.RowBytes()), canaries(gpu.Cast[byte](r.Infos()), r.InfoBytes()))
}

func (s *htStep) dispatch() (err error) {
	if err := s.spoil(); err != nil {
		return err
	}
	if s.got != nil {
		err = s.h.DispatchAgain(s.st, s.got, s.in.X)
	} else {
		s.got, err = s.h.Dispatch(s.st, s.in)
	}
	if err != nil {
		return err
	}
	if err := s.h.Wait(context.Background(), s.st); err != nil {
		return err
	}
	s.world.last[s.r] = s.got
	return s.compare()
}

// compare compares what came with the reference, and writes what is made of it.
func (s *htStep) compare() error {
	o, want := s.h.Options(), s.rows[s.r]
	n, err := s.h.Count(s.got)
	if err != nil {
		return err
	}
	if n != len(want) {
		return fmt.Errorf("rank %d: %d rows, must be %d", s.r, n, len(want))
	}
	rows, infos, err := s.rowsOf(s.got)
	if err != nil {
		return err
	}
	var outs []uint16
	var weights []float32
	// About each row stand its info, and at the same distance its experts and weights.
	first := gpu.PtrOf(infos)
	toExperts, toWeights := s.got.Experts().Addr()-s.got.Infos().Addr(), s.got.Weights().Addr()-s.got.Infos().Addr()
	for i, w := range want {
		about := first.Byte(uint64(i * s.got.InfoBytes()))
		info := gpu.Cast[moe.HTInfo](about).Raw()
		if int(info.Rank) != w.SrcRank || int(info.Token) != w.SrcToken {
			return fmt.Errorf("rank %d: row %d is token %d of rank %d, must be token %d of rank %d", s.r, i, info.Token, info.Rank, w.SrcToken, w.SrcRank)
		}
		experts := gpu.Slice(gpu.Cast[int32](about.Byte(toExperts)), o.TopK)
		if !slices.Equal(experts, w.Experts) {
			return fmt.Errorf("rank %d: row %d has experts %v, must have %v", s.r, i, experts, w.Experts)
		}
		got := gpu.Slice(gpu.Cast[float32](about.Byte(toWeights)), o.TopK)
		if !slices.Equal(got, w.Weights) {
			return fmt.Errorf("rank %d: row %d has weights %v, must have %v", s.r, i, got, w.Weights)
		}
		sent := ref.Encode(o.Format, s.p.X[w.SrcRank][w.SrcToken*o.Hidden:][:o.Hidden])
		if row := rows[i*len(sent):][:len(sent)]; !bytes.Equal(row, sent) {
			return fmt.Errorf("rank %d: row %d is %x, must be %x", s.r, i, row, sent)
		}
		outs, weights = append(outs, s.outs[s.r][i].Y...), append(weights, s.outs[s.r][i].Weights...)
	}
	if err := errors.Join(doorbell.Write(s.c, gpu.Cast[uint16](s.got.Outputs()), outs), doorbell.Write(s.c, s.got.OutputWeights(), weights)); err != nil {
		return err
	}
	const fresh = 0 // of memory that no dispatch has come to yet
	for _, b := range append(slices.Clone(rows[n*s.got.RowBytes():]), infos[n*s.got.InfoBytes():]...) {
		if b != htCanary && b != fresh {
			return fmt.Errorf("rank %d: something was written behind the %d rows", s.r, n)
		}
	}
	counts, err := values(s.c, s.got.ExpertRows(), s.h.LocalExperts())
	if err != nil {
		return err
	}
	for l, n := range ref.HTExpertRows(s.p, s.r, o.Align) {
		if int(counts[l]) != n {
			return fmt.Errorf("rank %d: local expert %d has %d rows, must have %d", s.r, l, counts[l], n)
		}
	}
	return nil
}

func (s *htStep) combine() error {
	y, w, to := make([]uint16, len(s.y[s.r])), make([]float32, len(s.w[s.r])), gpu.Cast[uint16](s.out.Y)
	for i := range y {
		y[i] = 0x7fff
	}
	for i := range w {
		w[i] = -1
	}
	if err := errors.Join(doorbell.Write(s.c, to, y), doorbell.Write(s.c, s.out.Weights, w)); err != nil {
		return err
	}
	if err := s.h.Combine(s.st, s.got, s.out); err != nil {
		return err
	}
	if err := s.h.Wait(context.Background(), s.st); err != nil {
		return err
	}
	if err := errors.Join(doorbell.Read(s.c, y, to), doorbell.Read(s.c, w, s.out.Weights)); err != nil {
		return err
	}
	if err := ref.DiffBits(s.y[s.r], y); err != nil {
		return fmt.Errorf("rank %d: combined: %w", s.r, err)
	}
	if !slices.Equal(s.w[s.r], w) {
		return fmt.Errorf("rank %d: combined weights %v, must be %v", s.r, w, s.w[s.r])
	}
	return nil
}

// check runs a problem, again with the layout that it made if asked so often, and compares it with the reference.
func (w *htWorld) check(s *htSolved, again int) error {
	return w.eachStep(s, func(one *htStep) error {
		for i := range again + 1 {
			if err := one.dispatch(); err != nil {
				return fmt.Errorf("dispatch %d: %w", i, err)
			}
			if err := one.combine(); err != nil {
				return fmt.Errorf("combine %d: %w", i, err)
			}
		}
		return nil
	})
}

// eachStep does something with each rank's part of a problem, on a stream of its own.
func (w *htWorld) eachStep(s *htSolved, do func(*htStep) error) error {
	return eachOnStream(w.comms, s.p.Ranks, func(r int, st *doorbell.Stream) (*htStep, error) { return w.step(s, r, st) }, do)
}

// settled says whether all signals are what they must be, and each way is empty: no message put that was not done with.
func (w *htWorld) settled() error {
	for r, h := range w.bufs {
		st := w.comms[r].Stream()
		s, err := h.Signals(context.Background(), st)
		st.Close()
		if err != nil {
			return err
		}
		if !slices.Equal(s.Got, s.Want) {
			return fmt.Errorf("rank %d: signals %v, must be %v", r, s.Got, s.Want)
		}
	}
	return nil
}

func TestHTShapes(t *testing.T) {
	for _, c := range []struct{ ranks, perNode, tokens, hidden, topk, experts, channels, ring int }{
		{1, 1, 3, 8, 1, 1, 1, 0}, {2, 2, 5, 16, 2, 3, 2, 0}, {4, 4, 9, 64, 4, 5, 3, 0}, {8, 8, 6, 136, 8, 33, 2, 0},
		{2, 1, 5, 16, 2, 3, 1, 0}, {4, 2, 16, 136, 8, 32, 2, 0}, {6, 3, 8, 104, 9, 12, 4, 2}, {8, 4, 33, 256, 8, 33, 2, 4}, {6, 2, 7, 40, 2, 3, 1, 2},
		{3, 1, 2, 2880, 32, 40, 2, 2}, {1, 1, 80, 7168, 1, 1, 2, 0}, // more than a core's caches hold
	} {
		t.Run(fmt.Sprintf("R%d-N%d-T%d-H%d-K%d-E%d-C%d-ring%d", c.ranks, c.perNode, c.tokens, c.hidden, c.topk, c.experts, c.channels, c.ring), func(t *testing.T) {
			w := newHT(t, c.ranks, doorbell.Options{RanksPerNode: c.perNode}, moe.HTOptions{MaxTokens: c.tokens, Hidden: c.hidden, TopK: c.topk, Experts: c.experts, Channels: c.channels, Ring: c.ring})
			defer w.close()
			for iter := range 4 {
				g, err := routing.Generate(routing.Options{Seed: uint64(iter + 1), Ranks: c.ranks, Experts: c.experts, TopK: c.topk, Tokens: c.tokens, Uneven: iter%2 == 1, DropEntries: float64(iter) / 5})
				if err != nil {
					t.Fatal(err)
				}
				s, err := htSolve(problem(g, c.hidden, 7, uint64(iter)), w.perNode, moe.BF16, iter%3)
				if err != nil {
					t.Fatal(err)
				}
				if err := w.check(s, iter%2); err != nil {
					t.Fatalf("iteration %d: %v", iter, err)
				}
			}
			if err := w.settled(); err != nil {
				t.Error(err)
			}
		})
	}
}
