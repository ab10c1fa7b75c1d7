// SPDX-License-Identifier: Apache-2.0

package bootstrap

import "slices"

// ballot orders the attempts of an epoch: round, then rank. 0 is none.
type ballot uint64

const ballotRankBits = 16 // MaxRanks

func (b ballot) next(rank int) ballot { return (b>>ballotRankBits+1)<<ballotRankBits | ballot(rank) }
func (b ballot) rank() int            { return int(b & (1<<ballotRankBits - 1)) }

// attempt is a ballot that this rank coordinates.
type attempt struct {
	ballot   ballot
	need     rankSet // whose promises and votes are asked for
	got      rankSet // promised
	seen     []*row  // as promised
	proposed bool
	whole    bool // need is a quorum because all others are known to be gone
	accepted ballot
	verdict  verdict
	votes    rankSet
	age      int // ticks
}

// patience is after how many ticks a rank stops waiting for a better coordinator, and a coordinator tries again. Ranks
// differ in it, so that two do not hinder each other for ever.
func (m *member) patience() int {
	return 2*int(m.limit/m.period) + 3*(m.rank%16)
}

// partners is whose promises a ballot of this rank has to have: all that it hears and that hear it, without those that somebody
// wants out if they are not needed.
func (m *member) partners() rankSet {
	need := m.reach()
	for _, q := range need.list() {
		if r := m.rows[q]; r != nil && q != m.rank && r.suspect.has(m.rank) {
			need.remove(q)
		}
	}
	if wanted := need.less(m.unwanted()); wanted.major(m.set) {
		return wanted
	}
	return need
}

// propose begins a ballot, or begins again where the one under way no longer fits.
func (m *member) propose() {
	need := m.partners()
	if t := m.try; t != nil && t.age <= m.patience() && t.need.equal(need) && !m.canDoBetter(t) {
		return
	}
	m.try = nil
	if !need.major(m.set) && !need.equal(m.set.less(m.mine.gone())) {
		return // who does not hear us may be able to decide
	}
	m.top = max(m.top, m.promised).next(m.rank)
	m.try = &attempt{ballot: m.top, need: need, got: newRankSet(m.size), seen: make([]*row, m.size), votes: newRankSet(m.size)}
	t := m.try
	for _, q := range need.list() {
		if q != m.rank {
			m.reply(q, message{kind: msgPrepare, ballot: t.ballot})
		}
	}
	m.promised = t.ballot
	m.promise(m.rank, message{ballot: t.ballot, accepted: m.accepted, verdict: m.value, row: m.mine})
}

// canDoBetter: all have promised, but not all had seen the ends that make them a quorum; now they have.
func (m *member) canDoBetter(t *attempt) bool {
	if t.proposed || !t.got.equal(t.need) {
		return false
	}
	m.rows[m.rank] = &m.mine
	return m.sawEnds(t.need, m.rows)
}

// sawEnds reports whether each of need has seen all others of the set end or leave.
func (m *member) sawEnds(need rankSet, rows []*row) bool {
	others := m.set.less(need)
	for _, q := range need.list() {
		if rows[q] == nil || !others.within(rows[q].gone()) {
			return false
		}
	}
	return true
}

// mayLead: a coordinator that is not the lowest rank that we hear has to wait until the lowest had its chance.
func (m *member) mayLead(q int) bool { return q <= m.coordinator() || m.pending > m.patience() }

// prepare answers a coordinator, once it may lead: it may have seen the end of a lower rank before we do.
func (m *member) prepare(from int, b ballot) {
	if b <= m.promised || b.rank() != from {
		return
	}
	if !m.mayLead(from) {
		m.held = max(m.held, b)
		return
	}
	m.promised = b
	m.reply(from, message{kind: msgPromise, ballot: b, accepted: m.accepted, verdict: m.value, row: *m.mine.clone()})
}

func (m *member) promise(from int, msg message) {
	t := m.try
	if from != m.rank {
		m.rows[from] = msg.row.clone()
	}
	if t == nil || t.proposed || msg.ballot != t.ballot || !t.need.has(from) {
		return
	}
	t.got.add(from)
	t.seen[from] = msg.row.clone()
	if msg.accepted > t.accepted {
		t.accepted, t.verdict = msg.accepted, msg.verdict
	}
	if !t.got.equal(t.need) {
		return
	}
	t.whole = m.sawEnds(t.need, t.seen)
	if !t.whole && !t.need.major(m.set) {
		return
	}
	if t.accepted == 0 {
		t.verdict = m.choose(t)
		if t.verdict.set.equal(m.set) && !t.verdict.agreed {
			m.try = nil // all have been heard again meanwhile
			return
		}
	}
	t.proposed = true
	for _, q := range t.need.list() {
		if q != m.rank {
			m.reply(q, message{kind: msgAccept, ballot: t.ballot, verdict: t.verdict})
		}
	}
	if t.ballot >= m.promised {
		m.promised, m.accepted, m.value = t.ballot, t.ballot, t.verdict
		m.vote(m.rank, t.ballot)
	}
}

func (m *member) vote(from int, b ballot) {
	t := m.try
	if t == nil || !t.proposed || b != t.ballot || !t.need.has(from) {
		return
	}
	t.votes.add(from)
	if t.votes.major(m.set) || t.whole && t.votes.equal(t.need) {
		m.apply(t.verdict)
	}
}

// choose makes a verdict of the rows: whom anybody saw end or wants out is out; then, while two are left of which one does
// not hear the other, that rank with the most such pairs goes, of equal ones the one that more do not hear, then the highest.
// The set is agreed on if all of it had asked for that when they promised.
func (m *member) choose(t *attempt) verdict {
	set, left := t.need.clone(), newRankSet(m.size)
	for _, q := range t.need.list() {
		set = set.less(t.seen[q].gone()).less(t.seen[q].unwanted)
		left = left.or(t.seen[q].left)
	}
	for {
		worst, most, unheard := -1, 0, 0
		in := set.list()
		for _, a := range in {
			bad, deaf := 0, 0
			for _, b := range in {
				ab, ba := t.seen[a].suspect.has(b), t.seen[b].suspect.has(a)
				if ab || ba {
					bad++
				}
				if ba {
					deaf++
				}
			}
			if bad > 0 && (bad > most || bad == most && deaf >= unheard) {
				worst, most, unheard = a, bad, deaf
			}
		}
		if worst < 0 {
			return verdict{set: set, left: left.and(m.set), agreed: !slices.ContainsFunc(in, func(q int) bool { return !t.seen[q].asks })}
		}
		set.remove(worst)
	}
}
