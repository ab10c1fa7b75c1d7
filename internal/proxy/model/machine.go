// SPDX-License-Identifier: Apache-2.0

package model

import "fmt"

// machine computes successors of one Config. It is used by one goroutine.
type machine struct {
	cfg *Config
	forks[state]
}

func (c Config) check(limit int) (Result, error) {
	if err := c.validate(); err != nil {
		return Result{}, err
	}
	return explore(c.Name, &machine{cfg: &c}, limit)
}

func (m *machine) word(slot, w int) loc { return locSlot + loc(slot*maxWords+w) }

// ticketOf turns the i-th put of the run into its ticket, ordinal does the reverse. Protocol steps work on tickets,
// ghosts on ordinals, which never wrap.
func (m *machine) ticketOf(i uint8) uint8 { return uint8((m.cfg.Start + int(i)) % m.cfg.Wrap) }
func (m *machine) ordinal(t uint8) uint8 {
	return uint8((int(t) - m.cfg.Start + m.cfg.Wrap) % m.cfg.Wrap)
}
func (m *machine) add(t uint8, d int) uint8 { return uint8((int(t) + d) % m.cfg.Wrap) }

// less is the rolling compare a < b.
func (m *machine) less(a, b uint8) bool {
	if m.cfg.Fault == PlainCompare {
		return a < b
	}
	d := (int(b) - int(a) + m.cfg.Wrap) % m.cfg.Wrap
	return d != 0 && d < m.cfg.Wrap/2
}

func (m *machine) phase(t uint8) uint8 { return uint8(int(t)/m.cfg.Depth)&1 ^ 1 }

// full reports whether a slot word carries the phase that ticket t expects. A word's value is the ordinal of the put
// that wrote it, plus 1; the protocol looks only at the phase, the rest is a ghost that shows tearing.
func (m *machine) full(v, t uint8) bool {
	if v != 0 {
		return m.phase(m.ticketOf(v-1)) == m.phase(t)
	}
	if m.cfg.Fault == ZeroedAnywhere {
		return m.phase(t) == 0
	}
	// An untouched slot: as if the tickets before Start had gone by, that is, the phase of one lap before.
	s, d := m.cfg.Start, m.cfg.Depth
	first := s + (int(t)%d-s%d+d)%d // first ticket at or after Start that uses this slot
	return m.phase(m.add(uint8(first%m.cfg.Wrap), 0))^1 == m.phase(t)
}

func (m *machine) headFull(s *state, t uint8) bool {
	for w := range m.cfg.Words {
		if !m.full(s.mem[m.word(int(t)%m.cfg.Depth, w)], t) {
			return false
		}
	}
	return true
}

func (m *machine) initial() state {
	var s state
	t := m.ticketOf(0)
	s.mem[locTicket], s.mem[locHint], s.mem[locConsumed], s.mem[locCompleted] = t, t, t, t
	s.mem[locCredit] = m.add(t, m.cfg.Depth)
	s.seen = t
	if m.cfg.Fault == ClearHint {
		s.mem[locHint] = noHint
	}
	return s
}

// noHint is a cleared hint (only under ClearHint).
const noHint = 0xff

func (m *machine) successors(s *state) []next[state] {
	m.out = m.out[:0]
	for p := range m.cfg.Programs {
		m.producer(s, p)
		m.crash(s, p)
	}
	for d := range m.cfg.Drivers {
		m.driver(s, d)
	}
	if m.cfg.Async {
		m.network(s)
	}
	for th := range s.buf {
		for i := range int(s.buf[th].n) {
			if s.buf[th].visible(i) {
				m.show(s, th, i)
			}
		}
	}
	for i := range m.out {
		m.invariant(&m.out[i])
	}
	return m.out
}

// show makes a buffered store visible.
func (m *machine) show(s *state, th, i int) {
	e := s.buf[th].e[i]
	l := loc(e.at &^ storeRelease)
	n := m.fork(s, step{actor: uint8(th), op: opShow, a: uint8(l), b: e.val})
	old := n.mem[l]
	n.mem[l] = e.val
	n.buf[th].remove(i)
	switch l {
	case locConsumed, locCompleted:
		if m.ordinal(e.val) < m.ordinal(old) {
			m.fail("%v went back from %d to %d", l, old, e.val)
		}
	}
}

// invariant checks what holds in each state.
func (m *machine) invariant(n *next[state]) {
	if n.bad != "" {
		return
	}
	s := &n.state
	t, con, com := m.ordinal(s.mem[locTicket]), m.ordinal(s.mem[locConsumed]), m.ordinal(s.mem[locCompleted])
	switch {
	case com > con:
		n.bad = fmt.Sprintf("completed %d is ahead of consumed %d", s.mem[locCompleted], s.mem[locConsumed])
	case con > t:
		n.bad = fmt.Sprintf("consumed %d is ahead of ticket %d", s.mem[locConsumed], s.mem[locTicket])
	case int(t)-int(con) > m.cfg.Depth && m.cfg.Fault != FetchAddTicket:
		n.bad = fmt.Sprintf("ticket %d is more than %d ahead of consumed %d", s.mem[locTicket], m.cfg.Depth, s.mem[locConsumed])
	}
}

func (m *machine) hash(s *state) uint64 {
	var b [(stateBytes + 7) / 8 * 8]byte
	s.encode(&b)
	return hash(b[:])
}

// moved counts what is done to descriptors, not words that are read.
func (m *machine) moved(from, to *state) bool {
	if to.head != from.head || to.noted != from.noted || to.raised != from.raised || to.posted != from.posted {
		return true
	}
	for p := range to.prod {
		if to.prod[p].op != from.prod[p].op || to.buf[p].n > 0 {
			return true
		}
	}
	return false
}

func (m *machine) done(s *state) bool {
	for p, prog := range m.cfg.Programs {
		if int(s.prod[p].op) != len(prog) && s.prod[p].pc != uint8(pDead) {
			return false
		}
	}
	for th := range s.buf {
		if s.buf[th].n != 0 {
			return false
		}
	}
	if s.mem[locAbort] != 0 || s.crashed != 0 {
		return true // after a crash every wait must end, no more
	}
	t := m.ordinal(s.mem[locTicket])
	all := uint8(1<<t - 1)
	return s.mem[locLock] == 0 && s.head == t && m.ordinal(s.mem[locConsumed]) == t && m.ordinal(s.mem[locCompleted]) == t &&
		s.noted == all && s.posted == all && s.raised == s.signals && m.payloads(s) == all
}

func (m *machine) payloads(s *state) uint8 {
	var v uint8
	for i := range maxPuts {
		v |= s.mem[locPayload+loc(i)] << i
	}
	return v
}
