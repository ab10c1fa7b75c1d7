// SPDX-License-Identifier: Apache-2.0

package benches

import (
	"bytes"
	"errors"
	"fmt"
	"time"

	"github.com/doorbell-net/doorbell/cmd/doorbell/internal/report"
	"github.com/doorbell-net/doorbell/gpu"
	"github.com/doorbell-net/doorbell/moe"
	"github.com/doorbell-net/doorbell/moe/ref"
	"github.com/doorbell-net/doorbell/moe/routing"
)

// ll is the state of the low-latency benchmark on one rank.
type ll struct {
	b     *bench
	route *routing.Routing
	moe   *moe.Buffer
	x, y  []uint16 // in the device's memory
	in    moe.Tokens
	out   gpu.Ptr[byte]
	got   *moe.Received

	rowBytes, sumBytes int64     // compared
	sent               [2]part   // the traffic of the last checked dispatch and combine
	counted            moe.Stats // before
}

func (b *bench) lowLatency() error {
	l := &ll{b: b}
	if err := l.setUp(); err != nil {
		return err
	}
	return stop(errors.Join(l.run(), l.moe.Close()))
}

// routes is the routing of all ranks: each makes it for itself from the seed, or reads the file.
func (b *bench) routes() (*routing.Routing, error) {
	if b.cfg.Routing != "" {
		g, err := routing.ReadFile(b.cfg.Routing)
		if err == nil && g.Ranks != b.c.Size() {
			err = fmt.Errorf("routing file %s is of %d ranks, this job has %d", b.cfg.Routing, g.Ranks, b.c.Size())
		}
		return g, err
	}
	g, err := routing.Generate(routing.Options{
		Seed: b.cfg.Seed, Ranks: b.c.Size(), Experts: b.cfg.Experts, TopK: b.cfg.TopK, Tokens: b.cfg.Tokens,
	})
	if err == nil && b.cfg.Record != "" && b.c.Rank() == 0 {
		err = routing.WriteFile(b.cfg.Record, g)
	}
	return g, err
}

func (l *ll) setUp() error {
	b := l.b
	var err error
	if l.route, err = b.routes(); err != nil {
		return err
	}
	r, g := b.c.Rank(), l.route
	l.moe, err = moe.New(b.ctx, b.c, moe.Options{
		MaxTokens: max(g.MaxTokens(), 1), Hidden: b.cfg.Hidden, TopK: g.TopK, Experts: g.Experts, NoLSA: !b.cfg.LSA, Copies: copies(g), Format: b.cfg.Format, PerRank: b.cfg.PerRank,
	})
	if err != nil {
		return err
	}
	b.st = b.c.Stream()
	n := g.Tokens(r)
	take := func(bytes int) gpu.Ptr[byte] {
		buf, aerr := b.c.Alloc(max(bytes, 64))
		if aerr != nil {
			err = errors.Join(err, aerr)
			return gpu.Ptr[byte]{}
		}
		return buf.Ptr()
	}
	row := 2 * b.cfg.Hidden
	l.in = moe.Tokens{N: n, X: take(n * row), Experts: gpu.Cast[int32](take(4 * n * g.TopK)), Weights: gpu.Cast[float32](take(4 * n * g.TopK))}
	l.out = take(n * row)
	if err != nil {
		return err
	}
	l.x, l.y = gpu.Slice(gpu.Cast[uint16](l.in.X), n*b.cfg.Hidden), gpu.Slice(gpu.Cast[uint16](l.out), n*b.cfg.Hidden)
	copy(gpu.Slice(l.in.Experts, n*g.TopK), g.Idx[r])
	copy(gpu.Slice(l.in.Weights, n*g.TopK), g.Weights[r])
	return nil
}

// copies is how many selections of one rank name one expert at most, in its tokens.
func copies(g *routing.Routing) int {
	most := 1
	for r := range g.Ranks {
		count := make(map[int32]int)
		for _, e := range g.Idx[r] {
			if e >= 0 {
				count[e]++
				most = max(most, (count[e]+g.MaxTokens()-1)/max(g.MaxTokens(), 1))
			}
		}
	}
	return most
}

func (l *ll) run() error {
	b := l.b
	const checks = 2
	for iter := range checks {
		b.cfg.Step(iter, checks+2, "check")
		err := l.checked(uint64(iter))
		parts, err := b.share(part{}, nil, err)
		if err != nil {
			return err
		}
		if b.bad != "" {
			return l.rows(parts, parts) // nothing was timed
		}
	}
	start := time.Now()
	if _, err := l.timed(nil, nil, b.warmup(2)); err != nil {
		return err
	}
	perOp := uint64(time.Since(start)) / uint64(b.warmup(2))
	iters, err := b.iterations(perOp, 3*time.Second)
	if err != nil {
		return err
	}
	b.cfg.Step(checks, checks+2, "measure")
	var dispatch, combine report.Hist
	times, err := l.timed(&dispatch, &combine, iters)
	if err == nil {
		b.cfg.Step(checks+1, checks+2, "check")
		err = l.checked(99)
	}
	if err == nil {
		err = l.signals()
	}
	b.checked = l.rowBytes
	parts, err := b.share(part{Ns: times[0], Count: uint64(iters), LSA: l.sent[0].LSA, GIN: l.sent[0].GIN}, &dispatch, err)
	if err != nil {
		return err
	}
	b.checked = l.sumBytes
	more, err := b.share(part{Ns: times[1], Count: uint64(iters), LSA: l.sent[1].LSA, GIN: l.sent[1].GIN}, &combine, nil)
	if err != nil {
		return err
	}
	return l.rows(parts, more)
}

