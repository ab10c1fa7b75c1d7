// SPDX-License-Identifier: Apache-2.0

package benches

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/doorbell-net/doorbell"
	"github.com/doorbell-net/doorbell/cmd/doorbell/internal/report"
	"github.com/doorbell-net/doorbell/gpu"
	"github.com/doorbell-net/doorbell/moe"
	"github.com/doorbell-net/doorbell/moe/ref"
	"github.com/doorbell-net/doorbell/moe/routing"
)

// moeRun is what the benchmarks of dispatch and combine have in common, on one rank.
type moeRun struct {
	b      *bench
	form   form
	buf    buffer
	layers []*routing.Routing // of all tokens
	inputs []moe.Tokens       // by layer: of all tokens
	in     gpu.Ptr[uint16]    // rows to dispatch, in the device's memory
	out    gpu.Ptr[uint16]    // combined
	x, y   []uint16           // the host's copies of both
	clock  *clock             // where the host is not to time operations
	ops    []*load            // of each dispatch so far
	again  []*load            // of each one that was repeated

	rowBytes, againBytes, sumBytes int64 // compared
}

// form is what low latency and high throughput differ in.
type form interface {
	// open makes the buffer, for at most so many tokens of a rank.
	open(tokens int) (buffer, error)
	// queueDispatch and queueCombine put an operation on the stream: a dispatch, and the combine of the last one.
	queueDispatch(x *load) error
	queueCombine() error
	// checkRows compares what a dispatch brought, and writes what the experts make of it; checkSums what the combine made.
	checkRows(x *load, iter uint64) error
	checkSums(x *load, iter uint64) error
	// signals compares all signals with what the operations so far must have left. All ranks are done with theirs.
	signals() error
	// stages runs a step for the times of its parts.
	stages(x *load, s *spent) error
	// memcpys are those that the steps of loads in turn need.
	memcpys(loads []*load) (*memcpys, error)
	// accounts is what the rows of the operations say of loads in turn, before anything is measured.
	accounts(loads []*load) []report.Row
}

// repeater is a form that can send other rows of the tokens of the last dispatch to the same places.
type repeater interface {
	queueAgain(x *load) error
}

// repeater is the form, if it is one.
func (m *moeRun) repeater() repeater {
	r, _ := m.form.(repeater)
	return r
}

// operation is one of those that a step has, in order.
type operation struct {
	label   string
	times   *times
	checked *int64 // bytes
}

func (m *moeRun) operations(s *spent) []operation {
	all := []operation{{"dispatch", &s.dispatch, &m.rowBytes}, {"dispatch again", &s.again, &m.againBytes}, {"combine", &s.combine, &m.sumBytes}}
	if m.repeater() == nil {
		all = slices.Delete(all, 1, 2)
	}
	return all
}

// buffer is what a form's buffer is waited for and closed by.
type buffer interface {
	Wait(ctx context.Context, st *doorbell.Stream) error
	Close() error
}

// load is what the ranks dispatch in one operation.
type load struct {
	route *routing.Routing
	in    moe.Tokens // this rank's
}

// problem is a load as the reference takes it, without payloads: the hash makes them.
func (m *moeRun) problem(x *load) *ref.Problem {
	g := x.route
	return &ref.Problem{Ranks: g.Ranks, Experts: g.Experts, TopK: g.TopK, Hidden: m.b.cfg.Hidden, Idx: g.Idx, Weights: g.Weights}
}

// node is how many ranks store into each other's windows.
func (m *moeRun) node() int {
	if m.b.cfg.LSA {
		return m.b.c.LSASize()
	}
	return 1
}

// whole is the benchmark of a form.
func (m *moeRun) whole(f form) error {
	m.form = f
	if err := m.setUp(); err != nil {
		return err
	}
	return stop(errors.Join(m.run(), m.buf.Close()))
}

func (m *moeRun) setUp() (err error) {
	b := m.b
	if m.layers, err = b.routes(); err != nil {
		return err
	}
	most := 1
	for _, g := range m.layers {
		most = max(most, g.MaxTokens())
	}
	if m.buf, err = m.form.open(most); err != nil {
		return err
	}
	b.st = b.c.Stream()
	take := func(bytes int) *doorbell.Buffer {
		if err != nil {
			return nil
		}
		var buf *doorbell.Buffer
		buf, err = b.c.Alloc(max(bytes, 64))
		return buf
	}
	in, out := take(2*most*b.cfg.Hidden), take(2*most*b.cfg.Hidden)
	for _, g := range m.layers {
		idx, w := g.Idx[b.c.Rank()], g.Weights[b.c.Rank()]
		experts, weights := take(4*len(idx)), take(4*len(w))
		if err != nil {
			return err
		}
		t := moe.Tokens{X: in.Ptr(), Experts: gpu.Cast[int32](experts.Ptr()), Weights: gpu.Cast[float32](weights.Ptr())}
		if err := errors.Join(doorbell.Write(b.c, t.Experts, idx), doorbell.Write(b.c, t.Weights, w)); err != nil {
			return err
		}
		m.inputs = append(m.inputs, t)
	}
	m.in, m.out = gpu.Cast[uint16](in.Ptr()), gpu.Cast[uint16](out.Ptr())
	m.x, m.y = make([]uint16, most*b.cfg.Hidden), make([]uint16, most*b.cfg.Hidden)
	if in.Bytes() == nil {
		m.clock, err = b.newClock()
	}
	return err
}

