// SPDX-License-Identifier: Apache-2.0

package model

// producer adds the steps of producer p.
func (m *machine) producer(s *state, p int) {
	pr := &s.prod[p]
	cfg := m.cfg
	who := func(op opcode, a, b uint8) step { return step{actor: uint8(p), op: op, a: a, b: b} }
	switch producerPC(pr.pc) {
	case pNext:
		if int(pr.op) == len(cfg.Programs[p]) {
			return
		}
		t := s.mem[locTicket]
		if s.mem[locAbort] != 0 {
			m.end(s, p, who(opAborted, 0, 0))
			return
		}
		switch {
		case cfg.Programs[p][pr.op] == 'f':
			n := m.fork(s, who(opFlushBegin, t, 0))
			n.prod[p].pc, n.prod[p].t = uint8(pFlush), t
		case cfg.Fault == FetchAddTicket:
			n := m.fork(s, who(opFetchAdd, t, 0))
			n.mem[locTicket] = m.add(t, 1)
			n.prod[p].pc, n.prod[p].t = uint8(pCredit), t
		default:
			n := m.fork(s, who(opLoadTicket, t, 0))
			n.prod[p].pc, n.prod[p].t = uint8(pCredit), t
		}
	case pCredit:
		c := s.load(p, locCredit)
		n := m.fork(s, who(opLoadCredit, c, 0))
		n.prod[p].c, n.prod[p].pc = c, uint8(pRefresh)
		if m.less(pr.t, c) {
			n.prod[p].c, n.prod[p].pc = 0, uint8(pReserve)
		}
	case pRefresh:
		m.refresh(s, p, who)
	case pNoRoom:
		n := m.fork(s, who(opRetry, 0, 0))
		m.retry(&n.prod[p])
		if s.mem[locAbort] != 0 {
			m.end(s, p, who(opAborted, 0, 0))
		}
		if int(s.timeouts) < cfg.Timeouts {
			m.end(s, p, who(opTimeout, 0, 0)).timeouts++
		}
	case pReserve:
		if s.mem[locTicket] != pr.t && cfg.Fault != FetchAddTicket {
			n := m.fork(s, who(opLostTicket, pr.t, 0))
			m.retry(&n.prod[p])
			return
		}
		m.post(s, p, who)
	case pFlush:
		idx := locCompleted
		if cfg.Fault == FlushByConsumed {
			idx = locConsumed
		}
		if s.mem[locAbort] != 0 {
			m.end(s, p, who(opAborted, 0, 0))
		}
		if m.less(s.mem[idx], pr.t) {
			return
		}
		m.end(s, p, who(opFlushEnd, s.mem[idx], 0))
		upTo := m.ordinal(pr.t)
		if missing := uint8(1<<upTo-1) &^ s.local; missing != 0 {
			m.fail("flush returned before put %d was locally complete", m.ticketOf(lowest(missing)))
		}
	case pWakeLook:
		// A full fence: the descriptor is visible before asleep is read.
		if s.buf[p].n != 0 && cfg.Fault != NoWakeFence {
			return
		}
		if s.mem[locAsleep] == 0 {
			m.end(s, p, who(opAwake, 0, 0))
			return
		}
		n := m.fork(s, who(opTakeAsleep, 0, 0))
		n.mem[locAsleep] = 0
		n.prod[p].pc = uint8(pWakeCall)
	case pWakeCall:
		n := m.end(s, p, who(opWake, 0, 0))
		if n.drv[0].pc == uint8(dAsleep) {
			n.drv[0].pc = uint8(dIdle)
		}
	}
}

// end forks to the producer's next operation.
func (m *machine) end(s *state, p int, st step) *state {
	n := m.fork(s, st)
	n.prod[p] = producer{op: s.prod[p].op + 1}
	return n
}

// retry goes back to the ticket, or with a ticket in hand only to the credit.
func (m *machine) retry(pr *producer) {
	pr.c = 0
	if m.cfg.Fault == FetchAddTicket {
		pr.pc = uint8(pCredit)
		return
	}
	pr.pc, pr.t = uint8(pNext), 0
}

