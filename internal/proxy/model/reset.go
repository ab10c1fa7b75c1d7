// SPDX-License-Identifier: Apache-2.0

package model

import "fmt"

// Limits of a Reset.
const (
	maxArrivals = 6
	maxSum      = 63 // of what arrives: a quarter of the words' 8 bits
)

// ResetFault is a planted mistake in how a signal is set to 0. The zero value is the protocol as designed.
type ResetFault uint8

const (
	ResetRight ResetFault = iota
	// ResetStores stores 0 into both words after it read them.
	ResetStores
	// ResetExchanges exchanges both words with 0. Right where all who raise a word add to it, wrong for a NET word that the
	// target's progress stores absolute values into.
	ResetExchanges
	// ResetNET remembers the NET word alone.
	ResetNET
	// ResetLSA remembers the LSA word alone.
	ResetLSA
	// ResetRereads tells its caller one reading and remembers another.
	ResetRereads
	// ResetForgets remembers a value from which the offset of before was already taken.
	ResetForgets
	// ReadBeside lets another thread read the signal while it is reset.
	ReadBeside
	// NearAnyBits has a wait of few bits begin with the NET word as an earlier wait saw it.
	NearAnyBits
)

// Reset is one instance of a signal's two words, of 8 bits here, and of resets by remembered offset that arrivals race with.
// What is seen at a reset is what it takes from the signal, and the caller is told.
type Reset struct {
	Name     string
	Net, LSA []uint8 // what the network and LSA peers add, each at any time
	Absolute bool    // the target's progress sums what the network brings, and stores the sum
	Before   uint8   // in both words at first, and remembered: sums that cross the words' wrap
	Ops      int     // of the rank that owns the signal: reads, resets, waits for one more than the last read saw
	Bits     int     // of the waits' compares, 1 to 8; 0: there are no waits
	Fault    ResetFault
}

// String is the instance's name.
func (c Reset) String() string { return c.Name }

func (c Reset) check(limit int) (Result, error) {
	sum := 0
	for _, v := range append(c.Net[:len(c.Net):len(c.Net)], c.LSA...) {
		sum += int(v)
	}
	switch {
	case len(c.Net)+len(c.LSA) > maxArrivals:
		return Result{}, fmt.Errorf("check model %q: %d arrivals, accepted are up to %d", c.Name, len(c.Net)+len(c.LSA), maxArrivals)
	case sum > maxSum:
		return Result{}, fmt.Errorf("check model %q: arrivals add up to %d, accepted are up to %d", c.Name, sum, maxSum)
	case c.Bits < 0 || c.Bits > 8:
		return Result{}, fmt.Errorf("check model %q: compares of %d bits, accepted are 0 to 8", c.Name, c.Bits)
	case c.Fault == ResetExchanges && c.Before != 0:
		return Result{}, fmt.Errorf("check model %q: before of %d, accepted is 0 for words that are exchanged", c.Name, c.Before)
	case c.Ops < 1 || c.Ops > 8:
		return Result{}, fmt.Errorf("check model %q: %d operations, accepted are 1 to 8", c.Name, c.Ops)
	}
	return explore(c.Name, &resetter{cfg: &c}, limit)
}

type resetPC uint8

const (
	rIdle resetPC = iota
	rReadLSA
	rReadOffset
	rResetLSA
	rSetOffset
	rReread
	rClearNET
	rClearLSA
	rWait
)

// resetThread is a thread of the rank that owns the signal.
type resetThread struct {
	pc   resetPC
	a, b uint8 // NET and LSA as loaded
	told uint8 // what a reset tells its caller, if it isn't what it remembers
	// Ghosts, of when it began.
	come, seen uint8
}

type resetState struct {
	net, lsa, offset uint8
	th               [2]resetThread
	ops              uint8 // that the owner has begun
	beside           uint8 // reads that the other thread has begun
	known            uint8 // what the owner's last read saw
	far              uint8 // NET as the owner's last wait saw it

	sum  uint8 // of the progress
	due  uint8 // ghost: arrivals in sum that NET doesn't have yet
	come uint8 // ghost: arrivals that are in their word
	seen uint8 // ghost: sum of what was seen at resets
}

type resetter struct {
	cfg *Reset
	forks[resetState]
}

const (
	reArrive opcode = iota
	reSum
	reStore
	reLoadNET
	reLoadLSA
	reRead
	reRemember
	reClear
	reNear
	reFar
	reGiveUp
)