// routes is the routing of all ranks: each makes it for itself from the seed, or reads the file.
func (b *bench) routes() (layers []*routing.Routing, err error) {
	if b.cfg.Routing != "" {
		if layers, err = routing.ReadFile(b.cfg.Routing, b.cfg.Experts); err != nil {
			return nil, err
		}
		if ranks := layers[0].Ranks; ranks != b.c.Size() {
			return nil, fmt.Errorf("routing file %s is of %d ranks, this job has %d", b.cfg.Routing, ranks, b.c.Size())
		}
	} else {
		g, err := routing.Generate(routing.Options{
			Seed: b.cfg.Seed, Ranks: b.c.Size(), Experts: b.cfg.Experts, TopK: b.cfg.TopK, Tokens: slices.Max(b.cfg.Tokens), Pattern: b.cfg.Gating,
		})
		if err != nil {
			return nil, err
		}
		layers = []*routing.Routing{g}
	}
	if b.cfg.Record != "" && b.c.Rank() == 0 {
		err = routing.WriteFile(b.cfg.Record, layers...)
	}
	return layers, err
}

// loads are the first tokens of each layer.
func (m *moeRun) loads(tokens int) (all []*load) {
	for i, g := range m.layers {
		x := &load{route: g.First(tokens), in: m.inputs[i]}
		x.in.N = x.route.Tokens(m.b.c.Rank())
		all = append(all, x)
	}
	return all
}

func (m *moeRun) run() error {
	counts := m.b.cfg.Tokens
	if len(counts) == 0 {
		counts = []int{routing.MaxTokens}
	}
	for i, n := range counts {
		if err := m.point(m.loads(n), i, len(counts)); err != nil {
			return err
		}
	}
	return nil
}

// point checks and measures loads in turn, and makes the rows of them.
func (m *moeRun) point(loads []*load, at, of int) error {
	const steps = 4 // of the progress shown
	b := m.b
	m.rowBytes, m.againBytes, m.sumBytes = 0, 0, 0
	var s spent
	ops := m.operations(&s)
	step := func(part int, what string) { b.cfg.Step(at*steps+part, of*steps, what) }
	step(0, "check")
	checks := len(loads)
	if at == 0 {
		checks = max(checks, 2) // also what comes where something has been before
	}
	for iter := range checks {
		err := m.checked(loads[iter%len(loads)], uint64(iter))
		told, err := b.share(part{}, nil, err)
		if err != nil {
			return err
		}
		if b.bad != "" {
			return m.rows(loads, ops, slices.Repeat([][]part{told}, len(ops))) // nothing was timed
		}
	}
	step(1, "measure")
	err := m.measure(loads, &s, 2*time.Second/time.Duration(of))
	if err == nil {
		step(3, "check")
		err = m.checked(loads[0], 99)
	}
	if err == nil {
		err = b.c.Barrier(b.ctx) // all have sent theirs: see checkSignals
	}
	if err == nil {
		err = m.form.signals()
	}
	var parts [][]part
	for _, op := range ops {
		b.checked = *op.checked
		told, err := b.share(op.times.part(), &op.times.hist, err)
		if err != nil {
			return err
		}
		parts = append(parts, told)
	}
	return m.rows(loads, ops, parts)
}

// checked runs a step of a load over payloads of that iteration, and compares all that comes.
func (m *moeRun) checked(x *load, iter uint64) error {
	b := m.b
	for i := range m.y {
		m.y[i] = 0x7fff // no result is this
	}
	if err := errors.Join(m.writeTokens(iter), doorbell.Write(b.c, m.out, m.y)); err != nil {
		return err
	}
	if err := m.dispatch(x); err != nil {
		return err
	}
	if err := m.form.checkRows(x, iter); err != nil {
		return err
	}
	if m.repeater() != nil {
		dispatched := m.rowBytes
		iter += otherRows
		if err := errors.Join(m.writeTokens(iter), m.repeat(x), m.form.checkRows(x, iter)); err != nil {
			return err
		}
		m.rowBytes, m.againBytes = dispatched, m.againBytes+m.rowBytes-dispatched
	}
	if err := m.combine(); err != nil {
		return err
	}
	if err := doorbell.Read(b.c, m.y, m.out); err != nil {
		return err
	}
	return m.form.checkSums(x, iter)
}

// otherRows is how far the payloads of a dispatch that is repeated are from those of the dispatch, in iterations.
const otherRows = 1 << 20

// writeTokens gives the device the payloads of an iteration.
func (m *moeRun) writeTokens(iter uint64) error {
	routing.FillTokens(m.x, m.b.cfg.Seed, iter, m.b.c.Rank(), m.b.cfg.Hidden)
	return doorbell.Write(m.b.c, m.in, m.x)
}

func (m *moeRun) dispatch(x *load) error {
	if err := m.form.queueDispatch(x); err != nil {
		return err
	}
	m.ops = append(m.ops, x)
	return m.buf.Wait(m.b.ctx, m.b.st)
}

func (m *moeRun) repeat(x *load) error {
	if err := m.repeater().queueAgain(x); err != nil {
		return err
	}
	m.again = append(m.again, x)
	return m.buf.Wait(m.b.ctx, m.b.st)
}

func (m *moeRun) combine() error {
	if err := m.form.queueCombine(); err != nil {
		return err
	}
	return m.buf.Wait(m.b.ctx, m.b.st)
}

// differs is where two rows of one size first do.
func differs(a, b []byte) int {
	i := 0
	for i < len(a) && a[i] == b[i] {
		i++
	}
	return i
}
