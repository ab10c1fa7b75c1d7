// SPDX-License-Identifier: Apache-2.0

package bootstrap

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// world runs members against one another in virtual time. Ways are FIFO; what is sent while a way is cut waits for the
// way's return, as TCP would have it.
type world struct {
	n             int
	tcp           bool // sockets' ends show nothing more than that the way is gone
	limit, period time.Duration
	now           time.Duration
	m             []*member
	next          []time.Duration // of each member's tick
	last          []time.Duration // its tick before
	dead, told    []bool
	asleep        []time.Duration // does nothing until then
	way           [][]way
	delay         func(from, to int) time.Duration
	log           [][]decision
	trace         []string
}

type way struct {
	queue []flight
	cut   time.Duration // until then
	clear time.Duration // arrival of the last one sent
	over  bool          // nothing more can be sent
}

type flight struct {
	at  time.Duration
	msg message // kind 0: a heartbeat
	end bool    // the socket's end
	cut bool    // the end of one that shows nothing more than that the way is gone
}

func newWorld(n int, limit, period time.Duration, delay func(int, int) time.Duration) *world {
	w := &world{n: n, limit: limit, period: period, delay: delay, next: make([]time.Duration, n), last: make([]time.Duration, n),
		dead: make([]bool, n), told: make([]bool, n), asleep: make([]time.Duration, n), log: make([][]decision, n)}
	for r := range n {
		w.m = append(w.m, newMember(r, n, limit, period))
		w.way = append(w.way, make([]way, n))
		w.next[r] = period * time.Duration(r+1) / time.Duration(n)
	}
	return w
}

func (w *world) put(from, to int, f flight) {
	y := &w.way[from][to]
	if y.over {
		return
	}
	f.at = max(w.now+w.delay(from, to), y.clear)
	y.clear = f.at
	y.queue = append(y.queue, f)
}

// flush sends what a member has to send and notes what it decided.
func (w *world) flush(r int) {
	send, decided := w.m[r].take()
	for _, o := range send {
		w.note("%d>%d %s", r, o.to, o.message)
		w.put(r, o.to, flight{msg: o.message})
	}
	for _, d := range decided {
		w.note("%d decides %+v", r, d)
		w.log[r] = append(w.log[r], d)
	}
	if w.m[r].stopped && !w.told[r] {
		w.told[r] = true
		w.note("%d stopped: %s", r, w.m[r].why)
	}
}

func (w *world) note(f string, a ...any) {
	w.trace = append(w.trace, fmt.Sprintf("%8v ", w.now)+fmt.Sprintf(f, a...))
}

func (m message) String() string {
	names := []string{"heartbeat", "row", "prepare", "promise", "accept", "accepted", "decided", "stop"}
	s := fmt.Sprintf("%s e%d b%x", names[m.kind], m.epoch, uint64(m.ballot))
	if m.row.suspect != nil {
		s += fmt.Sprintf(" suspect%v ended%v left%v unwanted%v", m.row.suspect.list(), m.row.ended.list(), m.row.left.list(), m.row.unwanted.list())
	}
	if m.verdict.set != nil {
		s += fmt.Sprintf(" set%v", m.verdict.set.list())
	}
	return s
}

// kill ends a rank. seen: others see its socket end, after what it had sent and kept; unseen, its host died with it.
func (w *world) kill(r int, seen bool, keep func(to int) bool) {
	if w.dead[r] {
		return
	}
	w.note("%d killed, seen %v", r, seen)
	w.dead[r] = true
	for q := range w.n {
		y := &w.way[r][q]
		for i := range y.queue {
			if !keep(q) { // from here on it never left the host
				y.queue = y.queue[:i]
				break
			}
		}
		if q != r && seen {
			w.put(r, q, flight{end: true, cut: w.tcp})
		}
	}
}

// reset ends the socket between two ranks that live on, as a box between them may: each hears no more of the other.
func (w *world) reset(a, b int) {
	w.note("%d and %d reset", a, b)
	for _, p := range [][2]int{{a, b}, {b, a}} {
		y := &w.way[p[0]][p[1]]
		y.queue = nil // what is under way is lost with the socket
		w.put(p[0], p[1], flight{end: true, cut: true})
		y.over = true
	}
}

