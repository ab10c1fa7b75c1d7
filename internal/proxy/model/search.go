// SPDX-License-Identifier: Apache-2.0

package model

import (
	"encoding/binary"
	"fmt"
	"math/bits"
	"strings"
	"time"
)

// Result is what a search found. A run is right when Violation is nil.
type Result struct {
	States, Steps int // distinct states, and transitions between them
	Depth         int // longest shortest path
	Ends          int // states in which all work is done
	Elapsed       time.Duration
	Violation     *Violation

	taken [opCount]bool // kinds of step that occurred
}

// String is the one line that tests log.
func (r Result) String() string {
	return fmt.Sprintf("%d states, %d steps, depth %d, %d ends, %.2fs", r.States, r.Steps, r.Depth, r.Ends, r.Elapsed.Seconds())
}

// Violation is a broken rule with a shortest run that leads to it.
type Violation struct {
	Rule  string
	Trace []string
	Final string // what can be seen at the end of the run
}

// String lists the run step by step.
func (v *Violation) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n", v.Rule)
	for i, line := range v.Trace {
		fmt.Fprintf(&b, "%3d  %s\n", i+1, line)
	}
	fmt.Fprintf(&b, "  =  %s\n", v.Final)
	return b.String()
}

// Stuck is the rule broken by a state from which the end of all work can't be reached.
const Stuck = "from here no run ends with all work done"

// Check visits every reachable state of cfg, breadth first, and then asks of each whether all work can still end.
//
// It returns an error if cfg is out of range or has more than limit states. States are told apart by a 64-bit hash:
// at ten million states the chance that two share one is about 1 in 200,000.
func Check(cfg Config, limit int) (Result, error) {
	if err := cfg.validate(); err != nil {
		return Result{}, err
	}
	begin := time.Now()
	sr := &search{m: machine{cfg: &cfg}, ids: newTable(), limit: limit}
	err := sr.run()
	sr.res.Elapsed = time.Since(begin)
	return sr.res, err
}

type search struct {
	m      machine
	ids    *table
	parent []uint32 // state from which it was found first
	choice []uint8  // which successor of parent it was
	first  []uint32 // state -> its part of edges
	edges  []uint32
	ends   []uint32
	limit  int
	res    Result
}

func (sr *search) run() error {
	init := sr.m.initial()
	sr.id(&init)
	sr.parent, sr.choice = append(sr.parent, 0), append(sr.choice, 0)
	level, after := []state{init}, []state(nil)
	for at := uint32(0); len(level) > 0; sr.res.Depth++ {
		after = after[:0]
		for i := range level {
			sr.first = append(sr.first, uint32(len(sr.edges)))
			if sr.m.done(&level[i]) {
				sr.ends = append(sr.ends, at)
			}
			for k, n := range sr.m.successors(&level[i]) {
				if n.bad != "" {
					sr.violation(at, n.bad, &n)
					return nil
				}
				sr.res.taken[n.step.op] = true
				id, fresh := sr.id(&n.state)
				sr.edges = append(sr.edges, id)
				if fresh {
					sr.parent, sr.choice = append(sr.parent, at), append(sr.choice, uint8(k))
					after = append(after, n.state)
				}
			}
			at++
		}
		if sr.ids.n > sr.limit {
			return fmt.Errorf("check model %q: more than %d states", sr.m.cfg.Name, sr.limit)
		}
		level, after = after, level
	}
	sr.first = append(sr.first, uint32(len(sr.edges)))
	sr.count()
	sr.liveness()
	return nil
}

func (sr *search) count() {
	sr.res.States, sr.res.Steps, sr.res.Ends = sr.ids.n, len(sr.edges), len(sr.ends)
}

