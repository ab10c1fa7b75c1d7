// SPDX-License-Identifier: Apache-2.0

package model

import "fmt"

// Limits of a Windows.
const (
	maxPosted     = 4
	maxRegistered = 7 // windows under the id, one after another
	maxThreads    = 2
	signalPiece   = 2 // the piece of an operation that raises its signal
	payloadPiece  = 1
)

// WindowFault is a planted mistake in how windows come and go. The zero value is the protocol as designed.
type WindowFault uint8

const (
	WindowRight WindowFault = iota
	// NoSourceCheck posts without a look at the generation that the device knows (harmless).
	NoSourceCheck
	// NoGenCheck has the proxy ask only whether a window of that id is registered.
	NoGenCheck
	// GenKept registers again under the generation of before.
	GenKept
	// CheckedOnce checks a put that is cut at its first piece alone.
	CheckedOnce
	// RemovedWhileFlying withdraws a window although operations are on their way.
	RemovedWhileFlying
	// DeviceFirst tells the device of a new window before the proxy.
	DeviceFirst
	// TargetTrusts has the target's end place what comes for a window that it withdrew.
	TargetTrusts
)

// Windows is one instance of signals at addresses, whose window is withdrawn and registered again under the same id while
// descriptors that name it are in a queue. Whether descriptors arrive whole and in order is a Config's matter, here they do.
type Windows struct {
	Name       string
	Registered int  // windows under the id, one after another
	Gens       int  // that generations can tell apart
	Ops        int  // of each kernel thread
	Threads    int  // kernel threads, each with copies of every window that there was
	Cut        bool // each operation is a put into a window that stays, and a signal with its second piece
	Hold       bool // a network without order: the second piece waits for the first
	Closes     bool // the target withdraws its ends of the windows when it likes
	Fault      WindowFault
}

// String is the instance's name.
func (c Windows) String() string { return c.Name }

func (c Windows) check(limit int) (Result, error) {
	switch {
	case c.Registered < 1 || c.Registered > maxRegistered:
		return Result{}, fmt.Errorf("check model %q: %d windows, accepted are 1 to %d", c.Name, c.Registered, maxRegistered)
	case c.Gens < 1:
		return Result{}, fmt.Errorf("check model %q: %d generations, accepted are 1 and more", c.Name, c.Gens)
	case c.Threads < 1 || c.Threads > maxThreads:
		return Result{}, fmt.Errorf("check model %q: %d threads, accepted are 1 to %d", c.Name, c.Threads, maxThreads)
	case c.Ops < 1 || c.Ops*c.Threads > maxPosted:
		return Result{}, fmt.Errorf("check model %q: %d operations of %d threads, accepted are %d in all", c.Name, c.Ops, c.Threads, maxPosted)
	}
	return explore(c.Name, &windower{cfg: &c}, limit)
}

// signalOp is a descriptor, and the operation that it becomes. Windows are numbered from 1. Masks have a bit per piece.
type signalOp struct {
	names  uint8 // the window that its poster meant
	to     uint8 // the window that its signal was posted to
	posted uint8
	landed uint8
	noted  uint8
	failed uint8
}

type kernelThread struct {
	names uint8 // the window that it has checked and is about to post to
	ops   uint8 // begun
}

type hostPC uint8

const (
	hServing hostPC = iota
	hHidden         // the device knows of no window
	hRemoved        // nor does the proxy: mapping and id are given back
	hHalf           // one of the two knows of the next one
)

type windowState struct {
	ops     [maxPosted]signalOp
	n, head uint8
	th      [maxThreads]kernelThread
	host    hostPC
	made    uint8 // windows so far
	device  uint8 // the window that the device knows, 0 none
	proxy   uint8 // and the proxy
	mapped  uint8 // bit per window: this rank's mapping of the target's words
	open    uint8 // bit per window: the target's end
	dead    uint8
}

type windower struct {
	cfg *Windows
	forks[windowState]
}

const (
	wiCheck opcode = iota
	wiInvalid
	wiSkip
	wiPost
	wiRefuse
	wiTake
	wiLand
	wiRaise
	wiTargetRefuses
	wiNote
	wiNoteFailed
	wiHide
	wiRemove
	wiAdd
	wiShow
	wiClose
)

