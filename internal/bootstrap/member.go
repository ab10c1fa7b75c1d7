// SPDX-License-Identifier: Apache-2.0

package bootstrap

import "time"

// member is one rank's part in the agreement on who is lost. It is a state machine: events and messages go in, take
// hands out messages to send and decisions. It has no clock, does no I/O and draws no random number.
//
// What it relies on: messages between two ranks come in the order in which they were sent, or not at all from some point
// on (while a way is cut they may wait for ever); after ended or left of a rank nothing more comes from it, and it takes
// no more part. Silence may be wrong about a rank; that costs the rank its membership, never agreement.
//
// How: every rank keeps a row (whom it does not hear, who ended, who left, whom it wants out) and tells it to all when it has
// trouble. The lowest rank that a rank hears is its coordinator. A coordinator runs a ballot of Paxos for the epoch: promises
// bring the rows of all that it hears; it proposes the largest set that it finds in which all hear each other; the epoch ends
// when a quorum has accepted. A quorum is a majority of the epoch's set (half of it, if the lowest rank is in that half),
// or every rank of the set that has not ended, each of which saw that the others ended before it promised: so any number
// of ranks may die, while a minority that is merely cut off can decide nothing. It stops.
//
// An epoch also ends, with or without a loss, when all that are left ask for it: its verdict then says that its set is
// agreed on. So agreement number n is one epoch, the same on all, and nobody of its set has not asked for it.
//
// Whom one of those that promise wants out is not of the next set, though all hear it. That is no doubt about a way between
// two ranks, of which either may go: who is wanted out promises and votes like others, if there is no majority without it.
//
// Why the second kind of quorum is safe: if a majority decided otherwise, either one of it is among those that promise,
// and tells of what it accepted; or all of it ended, and what they had told anybody came before that end was seen.
type member struct {
	rank, size    int
	limit, period time.Duration

	epoch   uint32
	set     rankSet
	mine    row
	broken  rankSet // of mine.suspect: those that no sign of life clears
	silent  []time.Duration
	quiet   []int  // ticks since a sign of life
	agreed  uint32 // epochs so far that all had asked for
	rows    []*row
	told    *row // the last one sent in this epoch
	pending int  // ticks since trouble began in this epoch

	promised, accepted ballot
	value              verdict // of accepted
	top                ballot  // the highest seen
	held               ballot  // of a coordinator whose turn had not come, 0: none
	try                *attempt

	stopped bool
	why     string
	because string // what the driver saw last, for why

	send    []outgoing
	decided []decision
}

// row is what one rank sees of the others.
type row struct {
	suspect, ended, left, unwanted rankSet

	asks bool // for an epoch whose set is agreed on
}

// verdict is what an epoch decides: the next set, who of the others had said goodbye, and whether all of the set asked.
type verdict struct {
	set, left rankSet
	agreed    bool
}

// decision is a verdict as the group sees it.
type decision struct {
	epoch      uint32
	lost, left []int
	agreed     []int // the set, if all of it had asked for that
}

type outgoing struct {
	to int
	message
}

// Kinds of message.
const (
	msgRow      uint8 = 1 // row
	msgPrepare  uint8 = 2 // ballot
	msgPromise  uint8 = 3 // ballot, row, the accepted ballot and its verdict if there is one
	msgAccept   uint8 = 4 // ballot, verdict
	msgAccepted uint8 = 5 // ballot
	msgDecided  uint8 = 6 // verdict
	msgStop     uint8 = 7 // text: the sender takes no more part
)

// message is of one epoch: that whose set it is about.
type message struct {
	kind             uint8
	epoch            uint32
	ballot, accepted ballot
	row              row
	verdict          verdict
	text             string
}

func newMember(rank, size int, limit, period time.Duration) *member {
	return &member{rank: rank, size: size, limit: limit, period: period, set: fullRankSet(size),
		mine: newRow(size), broken: newRankSet(size), silent: make([]time.Duration, size), quiet: make([]int, size), rows: make([]*row, size)}
}

func newRow(size int) row {
	return row{suspect: newRankSet(size), ended: newRankSet(size), left: newRankSet(size), unwanted: newRankSet(size)}
}

func (r *row) clone() *row {
	return &row{r.suspect.clone(), r.ended.clone(), r.left.clone(), r.unwanted.clone(), r.asks}
}

