// SPDX-License-Identifier: Apache-2.0

package bootstrap

import (
	"flag"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/doorbell-net/doorbell/internal/testenv"
)

var chaosWorlds = flag.Int("chaos.worlds", 0, "worlds of TestChaos, from DOORBELL_SEED on; 0: a few, more with DOORBELL_LONG=1")

// chaosKinds are the troubles that worlds of one kind draw from.
var chaosKinds = [][]string{
	{"kill"},
	{"kill", "leave"},
	{"cut"},
	{"cut", "cut", "kill"},
	{"stand", "kill"},
	{"kill", "leave", "stand", "cut", "part"},
	{"part"},
	{"part", "kill", "cut"},
	{"blink", "slow", "nap"}, // nothing that costs anybody the membership
	{"blink", "slow", "nap", "kill"},
}

// chaosEvent is one trouble.
type chaosEvent struct {
	at   time.Duration
	kind string
	a, b int
	side int // of part: ranks on one side, a bit each
	long time.Duration
}

// drawChaos draws a world: ranks, latest arrival, whether bytes dribble, and what happens.
func drawChaos(rnd *rand.Rand) (n int, late time.Duration, dribble bool, events []chaosEvent) {
	n = 3 + rnd.IntN(4)
	late = []time.Duration{0, 0, 20 * time.Millisecond, chaosLimit / 10}[rnd.IntN(4)]
	dribble = rnd.IntN(4) == 0
	kinds := chaosKinds[rnd.IntN(len(chaosKinds))]
	begin, close := time.Duration(rnd.Int64N(int64(chaosLimit/4))), rnd.IntN(2) == 0
	for range 1 + rnd.IntN(5) {
		e := chaosEvent{at: time.Duration(rnd.Int64N(int64(2 * chaosLimit))), kind: kinds[rnd.IntN(len(kinds))], a: rnd.IntN(n), b: rnd.IntN(n),
			side: 1 + rnd.IntN(1<<n-2)}
		if close { // all at once, or while the ranks agree on what came first
			e.at = begin + time.Duration(rnd.IntN(2))*chaosLimit + time.Duration(rnd.Int64N(int64(chaosLimit/3)))
		}
		switch e.kind {
		case "blink", "nap":
			e.long = time.Duration(rnd.Int64N(int64(chaosLimit / 5)))
		default:
			e.long = []time.Duration{chaosLimit / 10, chaosLimit, 2 * chaosLimit, 4 * chaosLimit, time.Hour}[rnd.IntN(5)]
			if e.kind == "stand" {
				e.long = min(e.long, 4*chaosLimit)
			}
		}
		events = append(events, e)
	}
	slices.SortStableFunc(events, func(x, y chaosEvent) int { return int(x.at - y.at) })
	return n, late, dribble, events
}

// chaosBudget is how long a rank may be unheard, by what the world does to it, and must still be a member: what is left
// of the limit is for signs of life, ticks and a busy machine.
const chaosBudget = 2 * chaosLimit / 5

// chaosStarved is how late goroutines may get their turn before the machine counts among the troubles: then a way over
// which too long nothing came is silent, whatever the schedule says.
const chaosStarved = chaosLimit / 10

// chaosFigures are of all worlds.
type chaosFigures struct {
	worlds, ranks, kills, leaves, stands, cuts, slow int
	epochs, lost, stopped                            int
	calls, timeouts                                  int64
	latest                                           time.Duration // by which a call outlasted its deadline
	settle                                           time.Duration // longest from the last event until all had one set
	starved                                          time.Duration // longest that nothing came over a way while the machine was too busy
	violations                                       int
}

// TestChaos runs jobs over real sockets while ranks are killed, leave, stand still and are slow, and ways between them
// are cut in one direction or both, are late, dribble and come back. In every one: no two ranks have different member
// sets in an epoch; all survivors have the same one in bounded time; nobody is lost who was only slow; each wait ends.
func TestChaos(t *testing.T) {
	checkLeaks(t)
	worlds, atOnce := 12, 24
	if testenv.Long() {
		worlds = 96
	}
	if *chaosWorlds > 0 {
		worlds = *chaosWorlds
	}
	var mu sync.Mutex
	var f chaosFigures
	var wg sync.WaitGroup
	slots := make(chan struct{}, atOnce)
	start := time.Now()
	for i := range worlds {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			seed := testenv.Seed + uint64(i)
			w := chaos(t, seed, &f, &mu)
			if len(w.bad) > 0 {
				t.Errorf("DOORBELL_SEED=%d -chaos.worlds=1:\n%s\n%s", seed, strings.Join(w.bad, "\n"), w)
			}
		})
	}
	wg.Wait()
	t.Logf("DOORBELL_SEED=%d, %.0f s: %+v", testenv.Seed, time.Since(start).Seconds(), f)
	if f.worlds >= 12 && (f.calls == 0 || f.epochs == 0 && f.kills > 0) {
		t.Error("nothing happened")
	}
}