var resetText = []string{
	reArrive:   "adds %[1]d to its word",
	reSum:      "adds %[1]d to the progress' sum",
	reStore:    "stores the sum: NET = %[1]d",
	reLoadNET:  "loads NET = %[1]d",
	reLoadLSA:  "loads LSA = %[1]d",
	reRead:     "loads the offset: reads %[1]d",
	reRemember: "stores offset = %[1]d and has seen %[2]d",
	reClear:    "leaves 0 in a word that was %[1]d",
	reNear:     "waits for %[1]d: LSA and an earlier NET say it is there",
	reFar:      "waits for %[1]d: it is there",
	reGiveUp:   "waits for %[1]d: gives up",
}

var resetActors = []string{"owner", "reader", "network", "LSA peer"}

const (
	resetNetwork = 2 + iota
	resetPeer
)

func (m *resetter) initial() resetState {
	b := m.cfg.Before
	return resetState{net: b, lsa: b, offset: 2 * b, sum: b, far: b}
}

// total is what the arrivals of a mask add up to.
func (m *resetter) total(mask uint8) (v uint8) {
	for i := range len(m.cfg.Net) + len(m.cfg.LSA) {
		if mask>>i&1 != 0 {
			v += m.value(i)
		}
	}
	return v
}

func (m *resetter) value(i int) uint8 {
	if i < len(m.cfg.Net) {
		return m.cfg.Net[i]
	}
	return m.cfg.LSA[i-len(m.cfg.Net)]
}

func (m *resetter) successors(s *resetState) []next[resetState] {
	m.out = m.out[:0]
	for i := range len(m.cfg.Net) + len(m.cfg.LSA) {
		if (s.come|s.due)>>i&1 == 0 {
			m.arrive(s, i)
		}
	}
	if s.due != 0 {
		n := m.fork(s, step{actor: resetNetwork, op: reStore, a: s.sum})
		n.net, n.come, n.due = s.sum, s.come|s.due, 0
	}
	m.thread(s, 0)
	if m.cfg.Fault == ReadBeside {
		m.thread(s, 1)
	}
	for i := range m.out {
		m.balance(&m.out[i])
	}
	return m.out
}

func (m *resetter) arrive(s *resetState, i int) {
	v, bit := m.value(i), uint8(1)<<i
	switch {
	case i >= len(m.cfg.Net):
		n := m.fork(s, step{actor: resetPeer, op: reArrive, a: v})
		n.lsa, n.come = s.lsa+v, s.come|bit
	case m.cfg.Absolute:
		n := m.fork(s, step{actor: resetNetwork, op: reSum, a: v})
		n.sum, n.due = s.sum+v, s.due|bit
	default:
		n := m.fork(s, step{actor: resetNetwork, op: reArrive, a: v})
		n.net, n.come = s.net+v, s.come|bit
	}
}

// balance checks that nothing is lost or counted twice: what was seen at resets and what a read would see now is all that
// has come. While the owner is in the midst of a reset nobody may read.
func (m *resetter) balance(n *next[resetState]) {
	s := &n.state
	if n.bad != "" || s.th[0].pc != rIdle || s.due != 0 {
		return
	}
	if left := s.net + s.lsa - s.offset; s.seen+left != m.total(s.come) {
		n.bad = fmt.Sprintf("resets saw %d and %d is left, but %d has come", s.seen, int8(left), m.total(s.come))
	}
}

func (m *resetter) thread(s *resetState, who int) {
	th := &s.th[who]
	do := func(op opcode, a, b uint8, pc resetPC) (*resetState, *resetThread) {
		n := m.fork(s, step{actor: uint8(who), op: op, a: a, b: b})
		n.th[who].pc = pc
		return n, &n.th[who]
	}
	switch th.pc {
	case rIdle:
		if who == 1 {
			if s.beside == 0 {
				n, t := do(reLoadNET, s.net, 0, rReadLSA)
				t.a, t.come, t.seen = s.net, m.total(s.come), s.seen
				n.beside++
			}
			return
		}
		if int(s.ops) < m.cfg.Ops {
			m.begin(s, do)
		}
	case rReadLSA, rResetLSA:
		if th.pc == rResetLSA && m.cfg.Fault == ResetExchanges {
			n, t := do(reClear, s.lsa, 0, rSetOffset)
			t.b, n.lsa = s.lsa, 0
			return
		}
		_, t := do(reLoadLSA, s.lsa, 0, th.pc+1)
		t.b = s.lsa
	case rReadOffset:
		v := th.a + th.b - s.offset
		n, t := do(reRead, v, 0, rIdle)
		*t = resetThread{}
		if who == 0 {
			n.known = v
		}
		m.inRange(n, th, v)
	case rSetOffset:
		m.remember(s, do)
	case rReread:
		n, t := do(reRemember, th.a+s.lsa, th.told, rIdle)
		*t = resetThread{}
		n.offset, n.seen, n.known = th.a+s.lsa, s.seen+th.told, 0
	case rClearNET:
		n, _ := do(reClear, s.net, 0, rClearLSA)
		n.net = 0
	case rClearLSA:
		n, t := do(reClear, s.lsa, 0, rIdle)
		*t = resetThread{}
		n.lsa = 0
	case rWait:
		m.wait(s, th)
	}
}