func (r *row) equal(s *row) bool {
	return r.suspect.equal(s.suspect) && r.ended.equal(s.ended) && r.left.equal(s.left) && r.unwanted.equal(s.unwanted) && r.asks == s.asks
}

// gone is who takes no more part.
func (r *row) gone() rankSet { return r.ended.or(r.left) }

// take hands out what there is to send, in this order per rank, and what was decided since the last call.
func (m *member) take() ([]outgoing, []decision) {
	s, d := m.send, m.decided
	m.send, m.decided = nil, nil
	return s, d
}

// heard notes a sign of life.
func (m *member) heard(q int) {
	m.silent[q], m.quiet[q] = 0, 0
	if m.mine.suspect.has(q) && !m.broken.has(q) {
		m.mine.suspect.remove(q)
		m.react()
	}
}

// ended notes that q's process is certainly gone. Who is not certain calls cut.
func (m *member) ended(q int) {
	if !m.mine.left.has(q) {
		m.mine.ended.add(q)
		m.react()
	}
}

// left notes q's goodbye.
func (m *member) left(q int) {
	if !m.mine.ended.has(q) {
		m.mine.left.add(q)
		m.react()
	}
}

// cut notes that the way to q is unusable for good, while q may live.
func (m *member) cut(q int) {
	m.mine.suspect.add(q)
	m.broken.add(q)
	m.react()
}

// expel says that this rank wants q out, whether or not it lives.
func (m *member) expel(q int) {
	m.mine.unwanted.add(q)
	m.react()
}

// ask says that this rank waits for agreement number n, the next or one that has been.
func (m *member) ask(n uint32) {
	if n == m.agreed+1 && !m.mine.asks {
		m.mine.asks = true
		m.react()
	}
}

// unasked is the members of whom this rank does not know that they ask, itself included.
func (m *member) unasked() rankSet {
	out := m.set.less(m.mine.gone())
	for _, q := range out.list() {
		if r := m.rows[q]; q == m.rank && m.mine.asks || q != m.rank && r != nil && r.asks {
			out.remove(q)
		}
	}
	return out
}

// minQuiet ticks without a sign of life must have passed too: readers get their turn between ticks.
const minQuiet = 4

// tick says that time has passed. A tick that comes late shows that this process was not scheduled, and says nothing
// about the others: what goes beyond a period and a quarter is forgiven. So the silence that a starved rank counts is in
// time in which it ran.
func (m *member) tick(elapsed time.Duration) {
	if m.stopped {
		return
	}
	elapsed = min(elapsed, m.period+m.period/4)
	gone := m.mine.gone()
	for _, q := range m.set.list() {
		if q == m.rank || gone.has(q) || m.mine.suspect.has(q) {
			continue
		}
		m.silent[q] += elapsed
		m.quiet[q]++
		if m.silent[q] > m.limit && m.quiet[q] >= minQuiet {
			m.mine.suspect.add(q)
		}
	}
	if m.troubled() {
		m.pending++
	}
	if m.try != nil {
		m.try.age++
	}
	m.react()
}

// trouble is whom the row of a rank would have out of the set.
func (m *member) trouble(r *row) rankSet {
	return r.suspect.or(r.ended).or(r.unwanted).less(r.left).and(m.set)
}

// troubled says that the epoch is to end.
func (m *member) troubled() bool {
	if !m.trouble(&m.mine).empty() || m.unasked().empty() {
		return true
	}
	gone := m.mine.gone()
	for _, q := range m.set.list() {
		if r := m.rows[q]; r != nil && !gone.has(q) && !m.trouble(r).empty() {
			return true
		}
	}
	return false
}

// reach is the members that this rank hears, itself included.
func (m *member) reach() rankSet {
	return m.set.less(m.mine.suspect).less(m.mine.gone())
}

// coordinator is not one that somebody wants out, while there is another: nobody is to wait for it.
func (m *member) coordinator() int {
	reach := m.reach()
	if wanted := reach.less(m.unwanted()); !wanted.empty() {
		reach = wanted
	}
	return reach.list()[0]
}

// unwanted is whom anybody wants out, as far as this rank knows.
func (m *member) unwanted() rankSet {
	out := m.mine.unwanted
	for _, r := range m.rows {
		if r != nil {
			out = out.or(r.unwanted)
		}
	}
	return out
}

