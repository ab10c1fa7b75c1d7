// SPDX-License-Identifier: Apache-2.0

package model

import (
	"fmt"
	"math/bits"
	"strings"
)

// maxHeld bounds the operations of a Hold that are between slot and end at once.
const maxHeld = 5

// HoldFault is a planted mistake in what a signal is held for. The zero value is the protocol as designed.
type HoldFault uint8

const (
	HoldRight HoldFault = iota
	// HoldNothing posts each signal at once.
	HoldNothing
	// HoldWhileCut holds a strong signal only for other pieces of its own put.
	HoldWhileCut
	// HoldStrongOnly does not hold the weak signal of a put that was cut.
	HoldStrongOnly
	// HoldLast waits for the operation before alone.
	HoldLast
	// HoldOperations counts an operation as on its way only when its last piece is.
	HoldOperations
	// HoldBatchBlind looks at what was posted, and not at what is about to be posted with the signal.
	HoldBatchBlind
	// HoldByTable waits until the table of operations is empty, the place of the held one included.
	HoldByTable
	// HoldDeaf counts a piece that failed as ended, and goes on.
	HoldDeaf
)

// Hold is one instance of strong signals over a network without order. The proxy holds a strong signal, and any signal of a
// put that was cut, until everything that it posted of that queue before has completed at the target.
//
// It begins where descriptors are read, whole and in order, which a Config shows. Its producer posts any operations, any
// number of them: what has ended is dropped from the state.
type Hold struct {
	Name string
	// Kinds are the operations that there are: p put, w put with a weak signal, s put with a strong one, b strong signal
	// alone; as capitals cut.
	Kinds  string
	Open   int  // operations between slot and end at most, the table of those in flight
	Pieces int  // pieces of a put that is cut
	Batch  int  // pieces that are posted together at most
	Fails  bool // one piece may fail
	Local  bool // completions say nothing of the target: a network that can give weak signals of whole puts alone
	Fault  HoldFault
}

// String is the instance's name.
func (c Hold) String() string { return c.Name }

func (c Hold) check(limit int) (Result, error) {
	switch {
	case c.Kinds == "" || strings.Trim(c.Kinds, "pwsbPWS") != "":
		return Result{}, fmt.Errorf("check model %q: operations %q, accepted are p, w, s, b, P, W and S", c.Name, c.Kinds)
	case c.Open < 1 || c.Open > maxHeld:
		return Result{}, fmt.Errorf("check model %q: %d operations open, accepted are 1 to %d", c.Name, c.Open, maxHeld)
	case c.Pieces < 2 || c.Pieces > 4:
		return Result{}, fmt.Errorf("check model %q: %d pieces, accepted are 2 to 4", c.Name, c.Pieces)
	case c.Batch < 1 || c.Batch > maxHeld:
		return Result{}, fmt.Errorf("check model %q: batches of %d, accepted are 1 to %d", c.Name, c.Batch, maxHeld)
	}
	return explore(c.Name, &holder{cfg: &c}, limit)
}

// heldOp is an operation from its slot on. Masks have one bit per piece.
type heldOp struct {
	kind    byte  // 0 is none
	arrived uint8 // visible at the target
	noted   uint8 // completion seen
	failed  uint8
	raised  uint8
}

type holdState struct {
	ops   [maxHeld]heldOp // in order of the queue, the oldest that has not ended first
	n     uint8           // of them
	head  uint8           // all pieces of those before it are posted
	cut   uint8           // pieces of the one at head that are
	batch uint8           // pieces that are prepared and not posted yet
	dead  uint8           // a failure was seen: nothing more is posted
}

type holder struct {
	cfg *Hold
	forks[holdState]
}

const (
	hoProduce opcode = iota
	hoPrepare
	hoPost
	hoArrive
	hoFail
	hoRaise
	hoNote
	hoNoteFailed
)

var holdText = []string{
	hoProduce:    "writes descriptor #%[1]d: %[2]c",
	hoPrepare:    "prepares piece %[2]d of #%[1]d",
	hoPost:       "posts %[1]d of the pieces prepared",
	hoArrive:     "places piece %[2]d of #%[1]d",
	hoFail:       "fails piece %[2]d of #%[1]d",
	hoRaise:      "raises the signal of #%[1]d",
	hoNote:       "notices that piece %[2]d of #%[1]d is complete",
	hoNoteFailed: "notices that piece %[2]d of #%[1]d failed",
}