var windowText = []string{
	wiCheck:         "checks its copy of window %[1]d: it is the one registered",
	wiInvalid:       "checks its copy of window %[1]d: Invalid",
	wiSkip:          "takes its copy of window %[1]d unchecked",
	wiPost:          "writes descriptor %[1]d, which names window %[2]d",
	wiRefuse:        "refuses descriptor %[1]d, which names window %[2]d: the queue is dead",
	wiTake:          "posts piece %[2]d of descriptor %[1]d",
	wiLand:          "places the payload of descriptor %[1]d",
	wiRaise:         "raises the signal of descriptor %[1]d in window %[2]d",
	wiTargetRefuses: "is refused by the target: descriptor %[1]d, window %[2]d",
	wiNote:          "notices that piece %[2]d of descriptor %[1]d is complete",
	wiNoteFailed:    "notices that piece %[2]d of descriptor %[1]d failed: the queue is dead",
	wiHide:          "tells the device that window %[1]d is none",
	wiRemove:        "takes window %[1]d from the proxy and gives its mapping and id back",
	wiAdd:           "registers window %[1]d under the id, and the proxy knows it",
	wiShow:          "tells the device of window %[1]d",
	wiClose:         "withdraws its end of window %[1]d",
}

var windowActors = []string{"thread 0", "thread 1", "host", "proxy", "network", "target"}

const (
	byHost = maxThreads + iota
	byProxy
	byNetwork
	byTarget
)

func (m *windower) initial() windowState {
	return windowState{made: 1, device: 1, proxy: 1, mapped: 1 << 1, open: 1 << 1}
}

// gen is a window's generation.
func (m *windower) gen(w uint8) uint8 {
	if m.cfg.Fault == GenKept {
		return 0
	}
	return w % uint8(m.cfg.Gens)
}

func (m *windower) successors(s *windowState) []next[windowState] {
	m.out = m.out[:0]
	for i := range m.cfg.Threads {
		m.thread(s, i)
	}
	m.registrar(s)
	if s.dead == 0 && s.head < s.n {
		m.take(s)
	}
	for i := range s.n {
		for _, p := range []uint8{payloadPiece, signalPiece} {
			if s.ops[i].posted&^s.ops[i].landed&^s.ops[i].failed&p != 0 {
				m.land(s, i, p)
			}
			m.note(s, i, p)
		}
	}
	if m.cfg.Closes {
		for w := uint8(1); w <= s.made; w++ {
			if s.open>>w&1 != 0 {
				m.fork(s, step{actor: byTarget, op: wiClose, a: w}).open &^= 1 << w
			}
		}
	}
	return m.out
}

// thread adds the steps of a kernel thread: it checks any copy of a window that it may have, and posts later.
func (m *windower) thread(s *windowState, i int) {
	th := &s.th[i]
	if th.names != 0 {
		n := m.fork(s, step{actor: uint8(i), op: wiPost, a: s.n, b: th.names})
		if s.dead == 0 {
			n.ops[s.n].names = th.names
			n.n++
		}
		n.th[i].names = 0
		return
	}
	if int(th.ops) == m.cfg.Ops {
		return
	}
	for w := uint8(1); w <= s.made; w++ {
		op := wiCheck
		switch {
		case m.cfg.Fault == NoSourceCheck:
			op = wiSkip
		case s.device != w:
			op = wiInvalid
		}
		n := m.fork(s, step{actor: uint8(i), op: op, a: w})
		n.th[i].ops++
		if op != wiInvalid {
			n.th[i].names = w
		}
	}
}

// registrar adds the steps of the host: it withdraws the window and registers the next one.
func (m *windower) registrar(s *windowState) {
	st := step{actor: byHost, a: s.made}
	switch s.host {
	case hServing:
		if int(s.made) < m.cfg.Registered {
			st.op = wiHide
			n := m.fork(s, st)
			n.device, n.host = 0, hHidden
		}
	case hHidden:
		if m.flying(s) && m.cfg.Fault != RemovedWhileFlying {
			return
		}
		st.op = wiRemove
		n := m.fork(s, st)
		n.proxy, n.mapped, n.host = 0, s.mapped&^(1<<s.made), hRemoved
	case hRemoved:
		st.a = s.made + 1
		st.op = wiAdd
		if m.cfg.Fault == DeviceFirst {
			st.op = wiShow
		}
		n := m.fork(s, st)
		n.made++
		n.mapped |= 1 << n.made
		n.open |= 1 << n.made
		n.host = hHalf
		if st.op == wiAdd {
			n.proxy = n.made
		} else {
			n.device = n.made
		}
	case hHalf:
		st.op = wiShow
		if m.cfg.Fault == DeviceFirst {
			st.op = wiAdd
		}
		n := m.fork(s, st)
		n.host, n.device, n.proxy = hServing, s.made, s.made
	}
}

func (m *windower) flying(s *windowState) bool {
	for _, o := range s.ops[:s.n] {
		if o.posted&^o.noted != 0 {
			return true
		}
	}
	return false
}

