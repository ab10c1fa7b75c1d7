// SPDX-License-Identifier: Apache-2.0

package moe_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/doorbell-net/doorbell"
	"github.com/doorbell-net/doorbell/gpu"
	"github.com/doorbell-net/doorbell/moe"
	"github.com/doorbell-net/doorbell/moe/ref"
	"github.com/doorbell-net/doorbell/moe/routing"
)

// closedForm adds to s what a rank counts in one dispatch and its combine, by formulas of the routing alone.
func closedForm(s *moe.Stats, p *ref.Problem, o moe.Options, r, perNode int) {
	c := ref.Counts(p)
	rows := 0
	for l := range p.LocalExperts(r) {
		n := int64(0)
		for q := range p.Ranks {
			n += c[q][p.FirstExpert(r)+l]
		}
		s.Rows[l] += uint64(n)
		s.Last[l] = uint32(n)
		rows += int(n)
	}
	for q := range p.Ranks {
		way := &s.GIN
		if q/perNode == r/perNode && !o.NoLSA {
			way = &s.LSA
		}
		sent, back := uint64(0), uint64(0)
		for l := range p.LocalExperts(q) {
			sent += uint64(c[r][p.FirstExpert(q)+l])
		}
		for l := range p.LocalExperts(r) {
			back += uint64(c[q][p.FirstExpert(r)+l])
		}
		signals := p.LocalExperts(q)
		if o.PerRank {
			sent, signals = tokensTo(p, r, q, 1), min(signals, 1)
		}
		way.Messages += sent + back
		way.Bytes += sent*uint64(o.MessageBytes()) + back*uint64(o.AnswerBytes())
		way.Signals += uint64(signals + p.LocalExperts(r))
	}
}

// What the kernels count is what the routing says, by way; and they count while they are asked to.
func TestStats(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		ranks := rapid.IntRange(1, 5).Draw(rt, "ranks")
		perNode, experts := nodes(rt, ranks), rapid.IntRange(1, 9).Draw(rt, "experts")
		o := moe.Options{MaxTokens: 6, Hidden: 24, TopK: min(experts, 3), Experts: experts, Copies: 1, NoLSA: rapid.Bool().Draw(rt, "no lsa"),
			PerRank: rapid.Bool().Draw(rt, "per rank"), Format: moe.Format(rapid.IntRange(0, 3).Draw(rt, "format"))}
		w := newWorld(t, ranks, perNode, o, doorbell.Grid{Blocks: 2, Warps: 2})
		defer w.close()
		want := make([]moe.Stats, ranks)
		for r, b := range w.bufs {
			want[r].Rows, want[r].Last = make([]uint64, b.LocalExperts()), make([]uint32, b.LocalExperts())
		}
		for i, on := range rapid.SliceOfN(rapid.Bool(), 1, 5).Draw(rt, "measured") {
			g, err := routing.Generate(routing.Options{Seed: rapid.Uint64().Draw(rt, "seed"), Ranks: ranks, Experts: experts, TopK: o.TopK, Tokens: 6, Uneven: true, DropEntries: 0.2})
			if err != nil {
				rt.Fatal(err)
			}
			p := problem(g, o.Hidden, 3, uint64(i))
			for r, b := range w.bufs {
				b.Measure(on)
				counted := &want[r]
				if !on {
					counted = &moe.Stats{Rows: make([]uint64, len(counted.Rows)), Last: counted.Last}
				}
				closedForm(counted, p, o, r, perNode)
			}
			if err := w.check(p, ref.ExpertFn); err != nil {
				rt.Fatal(err)
			}
			for r, b := range w.bufs {
				got, err := b.Stats()
				if err != nil {
					rt.Fatal(err)
				}
				if x := want[r]; !slices.Equal(got.Rows, x.Rows) || !slices.Equal(got.Last, x.Last) || got.LSA != x.LSA || got.GIN != x.GIN {
					rt.Fatalf("rank %d counted %+v, want %+v", r, got, x)
				}
				for q, d := range got.Waited {
					if waits := want[r].LSA.Signals+want[r].GIN.Signals > 0 && (b.LocalExperts() > 0 || p.LocalExperts(q) > 0); waits != (d > 0) {
						rt.Fatalf("rank %d waited %v for rank %d", r, d, q)
					}
				}
			}
		}
	})
}

// Answers are sent from where the experts wrote them: nothing is staged, and what is not sent stays as it was.
func TestCombineCopiesNothing(t *testing.T) {
	for _, noLSA := range []bool{false, true} {
		o := moe.Options{MaxTokens: 4, Hidden: 16, TopK: 2, Experts: 4, NoLSA: noLSA}
		w := newWorld(t, 2, 2, o, one)
		s, err := solve(small(t, 3, 4), moe.BF16, ref.ExpertFn)
		if err != nil {
			t.Fatal(err)
		}
		steps := make([]*step, 2)
		if err := each(2, func(r int) error {
			st, err := w.step(s, r, w.comms[r].Stream())
			if err != nil {
				return err
			}
			steps[r] = st
			if st.got, err = st.b.Dispatch(st.st, st.in); err != nil {
				return err
			}
			return st.dispatched()
		}); err != nil {
			t.Fatal(err)
		}
		for _, b := range w.bufs { // all have received, so nobody reads it any more
			if err := b.Staging().Write(0, bytes.Repeat([]byte{0xa5}, b.Staging().Len())); err != nil {
				t.Fatal(err)
			}
			b.Measure(true)
		}
		if err := each(2, func(r int) error {
			st := steps[r]
			n := st.b.LocalExperts() * st.got.Capacity() * st.got.RowBytes()
			rowsWere, err1 := values(st.c, st.got.Rows(), n)
			outputsWere, err2 := values(st.c, st.got.Outputs(), n)
			if err := errors.Join(err1, err2); err != nil {
				return err
			}
			if err := st.b.Combine(st.st, st.got, gpu.Cast[byte](st.y)); err != nil {
				return err
			}
			if err := st.combined(); err != nil {
				return err
			}
			rows, err1 := values(st.c, st.got.Rows(), n)
			outputs, err2 := values(st.c, st.got.Outputs(), n)
			staging := make([]byte, st.b.Staging().Len())
			if err := errors.Join(err1, err2, st.b.Staging().Read(0, staging)); err != nil {
				return err
			}
			if len(bytes.Trim(staging, "\xa5")) != 0 || !bytes.Equal(rows, rowsWere) || !bytes.Equal(outputs, outputsWere) {
				return fmt.Errorf("rank %d: memory that the combine has nothing to do with has changed", r)
			}
			got, err := st.b.Stats()
			last := uint64(0)
			for _, l := range got.Last {
				last += uint64(l)
			}
			if moved := got.LSA.Bytes + got.GIN.Bytes; err == nil && moved != last*uint64(o.AnswerBytes()) {
				err = fmt.Errorf("rank %d: %d bytes for %d rows of %d", r, moved, last, o.AnswerBytes())
			}
			return err
		}); err != nil {
			t.Error(err)
		}
		w.close()
	}
}

// A closed buffer says so, and is not made anew.
func TestClosedStays(t *testing.T) {
	w := newWorld(t, 1, 1, moe.Options{MaxTokens: 1, Hidden: 8, TopK: 1, Experts: 1}, one)
	defer w.close()
	if err := w.bufs[0].Close(); err != nil {
		t.Fatal(err)
	}
	_, err := w.bufs[0].Stats()
	wantError(t, err, "stats", "closed", "rank 0")
	_, err = w.bufs[0].Recover(context.Background())
	wantError(t, err, "recover", "closed", "rank 0")
}
