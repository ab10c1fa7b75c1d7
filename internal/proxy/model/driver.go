// SPDX-License-Identifier: Apache-2.0

package model

// driverCap bounds the stores of a driver that are under way at once; beyond it the driver waits for one to be visible.
const driverCap = 4

func (s *state) driverRoom(d int) int { return driverCap - int(s.buf[maxProducers+d].n) }

// driver adds the steps of driver d: 0 is the progress thread (or the backstop), 1 a waiting device thread.
func (m *machine) driver(s *state, d int) {
	th := maxProducers + d
	dr := &s.drv[d]
	who := func(op opcode, a, b uint8) step { return step{actor: uint8(th), op: op, a: a, b: b} }
	switch driverPC(dr.pc) {
	case dIdle:
		if s.mem[locLock] == 0 && (d == 0 || m.running(s)) {
			n := m.fork(s, who(opLock, 0, 0))
			n.mem[locLock] = 1
			n.drv[d] = driver{pc: uint8(dPass)}
		}
		if d == 0 && m.cfg.Sleep && s.driverRoom(d) > 0 {
			n := m.fork(s, who(opSetAsleep, 0, 0))
			n.buf[th].push(locAsleep, 1, 0)
			n.drv[d].pc = uint8(dFenceAsleep)
		}
	case dPass:
		m.pass(s, d, who)
	case dRead:
		m.read(s, d, who)
	case dCopy:
		t := m.ticketOf(s.head)
		for w := range m.cfg.parts() {
			if dr.mask&(1<<w) != 0 {
				continue
			}
			n := m.fork(s, who(opCopy, uint8(w), t))
			m.keep(n, d, w, s.mem[m.word(int(t)%m.cfg.Depth, w)])
		}
	case dTake:
		m.take(s, d, who)
	case dSignal:
		m.signal(s, d, who)
	case dFenceAsleep:
		// A full fence: asleep is visible before the last look.
		if s.buf[th].n != 0 && m.cfg.Fault != NoSleepFence {
			return
		}
		if m.cfg.Remote {
			// It makes all stores of all threads visible, which is to say that it comes after they are.
			for p := range m.cfg.Programs {
				if s.buf[p].n != 0 {
					return
				}
			}
		}
		n := m.fork(s, who(opFence, 0, 0))
		n.drv[d].pc = uint8(dRecheck)
	case dRecheck:
		if s.mem[locLock] == 0 {
			n := m.fork(s, who(opLock, 0, 0))
			n.mem[locLock] = 1
			n.drv[d] = driver{pc: uint8(dPass), last: 1}
			return
		}
		if m.cfg.Fault == SleepIfBusy {
			m.fork(s, who(opBusy, 0, 0)).drv[d].pc = uint8(dSleepCall)
			return
		}
		m.stayAwake(m.fork(s, who(opBusy, 0, 0)), d)
	case dSleepCall:
		// The futex call compares and sleeps at once.
		if s.load(th, locAsleep) == 0 {
			m.fork(s, who(opNoSleep, 0, 0)).drv[d] = driver{}
			return
		}
		m.fork(s, who(opSleep, 0, 0)).drv[d].pc = uint8(dAsleep)
	case dAsleep:
		if m.cfg.Backstop && s.driverRoom(d) > 0 {
			m.stayAwake(m.fork(s, who(opBackstop, 0, 0)), d)
		}
	}
}

func (m *machine) running(s *state) bool {
	for p, prog := range m.cfg.Programs {
		if int(s.prod[p].op) != len(prog) && s.prod[p].pc != uint8(pDead) {
			return true
		}
	}
	return false
}

func (m *machine) stayAwake(n *state, d int) {
	n.buf[maxProducers+d].push(locAsleep, 0, 0)
	n.drv[d] = driver{}
}

// retired counts the puts that no longer take a place in the table of operations in flight.
func (m *machine) retired(s *state) int {
	if !m.cfg.Async {
		return int(s.head)
	}
	over := s.noted & m.payloads(s) & (s.raised | ^s.signals)
	n := 0
	for over>>n&1 != 0 && n < int(s.head) {
		n++
	}
	return n
}