// liveness finds a state from which no end can be reached. Every step stays possible or is overtaken by another, so
// where an end is reachable from every state, a fair run (sweep and network included) comes to one.
func (sr *search) liveness() {
	good := make([]bool, sr.ids.n)
	for _, e := range sr.ends {
		good[e] = true
	}
	for again := true; again; {
		again = false
		for s := len(good) - 1; s >= 0; s-- {
			if good[s] {
				continue
			}
			for _, t := range sr.edges[sr.first[s]:sr.first[s+1]] {
				if good[t] {
					good[s], again = true, true
					break
				}
			}
		}
	}
	doomed := []uint32(nil)
	for s, ok := range good {
		if !ok {
			doomed = append(doomed, uint32(s))
		}
	}
	if len(doomed) == 0 {
		return
	}
	// The first doomed state may still look busy. One where nothing moves any more tells the reader more.
	for _, s := range doomed[:min(len(doomed), 20_000)] {
		if sr.still(sr.replay(s, nil)) {
			sr.violation(s, Stuck, nil)
			return
		}
	}
	sr.violation(doomed[0], Stuck, nil)
}

// still reports whether from s on everybody only looks and waits.
func (sr *search) still(s state) bool {
	seen := map[state]bool{s: true}
	for todo := []state{s}; len(todo) > 0; {
		t := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		for _, n := range sr.m.successors(&t) {
			n := n.state
			if n.head != s.head || n.noted != s.noted || n.raised != s.raised || n.posted != s.posted || len(seen) > 500 {
				return false
			}
			for p := range n.prod {
				if n.prod[p].op != s.prod[p].op || n.buf[p].n > 0 {
					return false
				}
			}
			if !seen[n] {
				seen[n] = true
				todo = append(todo, n)
			}
		}
	}
	return true
}

// violation replays the run to state at, then last.
func (sr *search) violation(at uint32, rule string, last *next) {
	sr.count()
	bad := next{}
	if last != nil {
		bad = *last // it lies in the slice that replay reuses
	}
	v := &Violation{Rule: rule}
	s := sr.replay(at, func(st step) { v.Trace = append(v.Trace, sr.m.describe(st)) })
	if last != nil {
		v.Trace = append(v.Trace, sr.m.describe(bad.step))
		s = bad.state
	}
	v.Final = sr.m.summary(&s)
	sr.res.Violation = v
}

// replay returns state number at, and tells each step of the run that leads to it.
func (sr *search) replay(at uint32, tell func(step)) state {
	var choices []uint8
	for s := at; s != 0; s = sr.parent[s] {
		choices = append(choices, sr.choice[s])
	}
	s := sr.m.initial()
	for i := len(choices) - 1; i >= 0; i-- {
		n := sr.m.successors(&s)[choices[i]]
		if tell != nil {
			tell(n.step)
		}
		s = n.state
	}
	return s
}

// id returns the number of a state, in order of discovery.
func (sr *search) id(s *state) (uint32, bool) {
	var b [(stateBytes + 7) / 8 * 8]byte
	s.encode(&b)
	h := uint64(0x9e3779b97f4a7c15)
	for i := 0; i < len(b); i += 8 {
		hi, lo := bits.Mul64(h^binary.LittleEndian.Uint64(b[i:]), 0xd6e8feb86659fd93)
		h = bits.RotateLeft64(hi^lo, 29) + uint64(i)*0xa0761d6478bd642f
	}
	hi, lo := bits.Mul64(h, 0xe7037ed1a0b428db)
	return sr.ids.id(hi ^ lo)
}

// table maps hashes to numbers: open addressing, at most half full.
type table struct {
	key []uint64
	val []uint32
	n   int
}

func newTable() *table { return &table{key: make([]uint64, 1<<12), val: make([]uint32, 1<<12)} }

func (t *table) id(h uint64) (uint32, bool) {
	h |= 1 // 0 is an empty place
	if 2*t.n >= len(t.key) {
		t.grow()
	}
	i := t.find(h)
	if t.key[i] == h {
		return t.val[i], false
	}
	t.key[i], t.val[i] = h, uint32(t.n)
	t.n++
	return t.val[i], true
}

func (t *table) find(h uint64) int {
	i := int(h>>1) & (len(t.key) - 1)
	for t.key[i] != 0 && t.key[i] != h {
		i = (i + 1) & (len(t.key) - 1)
	}
	return i
}

func (t *table) grow() {
	old := *t
	t.key, t.val = make([]uint64, 2*len(old.key)), make([]uint32, 2*len(old.key))
	for j, h := range old.key {
		if h != 0 {
			i := t.find(h)
			t.key[i], t.val[i] = h, old.val[j]
		}
	}
}