// react does what the state asks for after any change.
func (m *member) react() {
	if m.stopped {
		return
	}
	reach := m.reach()
	if living := m.set.less(m.mine.gone()); !reach.equal(living) && !reach.major(m.set) {
		why := "does not hear the majority of the ranks: "
		if 2*reach.count() == m.set.count() {
			why = "hears half of the ranks, and of two halves that with the lowest rank goes on: "
		}
		why += ranks(living.less(reach).list()) + " out of reach"
		if m.because != "" {
			why += ": " + m.because
		}
		m.stop(why)
		return
	}
	if m.held > m.promised && m.mayLead(m.held.rank()) {
		m.prepare(m.held.rank(), m.held)
	}
	troubled := m.troubled()
	if mine := !m.trouble(&m.mine).empty() || m.mine.asks; (mine || m.told != nil) && (m.told == nil || !m.told.equal(&m.mine)) {
		m.told = m.mine.clone()
		m.tell(message{kind: msgRow, row: *m.told})
	}
	switch {
	case m.try != nil && m.try.proposed: // to be brought to its end: a verdict that some have accepted is not to wait for another day
		m.propose()
	case !troubled:
		m.pending, m.try = 0, nil
	case m.coordinator() == m.rank || m.pending > m.patience():
		m.propose()
	}
}

// stop ends this rank's part, for good.
func (m *member) stop(why string) {
	m.tell(message{kind: msgStop, text: clip(why)})
	m.stopped, m.why, m.try = true, why, nil
}

// tell sends to every other member that may still read it.
func (m *member) tell(msg message) {
	msg.epoch = m.epoch
	for _, q := range m.set.less(m.mine.gone()).list() {
		if q != m.rank {
			m.send = append(m.send, outgoing{q, msg})
		}
	}
}

func (m *member) reply(to int, msg message) {
	msg.epoch = m.epoch
	m.send = append(m.send, outgoing{to, msg})
}

// receive takes a message of another rank. Those of an epoch that is over are late; those of one to come cannot be,
// since whoever is there has sent us the decision first. Who stopped in an earlier epoch takes no part in this one either.
func (m *member) receive(from int, msg message) {
	if msg.kind == msgStop && msg.epoch < m.epoch {
		msg.epoch = m.epoch
	}
	if m.stopped || msg.epoch != m.epoch || from == m.rank || !m.set.has(from) {
		return
	}
	m.heard(from)
	if m.stopped || msg.epoch != m.epoch || m.mine.gone().has(from) {
		return
	}
	m.top = max(m.top, msg.ballot)
	switch msg.kind {
	case msgRow:
		m.rows[from] = msg.row.clone()
	case msgPrepare:
		m.prepare(from, msg.ballot)
	case msgPromise:
		m.promise(from, msg)
	case msgAccept:
		if msg.ballot >= m.promised && msg.verdict.set.within(m.set) {
			m.promised, m.accepted, m.value = msg.ballot, msg.ballot, msg.verdict
			m.reply(from, message{kind: msgAccepted, ballot: msg.ballot})
		}
	case msgAccepted:
		m.vote(from, msg.ballot)
	case msgDecided:
		if msg.verdict.set.within(m.set) {
			m.apply(msg.verdict)
		}
	case msgStop:
		m.mine.ended.add(from)
	}
	m.react()
}

// apply ends the epoch. The decision goes to all of the old set before anything of the new epoch does.
func (m *member) apply(v verdict) {
	m.tell(message{kind: msgDecided, verdict: v})
	left := m.set.and(v.left)
	d := decision{epoch: m.epoch + 1, lost: m.set.less(v.set).less(left).list(), left: left.less(v.set).list()}
	m.epoch++
	m.set = v.set.clone()
	m.told, m.pending, m.try = nil, 0, nil
	m.promised, m.accepted, m.top, m.held, m.value = 0, 0, 0, 0, verdict{}
	clear(m.rows)
	if !m.set.has(m.rank) {
		m.stopped, m.why = true, "the other ranks agree that this one is lost"
		return
	}
	if v.agreed {
		m.agreed++
		m.mine.asks, d.agreed = false, m.set.list()
	}
	m.decided = append(m.decided, d)
	m.react()
}