// timed runs dispatch and combine so many times, waiting for each, and records how long each took.
func (l *ll) timed(dispatch, combine *report.Hist, iters int) (ns [2]uint64, err error) {
	b := l.b
	if err := b.c.Barrier(b.ctx); err != nil {
		return ns, err
	}
	for range iters {
		start := time.Now()
		if l.got, err = l.moe.Dispatch(b.st, l.in); err == nil {
			err = l.moe.Wait(b.ctx, b.st)
		}
		if err != nil {
			return ns, err
		}
		mid := time.Now()
		if err = l.moe.Combine(b.st, l.got, l.out); err == nil {
			err = l.moe.Wait(b.ctx, b.st)
		}
		if err != nil {
			return ns, err
		}
		d, c := uint64(mid.Sub(start)), uint64(time.Since(mid))
		ns[0] += d
		ns[1] += c
		if dispatch != nil {
			dispatch.Record(d)
			combine.Record(c)
		}
	}
	return ns, nil
}

// checked runs one dispatch and one combine over payloads of that iteration, and compares all that comes.
func (l *ll) checked(iter uint64) (err error) {
	b := l.b
	routing.FillTokens(l.x, b.cfg.Seed, iter, b.c.Rank(), b.cfg.Hidden)
	for i := range l.y {
		l.y[i] = 0x7fff // no result is this
	}
	l.moe.Measure(true)
	defer l.moe.Measure(false)
	if l.got, err = l.moe.Dispatch(b.st, l.in); err == nil {
		err = l.moe.Wait(b.ctx, b.st)
	}
	if err = errors.Join(err, l.count(0)); err != nil {
		return err
	}
	l.checkRows(iter)
	if err = l.moe.Combine(b.st, l.got, l.out); err == nil {
		err = l.moe.Wait(b.ctx, b.st)
	}
	if err = errors.Join(err, l.count(1)); err != nil {
		return err
	}
	l.checkSums(iter)
	return nil
}

// count notes what a dispatch (0) or combine (1) has sent.
func (l *ll) count(op int) error {
	s, err := l.moe.Stats()
	l.sent[op] = part{LSA: traffic(s.LSA, l.counted.LSA), GIN: traffic(s.GIN, l.counted.GIN)}
	l.counted = s
	return err
}

func traffic(now, before moe.Traffic) report.Traffic {
	return report.Traffic{Messages: int64(now.Messages - before.Messages), Bytes: int64(now.Bytes - before.Bytes), Signals: int64(now.Signals - before.Signals)}
}

// checkRows compares the rows that this rank's experts got with what the routing and the payloads' hash say, and
// writes what the experts make of them.
func (l *ll) checkRows(iter uint64) {
	b, g, h := l.b, l.route, l.b.cfg.Hidden
	locals, room := l.moe.LocalExperts(), l.got.Capacity()
	counts := gpu.Slice(l.got.Counts(), locals)
	infos := gpu.Slice(l.got.Infos(), locals*room)
	size := l.got.RowBytes()
	rows := gpu.Slice(l.got.Rows(), locals*room*size)
	sent := make([]uint16, h)
	outs := gpu.Slice(gpu.Cast[uint16](l.got.Outputs()), locals*room*h)
	for e := range locals {
		expert := int32(l.moe.FirstExpert() + e)
		want := 0
		for s := range g.Ranks {
			for _, x := range g.Idx[s] {
				if x == expert {
					want++
				}
			}
		}
		if int(counts[e]) != want {
			b.found("expert %d got %d rows, must get %d", expert, counts[e], want)
		}
		seen := make(map[moe.RowInfo]bool, want)
		for i := range min(int(counts[e]), room) {
			f := infos[e*room+i]
			at := (e*room + i) * h
			if f.Rank < 0 || int(f.Rank) >= g.Ranks || f.K < 0 || int(f.K) >= g.TopK || f.Token < 0 || int(f.Token) >= g.Tokens(int(f.Rank)) ||
				g.Idx[f.Rank][int(f.Token)*g.TopK+int(f.K)] != expert || seen[f] {
				b.found("expert %d: row %d says it is selection %d of token %d of rank %d, which is not so, or twice", expert, i, f.K, f.Token, f.Rank)
				continue
			}
			seen[f] = true
			row := rows[(e*room+i)*size:][:size]
			routing.FillRow(sent, routing.RowKey(b.cfg.Seed, iter, int(f.Rank), int(f.Token)))
			if want := ref.Encode(b.cfg.Format, sent); !bytes.Equal(row, want) {
				b.found("expert %d: byte %d of token %d of rank %d is wrong", expert, differs(row, want), f.Token, f.Rank)
			}
			for j, v := range ref.Decode(b.cfg.Format, row, h) {
				outs[at+j] = ref.ExpertFn(int(expert), j, v)
			}
			l.rowBytes += int64(size)
		}
	}
}