// take is one look of the proxy at the head of its queue: it checks, and posts a piece or refuses. The host changes what the
// proxy knows only between two such looks.
func (m *windower) take(s *windowState) {
	o := &s.ops[s.head]
	piece := uint8(signalPiece)
	if m.cfg.Cut && o.posted == 0 {
		piece = payloadPiece
	}
	ok := s.proxy != 0 && m.gen(s.proxy) == m.gen(o.names)
	if m.cfg.Fault == NoGenCheck {
		ok = s.proxy != 0
	}
	if m.cfg.Fault == CheckedOnce && o.posted != 0 {
		ok = true
	}
	if !ok {
		m.fork(s, step{actor: byProxy, op: wiRefuse, a: s.head, b: o.names}).dead = 1
		if o.names == s.made && s.device == s.made {
			m.fail("descriptor %d names window %d, which is the one registered, and is refused", s.head, o.names)
		}
		return
	}
	if m.cfg.Hold && o.posted != 0 && m.flying(s) {
		return
	}
	n := m.fork(s, step{actor: byProxy, op: wiTake, a: s.head, b: piece})
	n.ops[s.head].posted |= piece
	if piece == signalPiece {
		n.ops[s.head].to = s.proxy
		n.head++
		if s.proxy == 0 {
			m.fail("descriptor %d names window %d, and is posted while none is registered", s.head, o.names)
		}
	}
}

// land lets a piece take effect at the target. A signal does so in the window that it was posted to.
func (m *windower) land(s *windowState, i, p uint8) {
	o := &s.ops[i]
	if p == payloadPiece {
		m.fork(s, step{actor: byNetwork, op: wiLand, a: i}).ops[i].landed |= p
		return
	}
	closed := s.open>>o.to&1 == 0
	if closed && m.cfg.Fault != TargetTrusts {
		m.fork(s, step{actor: byNetwork, op: wiTargetRefuses, a: i, b: o.to}).ops[i].failed |= p
		return
	}
	m.fork(s, step{actor: byNetwork, op: wiRaise, a: i, b: o.to}).ops[i].landed |= p
	switch {
	case o.to != o.names:
		m.fail("the signal of descriptor %d, which names window %d, is raised in window %d", i, o.names, o.to)
	case closed:
		m.fail("the signal of descriptor %d is raised in window %d, which the target has withdrawn", i, o.to)
	case s.mapped>>o.to&1 == 0:
		m.fail("the signal of descriptor %d is raised by a mapping of window %d that was given back", i, o.to)
	}
}

// note lets the proxy see the end of a piece.
func (m *windower) note(s *windowState, i, p uint8) {
	o := &s.ops[i]
	if (o.landed|o.failed)&^o.noted&p == 0 {
		return
	}
	st := step{actor: byProxy, op: wiNote, a: i, b: p}
	if o.failed&p != 0 {
		st.op = wiNoteFailed
	}
	n := m.fork(s, st)
	n.ops[i].noted |= p
	n.dead |= o.failed & p >> 1
}

// done: every operation has begun, the host has come to the last window, and the queue is empty or dead.
func (m *windower) done(s *windowState) bool {
	for _, th := range s.th[:m.cfg.Threads] {
		if int(th.ops) != m.cfg.Ops || th.names != 0 {
			return false
		}
	}
	return s.host == hServing && int(s.made) == m.cfg.Registered && !m.flying(s) && (s.dead == 1 || s.head == s.n)
}

func (m *windower) hash(s *windowState) uint64 {
	var b [40]byte
	n := 0
	for _, o := range s.ops {
		n += copy(b[n:], []byte{o.names, o.to, o.posted, o.landed, o.noted, o.failed})
	}
	for _, t := range s.th {
		n += copy(b[n:], []byte{t.names, t.ops})
	}
	copy(b[n:], []byte{s.n, s.head, byte(s.host), s.made, s.device, s.proxy, s.mapped, s.open, s.dead})
	return hash(b[:])
}

// moved is true of every step: nobody looks twice.
func (m *windower) moved(_, _ *windowState) bool { return true }

func (m *windower) describe(st step) string { return st.text(windowActors, windowText) }

func (m *windower) summary(s *windowState) string {
	text := fmt.Sprintf("the device knows window %d, the proxy %d (0 is none), head %d, dead %d", s.device, s.proxy, s.head, s.dead)
	for i, o := range s.ops[:s.n] {
		text += fmt.Sprintf("; descriptor %d names %d, posted to %d", i, o.names, o.to)
	}
	return text
}