// refresh reads how far the proxy has come and caches the credit by a plain store.
func (m *machine) refresh(s *state, p int, who func(opcode, uint8, uint8) step) {
	if s.buf[p].room() == 0 {
		return
	}
	pr := &s.prod[p]
	idx := locConsumed
	if m.cfg.Fault == CreditByCompleted {
		idx = locCompleted
	}
	c := m.add(s.mem[idx], m.cfg.Depth)
	if m.less(c, pr.c) && m.cfg.Fault != CreditNotMax {
		c = pr.c
	}
	n := m.fork(s, who(opRefresh, s.mem[idx], c))
	if c != pr.c {
		n.buf[p].push(locCredit, c, 0)
	}
	n.prod[p].c = 0
	switch {
	case m.less(pr.t, c):
		n.prod[p].pc = uint8(pReserve)
	default:
		n.prod[p].pc = uint8(pNoRoom)
		if m.cfg.Fault == CreditByCompleted && m.less(pr.t, m.add(s.mem[locConsumed], m.cfg.Depth)) {
			m.fail("ticket %d found no room although its slot is free (consumed %d)", pr.t, s.mem[locConsumed])
		}
	}
}

// post takes the ticket and issues slot words and hint. They are only buffered, which no other thread can tell from
// issuing them one by one, so one step is enough; crash takes care of a thread that dies amid them.
func (m *machine) post(s *state, p int, who func(opcode, uint8, uint8) step) {
	pr := &s.prod[p]
	t := pr.t
	if s.buf[p].room() < m.cfg.parts()+1 {
		return
	}
	i := m.ordinal(t)
	n := m.fork(s, who(opPost, t, 0))
	if m.cfg.Fault != FetchAddTicket {
		n.mem[locTicket] = m.add(t, 1)
	}
	slot := int(t) % m.cfg.Depth
	first := uint8(0)
	if m.cfg.Cell {
		n.buf[p].push(m.word(slot, m.cfg.Words), i+1, 0)
		if m.cfg.Fault != CellRelaxed {
			first = storeRelease
		}
	}
	n.buf[p].push(m.word(slot, 0), i+1, first)
	for w := 1; w < m.cfg.Words; w++ {
		n.buf[p].push(m.word(slot, w), i+1, 0)
	}
	if !m.cfg.NoHints {
		n.buf[p].push(locHint, m.add(t, 1), 0)
	}
	if m.cfg.Programs[p][pr.op] == 's' {
		n.signals |= 1 << i
	}
	n.posted |= 1 << i
	if int(i) >= int(s.head)+m.cfg.Depth {
		m.fail("slot %d is overwritten by ticket %d before ticket %d was taken from it", slot, t, m.ticketOf(i-uint8(m.cfg.Depth)))
	}
	op := pr.op + 1
	n.prod[p] = producer{op: op}
	if m.cfg.Sleep {
		n.prod[p] = producer{pc: uint8(pWakeLook), op: op - 1}
	}
}

// crash lets producer p die with some of its stores undone. Which of them became visible before is the interleaving's
// choice, so dropping all that are left covers every point between ticket and last word.
func (m *machine) crash(s *state, p int) {
	if !m.cfg.Crash || s.crashed != 0 {
		return
	}
	b := &s.buf[p]
	oldest := uint8(0xff)
	for i := range int(b.n) {
		if loc(b.e[i].at&^storeRelease) >= locSlot {
			oldest = min(oldest, b.e[i].val)
		}
	}
	if oldest == 0xff {
		return
	}
	n := m.fork(s, step{actor: uint8(p), op: opCrash, a: m.ticketOf(oldest - 1)})
	n.buf[p] = storeBuffer{}
	n.prod[p] = producer{pc: uint8(pDead), op: s.prod[p].op}
	n.crashed = oldest
}

func lowest(mask uint8) uint8 {
	var i uint8
	for mask&1 == 0 {
		mask >>= 1
		i++
	}
	return i
}
