// SPDX-License-Identifier: Apache-2.0

package benches

import (
	"errors"
	"time"

	"github.com/doorbell-net/doorbell/cmd/doorbell/internal/report"
	"github.com/doorbell-net/doorbell/gpu"
	"github.com/doorbell-net/doorbell/moe"
	"github.com/doorbell-net/doorbell/moe/ref"
	"github.com/doorbell-net/doorbell/moe/routing"
)

// ht is the state of the high-throughput benchmark on one rank.
type ht struct {
	b    *bench
	p    *ref.Problem // without payloads: the hash makes them
	node int          // ranks of one, as tokens are routed
	moe  *moe.HTBuffer
	pack *packer
	x, y []uint16 // in the device's memory
	in   moe.Tokens
	out  moe.HTCombined
	got  *moe.HTReceived

	rowBytes, sumBytes int64 // compared
}

func (b *bench) highThroughput() error {
	h := &ht{b: b}
	if err := h.setUp(); err != nil {
		return err
	}
	return stop(errors.Join(h.run(), h.moe.Close()))
}

func (h *ht) setUp() error {
	b := h.b
	g, err := b.routes()
	if err != nil {
		return err
	}
	r, n, row := b.c.Rank(), g.Tokens(b.c.Rank()), 2*b.cfg.Hidden
	h.p = &ref.Problem{Ranks: g.Ranks, Experts: g.Experts, TopK: g.TopK, Hidden: b.cfg.Hidden, Idx: g.Idx, Weights: g.Weights}
	h.node, h.pack = b.c.LSASize(), newPacker(b.cfg.Format, b.cfg.Hidden)
	if !b.cfg.LSA {
		h.node = 1
	}
	h.moe, err = moe.NewHT(b.ctx, b.c, moe.HTOptions{
		MaxTokens: max(g.MaxTokens(), 1), Hidden: b.cfg.Hidden, TopK: g.TopK, Experts: g.Experts, NoLSA: !b.cfg.LSA, Format: b.cfg.Format,
		Channels: b.cfg.Channels, Ring: b.cfg.Ring,
	})
	if err != nil {
		return err
	}
	b.st = b.c.Stream()
	take := func(bytes int) gpu.Ptr[byte] {
		buf, aerr := b.c.Alloc(max(bytes, 64))
		if aerr != nil {
			err = errors.Join(err, aerr)
			return gpu.Ptr[byte]{}
		}
		return buf.Ptr()
	}
	h.in = moe.Tokens{N: n, X: take(n * row), Experts: gpu.Cast[int32](take(4 * n * g.TopK)), Weights: gpu.Cast[float32](take(4 * n * g.TopK))}
	h.out = moe.HTCombined{Y: take(n * row), Weights: gpu.Cast[float32](take(4 * n * g.TopK))}
	if err != nil {
		return err
	}
	h.x, h.y = gpu.Slice(gpu.Cast[uint16](h.in.X), n*b.cfg.Hidden), gpu.Slice(gpu.Cast[uint16](h.out.Y), n*b.cfg.Hidden)
	copy(gpu.Slice(h.in.Experts, n*g.TopK), g.Idx[r])
	copy(gpu.Slice(h.in.Weights, n*g.TopK), g.Weights[r])
	return nil
}

// What is measured. The parts of a dispatch and the copies follow what they are of.
const (
	htDispatch = iota
	htTell
	htSend
	htAwait
	htDispatchCopies
	htCombine
	htCombineCopies
	htSeries
)

var htNames = [htSeries]string{"dispatch", "- layout", "- send", "- wait", "- its copies", "combine", "- its copies"}

// htTimes is what one rank measured.
type htTimes struct {
	ns   [htSeries]uint64 // of all operations together
	hist [htSeries]report.Hist
	net  [htSeries]uint64 // bytes that this rank put to the network, in the last one
}

func (t *htTimes) record(what int, ns uint64) {
	t.ns[what] += ns
	t.hist[what].Record(ns)
}

func (h *ht) run() error {
	b := h.b
	b.cfg.Step(0, 3, "check")
	var t htTimes
	if _, err := b.share(part{}, nil, h.round(nil, 0)); err != nil {
		return err
	}
	if b.bad != "" {
		return h.rows(&t, 0) // nothing was timed
	}
	warm := b.warmup(2)
	for range warm {
		if err := h.round(&t, -1); err != nil {
			return err
		}
	}
	iters, err := b.iterations((t.ns[htDispatch]+t.ns[htCombine])/uint64(warm), 2*time.Second)
	if err != nil {
		return err
	}
	b.cfg.Step(1, 3, "measure")
	t = htTimes{}
	for range iters {
		if err == nil {
			err = h.round(&t, -1)
		}
	}
	if err == nil {
		err = h.copies(&t, iters)
	}
	b.cfg.Step(2, 3, "check")
	if err == nil {
		err = h.round(nil, 99)
	}
	if err == nil {
		err = h.signals()
	}
	if _, err = b.share(part{}, nil, err); err != nil {
		return err
	}
	return h.rows(&t, iters)
}