// chaos runs the world of a seed and adds its figures.
func chaos(t testing.TB, seed uint64, f *chaosFigures, mu *sync.Mutex) *chaosWorld {
	rnd := rand.New(rand.NewPCG(seed, 1))
	n, late, dribble, events := drawChaos(rnd)
	w := newChaosWorld(t, n, late, dribble, rnd)
	w.note("%d ranks, late by up to %v, dribble %v", n, late, dribble)
	held := map[[2]int]time.Duration{} // each way
	excused := make([]bool, n)         // killed, or left
	hold := func(from, to int, d time.Duration) { held[[2]int{from, to}] += d }
	var g chaosFigures
	cut := func(from, to int, d time.Duration) {
		g.cuts++
		w.cut(from, to, d)
		hold(from, to, d)
	}
	w.work()
	for _, e := range events {
		if wait := time.Until(w.begun.Add(e.at)); wait > 0 {
			time.Sleep(wait) // sleep: the schedule of a test
		}
		other := e.a != e.b
		switch {
		case e.kind == "kill":
			w.kill(e.a)
			excused[e.a] = true
		case e.kind == "leave":
			w.leave(e.a)
			excused[e.a] = true
		case e.kind == "stand", e.kind == "nap":
			if w.stand(e.a, e.long) {
				g.stands++
				for q := range n {
					if q != e.a {
						hold(e.a, q, e.long)
						hold(q, e.a, e.long)
					}
				}
			}
		case e.kind == "slow":
			g.slow++
			w.note("%d is slow", e.a)
			w.ranks[e.a].slow.Store(int64(chaosLimit / 5))
		case e.kind == "part":
			for x := range n {
				for y := range n {
					if e.side>>x&1 != e.side>>y&1 {
						cut(x, y, e.long)
					}
				}
			}
		case other: // cut, blink
			cut(e.a, e.b, e.long)
		}
	}
	last := time.Now()
	silent := make([]bool, n)
	// Whatever has not been noticed yet is now; then the survivors settle.
	time.Sleep(chaosLimit + chaosLimit/2) // sleep: silence has no event
	bound := time.Now().Add(20*chaosLimit + testBound/2)
	why := w.settled()
	for why != "" && time.Now().Before(bound) {
		time.Sleep(10 * time.Millisecond) // sleep: polls the ranks' states
		why = w.settled()
	}
	if why != "" {
		w.wrong("not settled %v after the last event: %s", time.Since(last), why)
	}
	g.settle = time.Since(last)
	w.agree()
	starved := w.starved()
	for a := range n {
		for b := range n {
			if a == b {
				continue
			}
			gap := w.hop(a, b).gave(false)
			if !starved || excused[a] || excused[b] {
				gap = 0
			}
			g.starved = max(g.starved, gap)
			if held[[2]int{a, b}]+late > chaosBudget || gap > chaosLimit/2 { // a tick and two signs of life before the limit
				silent[a], silent[b] = true, true
			}
		}
	}
	w.judge(excused, silent)
	for _, k := range w.ranks {
		log, _, stopped, _ := k.state()
		g.epochs = max(g.epochs, len(log))
		lost := 0
		for _, d := range log {
			lost += len(d.lost)
		}
		g.lost = max(g.lost, lost)
		if stopped {
			g.stopped++
		}
		if k.dead {
			g.kills++
		}
		if k.left {
			g.leaves++
		}
		g.calls += k.calls.Load()
		g.timeouts += k.timeouts.Load()
		if d := time.Duration(k.late.Load()); k.pause == nil && d > g.latest {
			g.latest = d
			if d > testBound/2 {
				w.wrong("a call outlasted its deadline by %v", d)
			}
		}
	}
	w.end()
	mu.Lock()
	defer mu.Unlock()
	f.worlds, f.ranks, f.kills, f.leaves, f.stands, f.cuts = f.worlds+1, f.ranks+n, f.kills+g.kills, f.leaves+g.leaves, f.stands+g.stands, f.cuts+g.cuts
	f.slow, f.epochs, f.lost, f.stopped, f.calls, f.timeouts = f.slow+g.slow, f.epochs+g.epochs, f.lost+g.lost, f.stopped+g.stopped, f.calls+g.calls, f.timeouts+g.timeouts
	f.latest, f.settle, f.violations = max(f.latest, g.latest), max(f.settle, g.settle), f.violations+len(w.bad)
	f.starved = max(f.starved, g.starved)
	return w
}

// judge checks that nobody was lost or stopped who was heard all the time. Ranks that do not hear the majority stop, and
// the end of a TCP socket is silence like any other; so one may stop that did nothing, but only when half of the ranks or
// more are gone or silent.
func (w *chaosWorld) judge(excused, silent []bool) {
	fine := 0
	for r := range w.n {
		if !excused[r] && !silent[r] {
			fine++
		}
	}
	mayStop := 2*fine <= w.n
	for r, k := range w.ranks {
		log, _, stopped, why := k.state()
		if stopped && !excused[r] && !silent[r] && !mayStop {
			w.wrong("rank %d has stopped: %s; it was heard by all, and so were most", r, why)
		}
		for _, d := range log {
			for _, q := range d.lost {
				_, _, qStopped, _ := w.ranks[q].state()
				if !excused[q] && !silent[q] && !(qStopped && mayStop) {
					w.wrong("rank %d lost rank %d in epoch %d, which was there all the time", r, q, d.epoch)
				}
			}
		}
	}
}
