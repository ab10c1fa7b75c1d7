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

	taken [maxOpcodes]bool // kinds of step that occurred
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

// Instance is one finite instance of a protocol: a [Config], [Hold], [Reset] or [Windows].
type Instance interface {
	String() string // its name
	check(limit int) (Result, error)
}

// Check visits every reachable state of an instance, breadth first, and then asks of each whether all work can still end.
//
// It returns an error if the instance is out of range or has more than limit states. States are told apart by a 64-bit
// hash: at ten million states the chance that two share one is about 1 in 200,000.
func Check(c Instance, limit int) (Result, error) { return c.check(limit) }

// protocol is what a search walks: the states S of one instance, and the steps between them.
type protocol[S any] interface {
	initial() S
	successors(*S) []next[S] // every step that can be the next one; the slice is reused
	done(*S) bool            // all work has ended as it should: nothing lost, nothing left behind
	hash(*S) uint64          // equal for equal states
	moved(from, to *S) bool  // the step is more than a look
	describe(step) string
	summary(*S) string
}

// explore is Check for a protocol.
func explore[S comparable](name string, m protocol[S], limit int) (Result, error) {
	begin := time.Now()
	sr := &search[S]{m: m, name: name, ids: newTable(), limit: limit}
	err := sr.run()
	sr.res.Elapsed = time.Since(begin)
	return sr.res, err
}

type search[S comparable] struct {
	m      protocol[S]
	name   string
	ids    *table
	parent []uint32 // state from which it was found first
	choice []uint8  // which successor of parent it was
	first  []uint32 // state -> its part of edges
	edges  []uint32
	ends   []uint32
	limit  int
	res    Result
}

func (sr *search[S]) run() error {
	init := sr.m.initial()
	sr.id(&init)
	sr.parent, sr.choice = append(sr.parent, 0), append(sr.choice, 0)
	level, after := []S{init}, []S(nil)
	for at := uint32(0); len(level) > 0; sr.res.Depth++ {
		after = after[:0]
		for i := range level {
			sr.first = append(sr.first, uint32(len(sr.edges)))
			if sr.m.done(&level[i]) {
				sr.ends = append(sr.ends, at)
			}
			out := sr.m.successors(&level[i])
			for k := range out {
				n := &out[k]
				if n.bad != "" {
					sr.violation(at, n.bad, n)
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
			return fmt.Errorf("check model %q: more than %d states", sr.name, sr.limit)
		}
		level, after = after, level
	}
	sr.first = append(sr.first, uint32(len(sr.edges)))
	sr.count()
	sr.liveness()
	return nil
}

func (sr *search[S]) count() {
	sr.res.States, sr.res.Steps, sr.res.Ends = sr.ids.n, len(sr.edges), len(sr.ends)
}

// liveness finds a state from which no end can be reached. Every step stays possible or is overtaken by another, so
// where an end is reachable from every state, a fair run (sweep and network included) comes to one.
func (sr *search[S]) liveness() {
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
func (sr *search[S]) still(s S) bool {
	seen := map[S]bool{s: true}
	for todo := []S{s}; len(todo) > 0; {
		t := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		out := sr.m.successors(&t)
		for k := range out {
			n := &out[k]
			if sr.m.moved(&s, &n.state) || len(seen) > 500 {
				return false
			}
			if !seen[n.state] {
				seen[n.state] = true
				todo = append(todo, n.state)
			}
		}
	}
	return true
}

// violation replays the run to state at, then last.
func (sr *search[S]) violation(at uint32, rule string, last *next[S]) {
	sr.count()
	bad := next[S]{}
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
func (sr *search[S]) replay(at uint32, tell func(step)) S {
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
func (sr *search[S]) id(s *S) (uint32, bool) { return sr.ids.id(sr.m.hash(s)) }

// hash is of bytes that are a multiple of 8.
func hash(b []byte) uint64 {
	h := uint64(0x9e3779b97f4a7c15)
	for i := 0; i < len(b); i += 8 {
		hi, lo := bits.Mul64(h^binary.LittleEndian.Uint64(b[i:]), 0xd6e8feb86659fd93)
		h = bits.RotateLeft64(hi^lo, 29) + uint64(i)*0xa0761d6478bd642f
	}
	hi, lo := bits.Mul64(h, 0xe7037ed1a0b428db)
	return hi ^ lo
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
