// SPDX-License-Identifier: Apache-2.0

package benches

import (
	"time"

	"github.com/doorbell-net/doorbell/cmd/doorbell/internal/report"
)

// times is how long one of a step's operations took on this rank.
type times struct {
	hist      report.Hist
	ns, count uint64
	stages    stages
	copies    []stopwatch // of each memcpy that it needs
}

// spent is how long each of a step's operations took; again where there are such.
type spent struct{ dispatch, again, combine times }

// stages are an operation's parts, as far as a form tells them apart.
type stages struct{ Layout, Send, Wait, Unpack stopwatch }

func (s stages) plus(o stages) stages {
	return stages{s.Layout.plus(o.Layout), s.Send.plus(o.Send), s.Wait.plus(o.Wait), s.Unpack.plus(o.Unpack)}
}

// stopwatch adds up how long something took.
type stopwatch struct{ NS, Count uint64 }

func (w *stopwatch) add(d time.Duration, times int) {
	w.NS, w.Count = w.NS+uint64(d), w.Count+uint64(times)
}

func (w stopwatch) plus(o stopwatch) stopwatch { return stopwatch{w.NS + o.NS, w.Count + o.Count} }

// mean is in microseconds.
func (w stopwatch) mean() float64 { return float64(w.NS) / 1e3 / float64(max(w.Count, 1)) }

func (t *times) record(d time.Duration) {
	t.hist.Record(uint64(d))
	t.ns, t.count = t.ns+uint64(d), t.count+1
}

func (t *times) part() part {
	return part{Ns: t.ns, Count: t.count, MoE: &moePart{Stages: t.stages, Copies: t.copies}}
}

// measure times a step's operations for so long, and in turn with them the memcpys that they need, so that both see
// the machine as it is just then; then their stages.
func (m *moeRun) measure(loads []*load, s *spent, budget time.Duration) error {
	const blocks = 4
	b := m.b
	k := &memcpys{}
	if m.clock == nil {
		var err error
		if k, err = m.form.memcpys(loads); err != nil {
			return err
		}
		defer k.close()
	}
	var warm spent
	if err := m.copy(k, 2, &warm); err != nil { // the first touch of its memory is not counted
		return err
	}
	start, rounds := time.Now(), b.warmup(2)
	if err := m.timed(loads, rounds, &warm); err != nil {
		return err
	}
	iters, err := b.iterations(uint64(time.Since(start))/uint64(rounds), budget)
	if err != nil {
		return err
	}
	for block := range blocks {
		n := (iters+blocks-1-block)/blocks + len(loads) - 1
		n -= n % len(loads) // each layer counts as much as another
		if err := m.timed(loads, n, s); err != nil {
			return err
		}
		if err := m.copy(k, max(n/4, min(n, 8)), s); err != nil {
			return err
		}
	}
	for range max(iters/8, len(loads)) {
		if err := m.form.stages(loads[len(m.ops)%len(loads)], s); err != nil {
			return err
		}
	}
	s.again.copies = s.dispatch.copies // it needs the same
	return nil
}

// timed runs a step of each load in turn, so many times in all, waiting for each operation.
func (m *moeRun) timed(loads []*load, iters int, s *spent) error {
	if err := m.b.c.Barrier(m.b.ctx); err != nil {
		return err
	}
	for i := range iters {
		if err := m.timedStep(loads[i%len(loads)], s); err != nil {
			return err
		}
	}
	return nil
}

// timedStep runs dispatch and combine, and the dispatch again by itself.
func (m *moeRun) timedStep(x *load, s *spent) error {
	timed := m.timedByHost
	if m.clock != nil {
		timed = m.timedByDevice
	}
	if err := timed(x, s); err != nil || m.repeater() == nil {
		return err
	}
	took, err := m.stage(func() error { return m.repeater().queueAgain(x) })
	if err != nil {
		return err
	}
	m.again = append(m.again, x)
	s.again.record(took)
	return nil
}

// timedByHost runs a dispatch and its combine.
func (m *moeRun) timedByHost(x *load, s *spent) error {
	start := time.Now()
	if err := m.dispatch(x); err != nil {
		return err
	}
	mid := time.Now()
	if err := m.combine(); err != nil {
		return err
	}
	s.dispatch.record(mid.Sub(start))
	s.combine.record(time.Since(mid))
	return nil
}

// memcpys are those that a step needs, this rank's share, none where the host cannot do them. A function does one of them, of
// the load of that round.
type memcpys struct {
	dispatch, combine []func(round int) // in the order of report.MoE.Copies
	close             func() error
}

// copy does each of them so many times, and adds up how long that took until all ranks had done it.
func (m *moeRun) copy(k *memcpys, rounds int, s *spent) error {
	for _, op := range []struct {
		t  *times
		do []func(int)
	}{{&s.dispatch, k.dispatch}, {&s.combine, k.combine}} {
		if len(op.t.copies) < len(op.do) {
			op.t.copies = make([]stopwatch, len(op.do))
		}
		for i, do := range op.do {
			if err := m.b.c.Barrier(m.b.ctx); err != nil {
				return err
			}
			start := time.Now()
			for round := range rounds {
				do(round)
			}
			if err := m.b.c.Barrier(m.b.ctx); err != nil {
				return err
			}
			op.t.copies[i].add(time.Since(start), rounds)
		}
	}
	return nil
}

// piece is piece i of memory in pieces of n, round and round.
func piece[T any](mem []T, i, n int) []T { return mem[i%(len(mem)/n)*n:][:n] }