func (m *machine) hasRoom(s *state) bool { return int(s.head)-m.retired(s) < max(m.cfg.InFlight, 1) }

// pass adds what the lock's holder may do between two descriptors.
func (m *machine) pass(s *state, d int, who func(opcode, uint8, uint8) step) {
	th := maxProducers + d
	cfg := m.cfg
	aborted := s.load(th, locAbort) != 0
	last := s.drv[d].last == 1
	if m.hasRoom(s) && (!aborted || cfg.Fault == ConsumeAfterAbort) {
		h := s.mem[locHint]
		look := h != s.seen
		switch {
		case cfg.Fault == ClearHint:
			look = h != noHint
		case cfg.Hint == HintAhead:
			look = m.less(m.ticketOf(s.head), h)
		}
		if look && (!last || cfg.Fault == RecheckByHint) {
			n := m.fork(s, who(opHintLook, h, m.ticketOf(s.head)))
			n.seen = h
			if cfg.Hint == HintAhead {
				n.seen = s.seen
			}
			if cfg.Fault == ClearHint {
				n.mem[locHint], n.seen = noHint, s.seen
			}
			n.drv[d].pc = uint8(dRead)
		}
		if last && cfg.Fault == RecheckByHint && !look {
			m.toSleep(m.fork(s, who(opUnlock, 0, 0)), d)
		}
		if (!cfg.NoSweep || last) && !(last && cfg.Fault == RecheckByHint) {
			n := m.fork(s, who(opSweepLook, m.ticketOf(s.head), 0))
			n.drv[d].pc = uint8(dRead)
		}
	}
	if cfg.Async {
		m.harvest(s, d, who)
	}
	if !aborted {
		m.detect(s, d, who)
	}
	if !last && s.driverRoom(d) > 0 {
		n := m.fork(s, who(opUnlock, 0, 0))
		m.unlock(n, d)
		n.drv[d] = driver{}
	}
}

func (m *machine) unlock(n *state, d int) {
	flags := uint8(storeRelease)
	if m.cfg.Fault == UnlockRelaxed {
		flags = 0
	}
	n.buf[maxProducers+d].push(locLock, 0, flags)
}

// toSleep ends the last look, which found nothing.
func (m *machine) toSleep(n *state, d int) {
	m.unlock(n, d)
	n.drv[d] = driver{pc: uint8(dSleepCall)}
}

// read looks at the head slot's words in any order. A word's one load both checks its phase and is its copy.
func (m *machine) read(s *state, d int, who func(opcode, uint8, uint8) step) {
	t := m.ticketOf(s.head)
	dr := &s.drv[d]
	if m.cfg.Budget && dr.mask == 0 && dr.last == 0 {
		m.fork(s, who(opBudget, 0, 0)).drv[d] = driver{pc: uint8(dPass)}
	}
	for w := range m.cfg.parts() {
		if dr.mask&(1<<w) != 0 {
			continue
		}
		v := s.mem[m.word(int(t)%m.cfg.Depth, w)]
		if w == m.cfg.Words { // the cell: nothing to check, but word 0 must have been seen
			if dr.mask&1 != 0 || m.cfg.Fault == CellFirst {
				m.keep(m.fork(s, who(opReadCell, t, 0)), d, w, v)
			}
			continue
		}
		if m.full(v, t) || m.cfg.Fault == FirstWordOnly && w != 0 {
			if m.cfg.Fault == FirstWordOnly && w != 0 && dr.mask&1 == 0 {
				continue // word 0 first
			}
			n := m.fork(s, who(opRead, uint8(w), t))
			m.keep(n, d, w, v)
			if m.cfg.Fault == ConsumedEarly && n.drv[d].pc == uint8(dTake) {
				n.buf[maxProducers+d].push(locConsumed, m.add(t, 1), 0)
				n.drv[d] = driver{pc: uint8(dCopy), last: dr.last}
			}
			continue
		}
		if dr.last == 1 {
			if s.driverRoom(d) > 0 {
				m.toSleep(m.fork(s, who(opEmpty, uint8(w), t)), d)
			}
			continue
		}
		m.fork(s, who(opEmpty, uint8(w), t)).drv[d] = driver{pc: uint8(dPass)}
	}
}