var holdActors = []string{"producer", "proxy", "network"}

const (
	holdProducer = iota
	holdProxy
	holdNetwork
)

func (m *holder) pieces(kind byte) uint8 {
	if kind < 'a' {
		return uint8(m.cfg.Pieces)
	}
	return 1
}

func (m *holder) all(kind byte) uint8 { return 1<<m.pieces(kind) - 1 }

// posted is the pieces of operation i that the network has.
func (m *holder) posted(s *holdState, i uint8) uint8 {
	switch {
	case i < s.head:
		return m.all(s.ops[i].kind)
	case i == s.head:
		return 1<<s.cut - 1
	}
	return 0
}

// item is number j of a batch: the next piece of the operation at head, and then first pieces of those after it.
func (s *holdState) item(j uint8) (op, piece uint8) {
	if j == 0 {
		return s.head, s.cut
	}
	return s.head + j, 0
}

func (m *holder) initial() holdState { return holdState{} }

func (m *holder) successors(s *holdState) []next[holdState] {
	m.out = m.out[:0]
	if s.dead == 0 {
		m.produce(s)
		m.prepare(s)
		m.post(s)
	}
	for i := range s.n {
		for p := range m.pieces(s.ops[i].kind) {
			m.network(s, i, p)
			m.note(s, i, p)
		}
		m.raise(s, i)
	}
	for i := range m.out {
		m.drop(&m.out[i].state)
	}
	return m.out
}

// produce writes any descriptor that there is. One in advance is enough: the proxy can't tell when it was written.
func (m *holder) produce(s *holdState) {
	if int(s.n) == m.cfg.Open || s.n > s.head+s.batch {
		return
	}
	for _, k := range []byte(m.cfg.Kinds) {
		n := m.fork(s, step{actor: holdProducer, op: hoProduce, a: s.n, b: k})
		n.ops[s.n].kind = k
		n.n++
	}
}

// prepare adds one more to the batch. A put with more than one piece to go ends it.
func (m *holder) prepare(s *holdState) {
	i, p := s.item(s.batch)
	if i >= s.n || int(s.batch) == m.cfg.Batch {
		return
	}
	if s.batch > 0 {
		if before, q := s.item(s.batch - 1); q > 0 || m.pieces(s.ops[before].kind) > 1 {
			return
		}
	}
	if !m.held(s, i, p) {
		m.fork(s, step{actor: holdProxy, op: hoPrepare, a: i, b: p}).batch++
	}
}

// held says whether piece p of operation i has to wait.
func (m *holder) held(s *holdState, i, p uint8) bool {
	k := s.ops[i].kind
	strong := strings.IndexByte("sbS", k) >= 0
	if p+1 < m.pieces(k) || k == 'p' || k == 'P' || !strong && p == 0 {
		return false
	}
	out := 0
	for j := range s.n {
		out += bits.OnesCount8(m.posted(s, j) &^ s.ops[j].noted)
	}
	out += int(s.batch)
	switch m.cfg.Fault {
	case HoldNothing:
		return false
	case HoldWhileCut:
		return out > 0 && p > 0
	case HoldStrongOnly:
		return out > 0 && strong
	case HoldLast:
		last, piece := i, p-1
		if p == 0 && i > 0 {
			last, piece = i-1, m.pieces(s.ops[i-1].kind)-1
		}
		return (i > 0 || p > 0) && s.ops[last].noted>>piece&1 == 0
	case HoldOperations:
		out = int(s.batch)
		for j := range s.head {
			out += bits.OnesCount8(m.all(s.ops[j].kind) &^ s.ops[j].noted)
		}
	case HoldBatchBlind:
		out -= int(s.batch)
	case HoldByTable:
		for j := range s.head {
			out += bits.OnesCount8(m.all(s.ops[j].kind) &^ s.ops[j].noted)
		}
		if s.cut > 0 {
			out++
		}
	}
	return out > 0
}

