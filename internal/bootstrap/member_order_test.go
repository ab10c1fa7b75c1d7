// SPDX-License-Identifier: Apache-2.0

package bootstrap

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/doorbell-net/doorbell/internal/testenv"
)

// order runs members without any clock: whatever may happen next may be next. Ways are FIFO, some of them slow for a
// while, so that ballots meet; suspicion comes and goes as it likes; a rank that is killed takes with it a tail of what it
// had sent to each, and its end is seen after the rest.
type order struct {
	rnd  *rand.Rand
	m    []*member
	ways [][][]*outgoing // from, to; nil: the end
	slow [][]bool
	dead []bool
	log  [][]decision
	// How often each asked, and how often it was agreed with.
	asked, agreed []int
	wrong         string
	text          []string
}

func newOrder(rnd *rand.Rand, n int) *order {
	o := &order{rnd: rnd, dead: make([]bool, n), log: make([][]decision, n), asked: make([]int, n), agreed: make([]int, n)}
	for r := range n {
		o.m = append(o.m, newMember(r, n, simLimit, simPeriod))
		o.ways = append(o.ways, make([][]*outgoing, n))
		o.slow = append(o.slow, make([]bool, n))
	}
	return o
}

func (o *order) note(format string, a ...any) { o.text = append(o.text, fmt.Sprintf(format, a...)) }

// flush takes what a member has to send and has decided.
func (o *order) flush(r int) {
	send, decided := o.m[r].take()
	for _, s := range send {
		o.ways[r][s.to] = append(o.ways[r][s.to], &s)
	}
	for _, d := range decided {
		o.note("%d decides %+v", r, d)
		o.log[r] = append(o.log[r], d)
		if len(d.agreed) == 0 {
			continue
		}
		o.agreed[r]++
		for _, q := range d.agreed {
			if o.asked[q] < o.agreed[r] {
				o.wrong = fmt.Sprintf("rank %d: agreement %d of ranks %v: rank %d asked %d times", r, o.agreed[r], d.agreed, q, o.asked[q])
			}
		}
	}
}

// arrival is a way on which something may arrive next; false: none was found.
func (o *order) arrival() (from, to int, ok bool) {
	n := len(o.m)
	first := o.rnd.IntN(n * n)
	for i := range n * n {
		from, to = (first+i)%(n*n)/n, (first+i)%n
		if len(o.ways[from][to]) > 0 && !o.dead[to] && (!o.slow[from][to] || o.rnd.IntN(20) == 0) {
			return from, to, true
		}
	}
	return 0, 0, false
}

// step does one thing.
func (o *order) step(kills *int) {
	n := len(o.m)
	a, b := o.rnd.IntN(n), o.rnd.IntN(n)
	if a == b || o.dead[b] {
		return
	}
	if o.rnd.IntN(40) == 0 {
		o.slow[a][b] = !o.slow[a][b]
	}
	m := o.m[b]
	switch x := o.rnd.IntN(100); {
	case x < 75:
		var ok bool
		if a, b, ok = o.arrival(); !ok {
			return
		}
		m = o.m[b]
		first := o.ways[a][b][0]
		o.ways[a][b] = o.ways[a][b][1:]
		if first == nil {
			o.note("%d sees the end of %d", b, a)
			m.ended(a)
		} else {
			o.note("%d>%d %s", a, b, first.message)
			m.receive(a, first.message)
		}
	case x < 83: // b suspects a
		if m.mine.gone().has(a) || !m.set.has(a) || !o.slow[a][b] && o.rnd.IntN(8) != 0 {
			return
		}
		if reach := m.reach(); o.rnd.IntN(20) != 0 { // else it stops, mostly
			if reach.remove(a); !reach.major(m.set) {
				return
			}
		}
		o.note("%d does not hear %d", b, a)
		clear(m.silent)
		m.silent[a], m.quiet[a] = m.limit, minQuiet
		m.tick(m.period)
	case x < 85:
		if !m.stopped && !m.mine.asks {
			o.note("%d asks", b)
			o.asked[b]++
			m.ask(m.agreed + 1)
		}
	case x < 87:
		if o.dead[a] || o.slow[a][b] {
			return
		}
		m.heard(a)
	case x < 98: // time passes for b, enough to lose patience
		clear(m.silent)
		for range 1 + o.rnd.IntN(m.patience()+2) {
			m.tick(1)
		}
	default:
		if *kills == 0 || o.dead[a] {
			return
		}
		*kills--
		o.dead[a] = true
		for to := range n {
			q := o.ways[a][to]
			o.ways[a][to] = append(q[:o.rnd.IntN(len(q)+1):len(q)], nil)
		}
		o.note("%d is killed", a)
		return
	}
	o.flush(b)
}

// agree is empty while no two living ranks decided differently about an epoch.
func (o *order) agree() string {
	if o.wrong != "" {
		return o.wrong
	}
	for a := range o.m {
		for b := range a {
			if o.dead[a] || o.dead[b] {
				continue
			}
			for i := range min(len(o.log[a]), len(o.log[b])) {
				x, y := o.log[a][i], o.log[b][i]
				if x.epoch != y.epoch || !slices.Equal(x.lost, y.lost) || !slices.Equal(x.left, y.left) || !slices.Equal(x.agreed, y.agreed) {
					return fmt.Sprintf("rank %d decided %+v, rank %d %+v", a, x, b, y)
				}
			}
		}
	}
	return ""
}

// TestMemberAnyOrder: whatever the order of messages, ends and suspicions, right or wrong, no two living ranks have
// different sets in an epoch, or an agreement that somebody of its set did not ask for.
func TestMemberAnyOrder(t *testing.T) {
	runs := 3000
	if testenv.Race {
		runs = 200 // one goroutine: there is nothing to find
	}
	if testenv.Long() {
		runs = 400_000
	}
	rnd := testenv.Random(t)
	decided, agreed := 0, 0
	for range runs {
		seed := rnd.Uint64()
		o := newOrder(rand.New(rand.NewPCG(seed, 0)), 2+rnd.IntN(5))
		kills := rnd.IntN(len(o.m))
		for range 100 + rnd.IntN(600) {
			o.step(&kills)
		}
		if why := o.agree(); why != "" {
			t.Fatalf("schedule %#x of %d ranks: %s\n%s", seed, len(o.m), why, strings.Join(o.text, "\n"))
		}
		for r := range o.m {
			decided += len(o.log[r])
			agreed += o.agreed[r]
		}
	}
	t.Logf("%d schedules, %d decisions, %d agreements", runs, decided, agreed)
	if min(decided, agreed) < runs/10 {
		t.Error("almost nothing was decided")
	}
}