// keep stores word w of driver d's copy.
func (m *machine) keep(n *state, d, w int, v uint8) {
	dr := &n.drv[d]
	dr.copied[w] = v
	dr.mask |= 1 << w
	if dr.mask == 1<<m.cfg.parts()-1 {
		dr.pc = uint8(dTake)
	}
}

// take turns the copy into an operation and frees the slot.
func (m *machine) take(s *state, d int, who func(opcode, uint8, uint8) step) {
	th := maxProducers + d
	need := 3 // consumed, payload, completed
	if m.cfg.Async {
		need = 1
	}
	if s.driverRoom(d) < need+int(s.drv[d].last) {
		return
	}
	i := s.head
	n := m.fork(s, who(opTake, m.ticketOf(i), 0))
	for w := range m.cfg.parts() {
		switch v := s.drv[d].copied[w]; {
		case v == i+1:
		case v == 0:
			m.fail("descriptor %d is torn: word %d was never written", m.ticketOf(i), w)
			return
		default:
			m.fail("descriptor %d is torn: word %d is of ticket %d", m.ticketOf(i), w, m.ticketOf(v-1))
			return
		}
	}
	if s.load(th, locAbort) != 0 {
		m.fail("descriptor %d is taken from a queue declared dead", m.ticketOf(i))
	}
	n.head++
	if s.drv[d].last == 1 {
		n.buf[th].push(locAsleep, 0, 0)
	}
	if m.cfg.Fault != ConsumedEarly {
		n.buf[th].push(locConsumed, m.add(m.ticketOf(i), 1), 0)
	}
	if m.cfg.Async {
		m.more(n, d)
		return
	}
	if m.cfg.Fault != SignalFirst || s.signals>>i&1 == 0 {
		n.buf[th].push(locPayload+loc(i), 1, 0)
	}
	n.local |= 1 << i
	n.noted |= 1 << i
	if s.signals>>i&1 != 0 {
		n.drv[d] = driver{pc: uint8(dSignal)}
		return
	}
	m.complete(n, d)
	m.more(n, d)
}

// more goes on to the next descriptor, or back to the pass where the table is full.
func (m *machine) more(n *state, d int) {
	n.drv[d] = driver{pc: uint8(dRead)}
	if !m.hasRoom(n) {
		n.drv[d].pc = uint8(dPass)
	}
}

// signal raises the signal of the put just taken. The add is a release: it waits for every payload before it.
func (m *machine) signal(s *state, d int, who func(opcode, uint8, uint8) step) {
	th := maxProducers + d
	i := s.head - 1
	relaxed := m.cfg.Fault == SignalRelaxed || m.cfg.Fault == SignalFirst
	if s.buf[th].n != 0 && !relaxed || s.driverRoom(d) < 2 {
		return
	}
	m.raise(s, i, who(opRaise, m.ticketOf(i), 0))
	n := &m.out[len(m.out)-1].state
	if m.cfg.Fault == SignalFirst {
		n.buf[th].push(locPayload+loc(i), 1, 0)
	}
	m.complete(n, d)
	m.more(n, d)
}

// raise adds to NET. The target is folded into this step: whoever sees the new value and then reads the window sees
// memory as it is now or later.
func (m *machine) raise(s *state, i uint8, st step) {
	n := m.fork(s, st)
	n.mem[locNet]++
	n.raised |= 1 << i
	if missing := uint8(1<<(i+1)-1) &^ m.payloads(s); missing != 0 {
		m.fail("signal of ticket %d is seen before the payload of ticket %d", m.ticketOf(i), m.ticketOf(lowest(missing)))
	}
}

// complete publishes the contiguous prefix of completions.
func (m *machine) complete(n *state, d int) {
	c := n.completed
	for n.noted>>c&1 != 0 {
		c++
	}
	if m.cfg.Fault == CompletedCounts {
		c = 0
		for v := n.noted; v != 0; v >>= 1 {
			c += v & 1
		}
	}
	if c != n.completed {
		n.completed = c
		n.buf[maxProducers+d].push(locCompleted, m.ticketOf(c), storeRelease)
	}
}