// post gives the batch to the network, which takes as many as it likes; the rest is prepared anew.
func (m *holder) post(s *holdState) {
	for took := range s.batch {
		took++
		n := m.fork(s, step{actor: holdProxy, op: hoPost, a: took})
		n.batch = 0
		for range took {
			if n.cut++; n.cut == m.pieces(n.ops[n.head].kind) {
				n.head, n.cut = n.head+1, 0
			}
		}
	}
}

// network places a piece that it has, or fails it. It keeps no order.
func (m *holder) network(s *holdState, i, p uint8) {
	o := &s.ops[i]
	bit := uint8(1) << p
	if (m.posted(s, i)&^o.arrived&^o.failed)&bit == 0 {
		return
	}
	m.fork(s, step{actor: holdNetwork, op: hoArrive, a: i, b: p}).ops[i].arrived |= bit
	if m.cfg.Fails && !s.failed() {
		m.fork(s, step{actor: holdNetwork, op: hoFail, a: i, b: p}).ops[i].failed |= bit
	}
}

// failed says whether a piece has failed: what has is not dropped.
func (s *holdState) failed() bool {
	for _, o := range s.ops[:s.n] {
		if o.failed != 0 {
			return true
		}
	}
	return false
}

// raise raises the signal that came with the last piece, after that piece. What it covers has to be there.
func (m *holder) raise(s *holdState, i uint8) {
	o := &s.ops[i]
	last := m.all(o.kind) &^ (m.all(o.kind) >> 1)
	if o.kind == 'p' || o.kind == 'P' || o.raised == 1 || o.arrived&last == 0 {
		return
	}
	m.fork(s, step{actor: holdNetwork, op: hoRaise, a: i}).ops[i].raised = 1
	first := i // of those covered
	if o.kind != 'w' && o.kind != 'W' {
		first = 0
	}
	for j := first; j <= i; j++ {
		c := &s.ops[j]
		if missing := m.all(c.kind) &^ c.arrived; missing != 0 && c.kind != 'b' {
			m.fail("signal of #%d (%c) is seen before piece %d of #%d (%c)", i, o.kind, lowest(missing), j, c.kind)
			return
		}
	}
}

// note lets the proxy see the end of a piece, in any order.
func (m *holder) note(s *holdState, i, p uint8) {
	o := &s.ops[i]
	bit := uint8(1) << p
	over := o.arrived | o.failed
	if m.cfg.Local {
		over = m.posted(s, i)
	}
	if over&^o.noted&bit == 0 {
		return
	}
	st := step{actor: holdProxy, op: hoNote, a: i, b: p}
	if o.failed&bit != 0 {
		st.op = hoNoteFailed
	}
	n := m.fork(s, st)
	n.ops[i].noted |= bit
	if o.failed&bit != 0 && m.cfg.Fault != HoldDeaf {
		n.dead = 1
	}
}

// drop takes operations from the state that nothing more will happen to.
func (m *holder) drop(s *holdState) {
	for s.head > 0 {
		o := &s.ops[0]
		if all := m.all(o.kind); o.arrived != all || o.noted != all || o.raised == 0 && o.kind != 'p' && o.kind != 'P' {
			return
		}
		copy(s.ops[:], s.ops[1:s.n])
		s.n--
		s.head--
		s.ops[s.n] = heldOp{}
	}
}

func (m *holder) done(s *holdState) bool { return s.n == 0 || s.dead == 1 }

func (m *holder) hash(s *holdState) uint64 {
	var b [maxHeld*5 + 7]byte
	for i, o := range s.ops {
		copy(b[5*i:], []byte{o.kind, o.arrived, o.noted, o.failed, o.raised})
	}
	copy(b[5*maxHeld:], []byte{s.n, s.head, s.cut, s.batch, s.dead})
	return hash(b[:])
}

// moved is true of every step: the proxy's looks that find nothing to do are none.
func (m *holder) moved(_, _ *holdState) bool { return true }

func (m *holder) describe(st step) string { return st.text(holdActors, holdText) }

func (m *holder) summary(s *holdState) string {
	text := fmt.Sprintf("head #%d, %d pieces of it posted, dead %d", s.head, s.cut, s.dead)
	for i, o := range s.ops[:s.n] {
		text += fmt.Sprintf("; #%d %c: arrived %0*b, noted %0*b, raised %d", i, o.kind,
			m.pieces(o.kind), o.arrived, m.pieces(o.kind), o.noted, o.raised)
	}
	return text
}