// differs is where two rows of one size first do.
func differs(a, b []byte) int {
	i := 0
	for i < len(a) && a[i] == b[i] {
		i++
	}
	return i
}

// checkSums compares the combined tokens, bit by bit, with a sum that this rank computes for itself.
func (l *ll) checkSums(iter uint64) {
	b, g, h, r := l.b, l.route, l.b.cfg.Hidden, l.b.c.Rank()
	want, x := make([]uint16, h), make([]uint16, h)
	for t := range g.Tokens(r) {
		routing.FillRow(x, routing.RowKey(b.cfg.Seed, iter, r, t))
		x = ref.Decode(b.cfg.Format, ref.Encode(b.cfg.Format, x), h)
		ref.Token(want, x, g.Idx[r][t*g.TopK:(t+1)*g.TopK], g.Weights[r][t*g.TopK:(t+1)*g.TopK], ref.ExpertFn)
		if err := ref.DiffBits(want, l.y[t*h:(t+1)*h]); err != nil {
			b.found("combined token %d: %v", t, err)
		}
		l.sumBytes += int64(2 * h)
	}
}

// signals compares all signals with what the routing says they must be.
func (l *ll) signals() error {
	b, g := l.b, l.route
	if err := b.c.Barrier(b.ctx); err != nil { // all have sent theirs: see checkSignals
		return err
	}
	s, err := l.moe.Signals(b.ctx, b.st)
	if err != nil {
		return err
	}
	boxes := l.moe.LocalExperts()
	if b.cfg.PerRank {
		boxes = min(boxes, 1)
	}
	sent := make([][]uint64, g.Ranks) // by source and box of this rank
	for src := range sent {
		sent[src] = l.messages(src, boxes)
	}
	for set := range s.Ops {
		for box := range boxes {
			for src := range g.Ranks {
				want := uint64(s.Ops[set][0]) * (sent[src][box] + 1)
				if got := s.Dispatch[set][box*g.Ranks+src]; got != want {
					b.found("dispatch signal of box %d, rank %d ended at %d, must be %d", box, src, got, want)
				}
			}
		}
		for e, got := range s.Combine[set] {
			if want := uint64(s.Ops[set][1]); got != want {
				b.found("combine signal of expert %d ended at %d, must be %d", e, got, want)
			}
		}
	}
	return nil
}

// messages is how many messages a rank sends to each box of this rank: one for each selection of an expert, or, where
// there is one box, for each token that selects any of its experts.
func (l *ll) messages(src, boxes int) []uint64 {
	g, n := l.route, make([]uint64, boxes)
	for t := range g.Tokens(src) {
		here := false
		for _, e := range g.Idx[src][t*g.TopK : (t+1)*g.TopK] {
			local := int(e) - l.moe.FirstExpert()
			switch {
			case e < 0 || local < 0 || local >= l.moe.LocalExperts():
			case !l.b.cfg.PerRank:
				n[local]++
			case !here:
				n[0]++
				here = true
			}
		}
	}
	return n
}

// rows makes the two rows of the result. Bandwidth is the logical one: each selection counts, also those that stay on
// their rank, over the mean time of a rank.
func (l *ll) rows(dispatch, combine []part) error {
	b, g := l.b, l.route
	selections := 0
	for _, idx := range g.Idx {
		for _, e := range idx {
			if e >= 0 {
				selections++
			}
		}
	}
	for _, op := range []struct {
		label string
		bytes int64
		parts []part
	}{{"dispatch", ref.MessageBytes(b.cfg.Format, b.cfg.Hidden), dispatch}, {"combine", ref.PayloadBytes(b.cfg.Hidden), combine}} {
		row := b.row(op.bytes, b.cfg.LSA && b.c.LSASize() == b.c.Size())
		if b.cfg.LSA && b.c.LSASize() > 1 && b.c.LSASize() < b.c.Size() {
			row.Net = "lsa+" + row.Net
		}
		row.Label = op.label
		ns, ops := uint64(0), uint64(0)
		for _, p := range op.parts {
			ns += p.Ns
			ops = max(ops, p.Count)
			row.LSA.Add(p.LSA)
			row.GIN.Add(p.GIN)
		}
		if ns > 0 {
			row.GBps = float64(ops) * float64(selections) * float64(op.bytes) / float64(ns)
		}
		bad := b.bad
		b.bad = ""
		if err := b.add(row, op.parts); err != nil {
			return err
		}
		b.rows[len(b.rows)-1].Iters = int64(ops)
		b.bad = bad
	}
	if b.bad != "" {
		return errWrong
	}
	return nil
}
