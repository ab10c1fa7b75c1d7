// SPDX-License-Identifier: Apache-2.0

package model

// network adds the steps of a network that completes operations out of order.
func (m *machine) network(s *state) {
	visible := m.payloads(s)
	for i := range s.head {
		bit := uint8(1) << i
		st := step{actor: actorNet, a: m.ticketOf(i)}
		if s.local&bit == 0 {
			st.op = opLocal
			m.fork(s, st).local |= bit
		}
		if visible&bit == 0 {
			st.op = opDeliver
			m.fork(s, st).mem[locPayload+loc(i)] = 1
		}
		if s.signals&^s.raised&bit != 0 {
			need := bit<<1 - 1
			if m.cfg.Fault == SignalOwnPut {
				need = bit
			}
			if visible&need == need {
				st.op = opRaise
				m.raise(s, i, st)
			}
		}
	}
}

// harvest lets the lock's holder notice one completion, in any order, and raise that operation's counter.
func (m *machine) harvest(s *state, d int, who func(opcode, uint8, uint8) step) {
	if s.driverRoom(d) == 0 {
		return
	}
	for i := range s.head {
		bit := uint8(1) << i
		if s.local&^s.noted&bit == 0 {
			continue
		}
		n := m.fork(s, who(opNote, m.ticketOf(i), 0))
		n.noted |= bit
		if m.cfg.Fault == EndedPerSlot {
			m.endPerSlot(n, d, i)
			continue
		}
		m.complete(n, d)
	}
}

// endPerSlot is complete with a memory of one bit per slot.
func (m *machine) endPerSlot(n *state, d int, i uint8) {
	bit := func(i uint8) uint8 { return 1 << (int(i) % m.cfg.Depth) }
	if i != n.completed {
		n.ended |= bit(i)
		return
	}
	for n.completed++; n.completed != n.head && n.ended&bit(n.completed) != 0; n.completed++ {
		n.ended &^= bit(n.completed)
	}
	n.buf[maxProducers+d].push(locCompleted, m.ticketOf(n.completed), storeRelease)
}

// detect declares the queue dead where a ticket was taken and its descriptor does not come. The timer is a choice: it
// may run out only where the state will not change by itself, or, with Spurious, at any time.
func (m *machine) detect(s *state, d int, who func(opcode, uint8, uint8) step) {
	th := maxProducers + d
	if !m.cfg.Crash && !m.cfg.Spurious || s.driverRoom(d) == 0 || m.headFull(s, m.ticketOf(s.head)) {
		return
	}
	if !m.cfg.Spurious && s.crashed != s.head+1 {
		return
	}
	t := m.ticketOf(s.head)
	ahead := m.less(t, s.mem[locHint])
	switch m.cfg.Detect {
	case DetectLaterSlot:
		for k := 1; k < m.cfg.Depth; k++ {
			ahead = ahead || m.headFull(s, m.add(t, k))
		}
	case DetectTicket:
		ahead = m.less(t, s.mem[locTicket])
	}
	if ahead {
		m.fork(s, who(opDeclare, t, 0)).buf[th].push(locAbort, 1, storeRelease)
	}
}