// round runs one dispatch and one combine. Round iter of those that are checked, 0 and more, is over payloads of its own,
// and all that comes is compared; others are for the clock.
func (h *ht) round(t *htTimes, iter int) (err error) {
	b := h.b
	if iter >= 0 {
		h.fill(uint64(iter))
	}
	if err := b.c.Barrier(b.ctx); err != nil {
		return err
	}
	before, err := h.moe.Messages()
	if err != nil {
		return err
	}
	start := time.Now()
	if h.got, err = h.moe.Dispatch(b.st, h.in); err == nil {
		err = h.moe.Wait(b.ctx, b.st)
	}
	if err != nil {
		return err
	}
	mid := time.Now()
	between, err := h.moe.Messages()
	if err != nil {
		return err
	}
	if iter >= 0 {
		h.checkRows(uint64(iter))
	}
	if err := b.c.Barrier(b.ctx); err != nil {
		return err
	}
	again := time.Now()
	if err = h.moe.Combine(b.st, h.got, h.out); err == nil {
		err = h.moe.Wait(b.ctx, b.st)
	}
	if err != nil {
		return err
	}
	end := time.Now()
	if iter >= 0 {
		h.checkSums(uint64(iter))
	}
	if t == nil {
		return nil
	}
	after, err := h.moe.Messages()
	if err != nil {
		return err
	}
	told, sent, waited, err := h.moe.Times()
	o := h.moe.Options()
	t.net[htDispatch], t.net[htCombine] = (between-before)*uint64(o.MessageBytes(h.node)), (after-between)*uint64(o.AnswerBytes())
	for what, ns := range map[int]uint64{htDispatch: uint64(mid.Sub(start)), htTell: told, htSend: sent, htAwait: waited, htCombine: uint64(end.Sub(again))} {
		t.record(what, ns)
	}
	return err
}

func (h *ht) fill(iter uint64) {
	b := h.b
	routing.FillTokens(h.x, b.cfg.Seed, iter, b.c.Rank(), b.cfg.Hidden)
	for i := range h.y {
		h.y[i] = 0x7fff // no result is this
	}
}

// copies measures the copies of memory that the operations cannot do without, as many times, on all ranks at once: other
// rows than theirs, and as many. Their end is that of the last rank, as an operation's is.
func (h *ht) copies(t *htTimes, times int) error {
	b, o := h.b, h.moe.Options()
	size, row := h.got.RowBytes(), 2*o.Hidden
	rows := gpu.Slice(h.got.Rows(), o.MaxRows*size)
	outs := gpu.Slice(h.got.Outputs(), o.MaxRows*row)
	n, err := h.moe.Count(h.got)
	if err != nil {
		return err
	}
	tr := ref.HTTrafficOf(h.p, b.c.Rank(), h.node)
	x := func(i int) []byte { return outs[i%o.MaxRows*row:][:size] }
	place := func(i int) []byte { return rows[i%o.MaxRows*size:][:size] }
	far := func(i int) []byte { return outs[(o.MaxRows-1-i%o.MaxRows)*row:][:size] }
	dispatch := func() {
		for i := range int(tr.Near) { // to a rank of this node
			copy(place(i), x(i/2))
		}
		for i := range int(tr.Far) { // into a message, and across
			copy(place(i), x(i))
			copy(far(i), place(i))
		}
		for i := range int(tr.Passed) { // to a rank of this node
			copy(place(i), far(i*int(tr.Came)/int(tr.Passed)))
		}
	}
	combine := func() {
		for i := range n + int(tr.Came) { // what it reads, and what it puts back
			i %= o.MaxRows
			copy(rows[i*row%(len(rows)-row+1):], outs[i*row:][:row])
		}
	}
	for _, c := range []struct {
		what int
		copy func()
	}{{htDispatchCopies, dispatch}, {htCombineCopies, combine}} {
		c.copy() // touches memory that nobody had
		for range times {
			if err := b.c.Barrier(b.ctx); err != nil {
				return err
			}
			start := time.Now()
			c.copy()
			if err := b.c.Barrier(b.ctx); err != nil {
				return err
			}
			t.record(c.what, uint64(time.Since(start)))
		}
	}
	return nil
}

// signals compares all signals with what they must be by each rank's own account.
func (h *ht) signals() error {
	b := h.b
	if err := b.c.Barrier(b.ctx); err != nil { // all have sent theirs: see checkSignals
		return err
	}
	s, err := h.moe.Signals(b.ctx, b.st)
	for i := range s.Got {
		if s.Got[i] != s.Want[i] {
			b.found("signal %d ended at %d, must be %d", i, s.Got[i], s.Want[i])
		}
	}
	return err
}