type doer func(op opcode, a, b uint8, pc resetPC) (*resetState, *resetThread)

// begin begins one of the owner's operations with its first load.
func (m *resetter) begin(s *resetState, do doer) {
	for _, pc := range []resetPC{rReadLSA, rResetLSA} {
		op := reLoadNET
		if pc == rResetLSA && m.cfg.Fault == ResetExchanges {
			op = reClear
		}
		n, t := do(op, s.net, 0, pc)
		n.ops++
		t.a, t.come, t.seen = s.net, m.total(s.come), s.seen
		if op == reClear {
			n.net = 0
		}
	}
	if m.cfg.Bits == 0 {
		return
	}
	n, t := do(reLoadLSA, s.lsa, 0, rWait)
	n.ops++
	t.b = s.lsa
}

// remember ends a reset: the offset takes away what was loaded.
func (m *resetter) remember(s *resetState, do doer) {
	th := &s.th[0]
	offset, seen := th.a+th.b, th.a+th.b-s.offset
	switch m.cfg.Fault {
	case ResetNET:
		offset = th.a
	case ResetLSA:
		offset = th.b
	case ResetForgets:
		offset = seen
	case ResetExchanges:
		offset = 0
	case ResetRereads:
		_, t := do(reLoadNET, s.net, 0, rReread)
		t.a, t.told = s.net, seen
		return
	}
	pc := rIdle
	if m.cfg.Fault == ResetStores {
		offset, pc = 0, rClearNET
	}
	n, t := do(reRemember, offset, seen, pc)
	*t = resetThread{pc: pc}
	n.offset, n.seen, n.known = offset, s.seen+seen, 0
}

// inRange checks what a read saw: at least what had come when it began and was not taken by a reset, at most what had come
// when it ended. So reads never run backwards, past a reset or otherwise.
func (m *resetter) inRange(n *resetState, th *resetThread, v uint8) {
	low, high := int(th.come)-int(n.seen), int(m.total(n.come))-int(th.seen)
	if int(int8(v)) < max(low, 0) || int(int8(v)) > high {
		m.fail("a read saw %d, accepted are %d to %d", int8(v), max(low, 0), high)
	}
}

// wait is a wait for one more than the owner last read. LSA is loaded already; before NET is, the NET word as the wait before
// saw it may do.
func (m *resetter) wait(s *resetState, th *resetThread) {
	least := s.known + 1
	half := uint8(1) << (m.cfg.Bits - 1)
	there := func(net, lsa uint8) bool { return (net+lsa-s.offset-least)&(2*half-1) < half }
	st := step{op: reGiveUp, a: least}
	switch {
	case (m.cfg.Bits == 8 || m.cfg.Fault == NearAnyBits) && there(s.far, th.b):
		st.op = reNear
	case there(s.net, th.b):
		st.op = reFar
	}
	n := m.fork(s, st)
	n.th[0] = resetThread{}
	if st.op != reNear {
		n.far = s.net
	}
	if now := m.total(s.come) - s.seen; st.op != reGiveUp && now < least {
		m.fail("a wait for %d ended when the signal was %d", least, now)
	}
}

func (m *resetter) done(s *resetState) bool {
	all := uint8(1)<<(len(m.cfg.Net)+len(m.cfg.LSA)) - 1
	return s.come == all && int(s.ops) == m.cfg.Ops && s.th[0].pc == rIdle && s.th[1].pc == rIdle
}

func (m *resetter) hash(s *resetState) uint64 {
	var b [24]byte
	n := copy(b[:], []byte{s.net, s.lsa, s.offset, s.ops, s.beside, s.known, s.far, s.sum, s.due, s.come, s.seen})
	for _, t := range s.th {
		n += copy(b[n:], []byte{byte(t.pc), t.a, t.b, t.told, t.come, t.seen})
	}
	return hash(b[:])
}

// moved is true of every step: nobody looks twice.
func (m *resetter) moved(_, _ *resetState) bool { return true }

func (m *resetter) describe(st step) string { return st.text(resetActors, resetText) }

func (m *resetter) summary(s *resetState) string {
	return fmt.Sprintf("NET %d, LSA %d, offset %d: a read would see %d; resets saw %d, arrivals add up to %d",
		s.net, s.lsa, s.offset, int8(s.net+s.lsa-s.offset), s.seen, m.total(s.come))
}