// ask has a rank ask for its next agreement.
func (w *world) ask(r int) {
	if !w.dead[r] && !w.m[r].stopped {
		w.note("%d asks", r)
		w.m[r].ask(w.m[r].agreed + 1)
		w.flush(r)
	}
}

// expel has a rank want another one out.
func (w *world) expel(by, r int) {
	if !w.dead[by] && !w.m[by].stopped && by != r {
		w.note("%d expels %d", by, r)
		w.m[by].expel(r)
		w.flush(by)
	}
}

func (w *world) leave(r int) {
	w.note("%d leaves", r)
	w.dead[r] = true
	for q := range w.n {
		if q != r {
			w.put(r, q, flight{end: true, msg: message{kind: 99}})
		}
	}
}

// cutWay holds back all that from sends to to, for a time.
func (w *world) cutWay(from, to int, long time.Duration) {
	w.note("%d>%d cut for %v", from, to, long)
	w.way[from][to].cut = max(w.way[from][to].cut, w.now+long)
}

// due is when something happens next.
func (w *world) due() time.Duration {
	at := forever
	for to := range w.n {
		if w.dead[to] {
			continue
		}
		first := w.next[to]
		for from := range w.n {
			if y := &w.way[from][to]; len(y.queue) > 0 {
				first = min(first, max(y.queue[0].at, y.cut))
			}
		}
		at = min(at, max(first, w.asleep[to]))
	}
	return at
}

// run goes on until the given time.
func (w *world) run(until time.Duration) {
	defer func() { w.now = max(w.now, until) }()
	for {
		at := w.due()
		if at >= until {
			return
		}
		w.now = max(w.now, at)
		for to := range w.n {
			if w.dead[to] || w.asleep[to] > w.now {
				continue
			}
			for from := range w.n {
				y := &w.way[from][to]
				for len(y.queue) > 0 && y.queue[0].at <= w.now && y.cut <= w.now {
					f := y.queue[0]
					y.queue = y.queue[1:]
					switch {
					case f.end && f.msg.kind == 99:
						w.m[to].left(from)
					case f.cut:
						w.m[to].cut(from)
					case f.end:
						w.m[to].ended(from)
					case f.msg.kind == 0:
						w.m[to].heard(from)
					default:
						w.m[to].heard(from)
						w.m[to].receive(from, f.msg)
					}
					w.flush(to)
				}
			}
			if w.next[to] <= w.now {
				if !w.m[to].stopped {
					for q := range w.n {
						if q != to {
							w.put(to, q, flight{})
						}
					}
				}
				w.m[to].tick(w.now - w.last[to])
				w.last[to], w.next[to] = w.now, w.now+w.period
				w.flush(to)
			}
		}
	}
}

// survivors are neither dead nor stopped.
func (w *world) survivors() (s []int) {
	for r := range w.n {
		if !w.dead[r] && !w.m[r].stopped {
			s = append(s, r)
		}
	}
	return s
}

// agree checks that no two living ranks decided differently, and that survivors are all as far.
func (w *world) agree() error {
	same := func(a, b decision) bool {
		return a.epoch == b.epoch && slices.Equal(a.lost, b.lost) && slices.Equal(a.left, b.left) && slices.Equal(a.agreed, b.agreed)
	}
	for a := range w.n {
		for b := range a {
			if w.dead[a] || w.dead[b] {
				continue
			}
			for i := range min(len(w.log[a]), len(w.log[b])) {
				if !same(w.log[a][i], w.log[b][i]) {
					return fmt.Errorf("rank %d decided %+v, rank %d %+v", a, w.log[a][i], b, w.log[b][i])
				}
			}
		}
	}
	s := w.survivors()
	for _, r := range s {
		if len(w.log[r]) != len(w.log[s[0]]) {
			return fmt.Errorf("rank %d decided %d times, rank %d %d times", r, len(w.log[r]), s[0], len(w.log[s[0]]))
		}
		if !w.m[r].set.equal(w.m[s[0]].set) {
			return fmt.Errorf("sets differ")
		}
	}
	return nil
}

func (w *world) String() string { return strings.Join(w.trace, "\n") }
