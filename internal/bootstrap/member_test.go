// SPDX-License-Identifier: Apache-2.0

package bootstrap

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

const (
	simLimit  = 5 * time.Second
	simPeriod = 500 * time.Millisecond
)

const forever = 1000 * time.Hour

func yes(int) bool { return true }

func scene(n int) *world {
	return newWorld(n, simLimit, simPeriod, func(int, int) time.Duration { return 2 * time.Millisecond })
}

// Each scene: what happens at 2 s, and who survives with which set in which epoch when a minute has passed.
func TestMemberScenes(t *testing.T) {
	two := func(w *world, a, b int, long time.Duration) { w.cutWay(a, b, long); w.cutWay(b, a, long) }
	for _, s := range []struct {
		name  string
		n     int
		do    func(w *world)
		left  []int // survivors
		lost  []int // by their decisions
		epoch uint32
	}{
		{"nothing", 4, func(w *world) {}, []int{0, 1, 2, 3}, nil, 0},
		{"one killed", 4, func(w *world) { w.kill(2, true, yes) }, []int{0, 1, 3}, []int{2}, 1},
		{"coordinator killed", 4, func(w *world) { w.kill(0, true, yes) }, []int{1, 2, 3}, []int{0}, 1},
		{"host of one gone", 4, func(w *world) { w.kill(2, false, yes) }, []int{0, 1, 3}, []int{2}, 1},
		{"of two the lower killed", 2, func(w *world) { w.kill(0, true, yes) }, []int{1}, []int{0}, 1},
		{"of two the higher killed", 2, func(w *world) { w.kill(1, true, yes) }, []int{0}, []int{1}, 1},
		{"of two the lower's host gone", 2, func(w *world) { w.kill(0, false, yes) }, nil, nil, 0},
		{"of two the higher's host gone", 2, func(w *world) { w.kill(1, false, yes) }, []int{0}, []int{1}, 1},
		{"all but one killed", 5, func(w *world) {
			for r := range 4 {
				w.kill(r, true, yes)
			}
		}, []int{4}, []int{0, 1, 2, 3}, 1},
		{"two cut apart", 2, func(w *world) { two(w, 0, 1, forever) }, []int{0}, []int{1}, 1},
		{"of two 0 is not heard", 2, func(w *world) { w.cutWay(0, 1, forever) }, []int{0}, []int{1}, 1},
		{"of two 1 is not heard", 2, func(w *world) { w.cutWay(1, 0, forever) }, []int{0}, []int{1}, 1},
		{"short cut", 3, func(w *world) { two(w, 0, 1, 4*time.Second) }, []int{0, 1, 2}, nil, 0},
		{"pair cut", 3, func(w *world) { two(w, 0, 1, forever) }, []int{0, 2}, []int{1}, 1},
		{"0 not heard by 1", 3, func(w *world) { w.cutWay(0, 1, forever) }, []int{0, 2}, []int{1}, 1},
		{"minority cut off", 5, func(w *world) {
			for _, a := range []int{0, 1} {
				for _, b := range []int{2, 3, 4} {
					two(w, a, b, forever)
				}
			}
		}, []int{2, 3, 4}, []int{0, 1}, 1},
		{"halves cut apart", 4, func(w *world) {
			for _, a := range []int{0, 1} {
				for _, b := range []int{2, 3} {
					two(w, a, b, forever)
				}
			}
		}, []int{0, 1}, []int{2, 3}, 1},
		{"0 speaks to nobody", 4, func(w *world) {
			for b := 1; b < 4; b++ {
				w.cutWay(0, b, forever)
			}
		}, []int{1, 2, 3}, []int{0}, 1},
		{"reset between two", 2, func(w *world) { w.reset(0, 1) }, []int{0}, []int{1}, 1},
		{"reset between two of three", 3, func(w *world) { w.reset(0, 1) }, []int{0, 2}, []int{1}, 1},
		{"reset between the higher of three", 3, func(w *world) { w.reset(1, 2) }, []int{0, 1}, []int{2}, 1},
		{"reset between two hosts of two", 4, func(w *world) { w.reset(0, 2); w.reset(0, 3); w.reset(1, 2); w.reset(1, 3) }, []int{0, 1}, []int{2, 3}, 1},
		{"reset between a host of two and one of three", 5, func(w *world) {
			for _, a := range []int{0, 1} {
				for _, b := range []int{2, 3, 4} {
					w.reset(a, b)
				}
			}
		}, []int{2, 3, 4}, []int{0, 1}, 1},
		{"killed over TCP", 4, func(w *world) { w.tcp = true; w.kill(2, true, yes) }, []int{0, 1, 3}, []int{2}, 1},
		{"coordinator killed over TCP", 4, func(w *world) { w.tcp = true; w.kill(0, true, yes) }, []int{1, 2, 3}, []int{0}, 1},
		{"one after another killed over TCP", 4, func(w *world) {
			w.tcp = true
			for r := 3; r > 0; r-- {
				w.kill(r, true, yes)
				w.run(w.now + time.Second)
			}
		}, []int{0}, []int{1, 2, 3}, 3},
		{"of two the lower killed over TCP", 2, func(w *world) { w.tcp = true; w.kill(0, true, yes) }, nil, nil, 0},
		{"asleep for long", 3, func(w *world) { w.asleep[1] = w.now + 20*time.Second }, []int{0, 2}, []int{1}, 1},
		{"asleep for a while", 3, func(w *world) { w.asleep[1] = w.now + 4*time.Second }, []int{0, 1, 2}, nil, 0},
		{"one expelled by a higher one", 4, func(w *world) { w.expel(3, 1) }, []int{0, 2, 3}, []int{1}, 1},
		{"coordinator expelled", 4, func(w *world) { w.expel(2, 0) }, []int{1, 2, 3}, []int{0}, 1},
		{"of two the lower expelled", 2, func(w *world) { w.expel(1, 0) }, []int{1}, []int{0}, 1},
		{"of two the higher expelled", 2, func(w *world) { w.expel(0, 1) }, []int{0}, []int{1}, 1},
		{"of two the higher expelled, asleep", 2, func(w *world) { w.asleep[1] = w.now + 20*time.Second; w.expel(0, 1) }, []int{0}, []int{1}, 1},
		{"all expelled but one", 5, func(w *world) {
			for r := range 4 {
				w.expel(4, r)
			}
		}, []int{4}, []int{0, 1, 2, 3}, 1},
		{"two expel each other", 4, func(w *world) { w.expel(0, 2); w.expel(2, 0) }, []int{1, 3}, []int{0, 2}, 1},
		{"two expel each other, alone", 2, func(w *world) { w.expel(0, 1); w.expel(1, 0) }, []int{0}, []int{1}, 1},
		{"expelled by one who dies", 4, func(w *world) { w.expel(3, 1); w.kill(3, true, yes) }, []int{0, 2}, []int{1, 3}, 1},
		{"goodbyes are no loss", 4, func(w *world) { w.leave(1); w.leave(2) }, []int{0, 3}, nil, 0},
		{"one leaves, one is killed", 4, func(w *world) { w.leave(1); w.kill(2, true, yes) }, []int{0, 3}, []int{2}, 1},
		{"all left but one who is killed", 4, func(w *world) { w.leave(1); w.leave(0); w.kill(2, true, yes) }, []int{3}, []int{2}, 1},
	} {
		t.Run(s.name, func(t *testing.T) {
			w := scene(s.n)
			w.run(2 * time.Second)
			s.do(w)
			w.run(time.Minute)
			if err := w.agree(); err != nil {
				t.Errorf("%v\n%s", err, w)
			}
			if got := w.survivors(); !slices.Equal(got, s.left) {
				t.Errorf("survivors %v, want %v\n%s", got, s.left, w)
			}
			for _, r := range s.left {
				var lost []int
				for _, d := range w.log[r] {
					lost = append(lost, d.lost...)
				}
				slices.Sort(lost)
				if !slices.Equal(lost, s.lost) || w.m[r].epoch != s.epoch {
					t.Errorf("rank %d: lost %v in epoch %d, want %v in %d\n%s", r, lost, w.m[r].epoch, s.lost, s.epoch, w)
				}
			}
		})
	}
}

// One rank's word is decided on within a few messages, also where the rank that is to go does nothing any more; it never
// comes back, and who asks behind it agrees on a set without it.
func TestMemberExpelsAtOnce(t *testing.T) {
	for seed := range uint64(100) {
		rnd := rand.New(rand.NewPCG(seed, 0))
		w := newWorld(5, simLimit, simPeriod, func(int, int) time.Duration { return time.Duration(1+rnd.IntN(20)) * time.Millisecond })
		w.run(2 * time.Second)
		by := rnd.IntN(5)
		out := (by + 1 + rnd.IntN(4)) % 5
		if seed%2 == 0 {
			w.asleep[out] = forever
		}
		w.expel(by, out)
		for _, r := range rnd.Perm(5) {
			if seed%2 == 1 || r != out {
				w.ask(r)
			}
		}
		w.run(w.now + 500*time.Millisecond)
		left := slices.DeleteFunc([]int{0, 1, 2, 3, 4}, func(r int) bool { return r == out })
		for _, r := range left {
			if d := w.log[r]; len(d) == 0 || !slices.Equal(d[len(d)-1].agreed, left) || w.m[r].set.has(out) {
				t.Fatalf("seed %d: rank %d expels %d: rank %d decided %+v\n%s", seed, by, out, r, d, w)
			}
		}
	}
}

// A loss that every rank sees at once is decided within a few messages, not by ticks.
func TestMemberDecidesAtOnce(t *testing.T) {
	for seed := range uint64(100) {
		rnd := rand.New(rand.NewPCG(seed, 0))
		w := newWorld(8, simLimit, simPeriod, func(int, int) time.Duration { return time.Duration(1+rnd.IntN(20)) * time.Millisecond })
		w.run(2 * time.Second)
		for r := range 1 + int(seed%4) {
			w.kill(r, true, yes)
		}
		w.run(w.now + 300*time.Millisecond)
		for _, r := range w.survivors() {
			if len(w.log[r]) == 0 || !w.m[r].set.equal(w.m[7].set) || w.m[r].set.count() != 7-int(seed%4) {
				t.Fatalf("seed %d: rank %d: set %v\n%s", seed, r, w.m[r].set.list(), w)
			}
		}
	}
}

// A process that was not scheduled does not blame the others.
func TestMemberForgivesItself(t *testing.T) {
	m := newMember(0, 2, simLimit, simPeriod)
	for range 20 {
		m.tick(4 * time.Second) // late by more than half the limit, each time
		m.heard(1)
	}
	m.tick(time.Hour)
	for range minQuiet {
		m.tick(simPeriod)
	}
	if s, d := m.take(); len(s) != 0 || len(d) != 0 || m.stopped {
		t.Errorf("sent %v, decided %v, stopped %v", s, d, m.stopped)
	}
	for range 11 {
		m.tick(simPeriod)
	}
	if _, d := m.take(); len(d) != 1 {
		t.Errorf("decided %v", d)
	}
}

// A starved process, whose every tick is late, does not blame the others either: it counts time in which it ran.
func TestMemberStarved(t *testing.T) {
	for _, late := range []time.Duration{simLimit / 3, simLimit} {
		m := newMember(0, 2, simLimit, simPeriod)
		for range 7 { // far longer than the limit, and each of the other's signs is still on its way
			m.tick(simPeriod + late)
		}
		if s, d := m.take(); len(s) != 0 || len(d) != 0 || m.stopped {
			t.Errorf("late by %v: sent %v, decided %v, stopped %v", late, s, d, m.stopped)
		}
	}
}

// A rank that stopped in an epoch that others have left behind takes no part in the next one: it is out at once.
func TestMemberStoppedEarlier(t *testing.T) {
	m := newMember(0, 3, simLimit, simPeriod)
	m.receive(1, message{kind: msgDecided, verdict: verdict{set: rankSet{0b011}, left: newRankSet(3)}})
	m.take()
	m.receive(1, message{kind: msgStop, epoch: 0, text: "cut off"})
	if _, d := m.take(); len(d) != 1 || d[0].epoch != 2 || !slices.Equal(d[0].lost, []int{1}) {
		t.Errorf("decided %+v", d)
	}
	m.receive(1, message{kind: msgStop, epoch: 9})
	if s, d := m.take(); len(s) != 0 || len(d) != 0 || m.stopped {
		t.Errorf("a message of an epoch to come: sent %v, decided %v", s, d)
	}
}

// Ranks agree when all that are left have asked, and not before: who dies or leaves unasked is not waited for.
func TestMemberAgrees(t *testing.T) {
	for name, do := range map[string]struct {
		end  func(w *world)
		left []int
	}{
		"all live":         {func(*world) {}, []int{0, 1, 2, 3}},
		"one dies":         {func(w *world) { w.kill(2, true, yes) }, []int{0, 1, 3}},
		"one dies, unseen": {func(w *world) { w.kill(0, false, yes) }, []int{1, 2, 3}},
		"one leaves":       {func(w *world) { w.leave(2) }, []int{0, 1, 3}},
		"all but one die":  {func(w *world) { w.kill(0, true, yes); w.kill(1, true, yes); w.kill(2, true, yes) }, []int{3}},
	} {
		t.Run(name, func(t *testing.T) {
			w := scene(4)
			agree := func(n uint32, ranks []int, meanwhile func(*world)) {
				last := ranks[len(ranks)-1]
				w.run(w.now + 2*time.Second)
				for _, r := range ranks[:len(ranks)-1] {
					w.ask(r)
				}
				meanwhile(w)
				w.run(w.now + 20*time.Second)
				if w.m[last].agreed != n-1 {
					t.Fatalf("agreed without rank %d\n%s", last, w)
				}
				w.ask(last)
				w.run(w.now + time.Second)
				for _, r := range ranks {
					if d := w.log[r]; len(d) == 0 || !slices.Equal(d[len(d)-1].agreed, ranks) || w.m[r].agreed != n {
						t.Fatalf("rank %d: agreement %d: %+v, want %v\n%s", r, n, d, ranks, w)
					}
				}
			}
			nothing := func(*world) {}
			agree(1, []int{0, 1, 2, 3}, nothing)
			agree(2, do.left, do.end)
			agree(3, do.left, nothing)
		})
	}
}

// TestMemberEndsWhatWasAccepted: a set without rank 2 was accepted while rank 0 did not hear of it, and dropped when it did.
// To be asked is to go on with that ballot, so it ends first: rank 2 stops, and the others' agreement is without it.
func TestMemberEndsWhatWasAccepted(t *testing.T) {
	messages := 0
	w := newWorld(3, simLimit, simPeriod, func(int, int) time.Duration {
		messages++
		if messages%17 == 1 {
			return 1278 * time.Millisecond
		}
		return time.Millisecond
	})
	w.run(502 * time.Millisecond)
	w.cutWay(2, 0, 9*time.Second)
	w.run(100 * time.Second)
	if s := w.survivors(); !slices.Equal(s, []int{0, 1, 2}) || len(w.log[0]) > 0 {
		t.Fatalf("left are %v, decided was %+v: nothing is wanted yet\n%s", s, w.log[0], w)
	}
	for r := range 3 {
		w.ask(r)
	}
	w.run(200 * time.Second)
	if err := w.agree(); err != nil || !w.m[2].stopped {
		t.Fatalf("%v, rank 2 stopped: %v\n%s", err, w.m[2].stopped, w)
	}
	for r := range 2 {
		d := w.log[r]
		if len(d) != 2 || !slices.Equal(d[0].lost, []int{2}) || !slices.Equal(d[1].agreed, []int{0, 1}) {
			t.Errorf("rank %d decided %+v\n%s", r, d, w)
		}
	}
}

// trouble is what a drawn schedule does.
type event struct {
	at   time.Duration
	kind string
	a, b int
	long time.Duration
}

// Any schedule of crashes, goodbyes, one-way cuts, resets, sleeps and delays: all that are left decide the same, and nobody is
// lost who did not die, leave, sleep or have a way cut for longer than the limit.
func TestMemberProperty(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		n := rapid.IntRange(2, 6).Draw(rt, "ranks")
		jitter := rapid.SampledFrom([]int{1, 20, 300, 1500}).Draw(rt, "delay up to ms")
		delays := rapid.SliceOfN(rapid.IntRange(1, jitter), 17, 17).Draw(rt, "delays")
		i := 0
		w := newWorld(n, simLimit, simPeriod, func(int, int) time.Duration {
			i++
			return time.Duration(delays[i%len(delays)]) * time.Millisecond
		})
		kinds := rapid.SampledFrom([][]string{{"kill", "kill", "cut"}, {"kill", "unseen", "leave", "sleep", "cut", "cut"}, {"cut"}, {"kill", "leave", "ask", "ask", "ask"}, {"kill", "ask", "cut"}, {"expel", "ask", "sleep"}, {"expel", "kill", "cut", "leave"}, {"reset"}, {"reset", "reset", "kill", "cut", "leave"}}).Draw(rt, "kinds")
		w.tcp = rapid.Bool().Draw(rt, "tcp")
		var events []event
		for range rapid.IntRange(0, 6).Draw(rt, "events") {
			e := event{at: time.Duration(rapid.IntRange(0, 15000).Draw(rt, "at")) * time.Millisecond, kind: rapid.SampledFrom(kinds).Draw(rt, "kind"),
				a: rapid.IntRange(0, n-1).Draw(rt, "a"), b: rapid.IntRange(0, n-1).Draw(rt, "b"),
				long: time.Duration(rapid.SampledFrom([]int{100, 2000, 7000, 9000, 30000, 1 << 30}).Draw(rt, "ms")) * time.Millisecond}
			events = append(events, e)
		}
		slices.SortFunc(events, func(x, y event) int { return int(x.at - y.at) })
		excused := make([]bool, n)
		for _, e := range events {
			w.run(e.at)
			switch e.kind {
			case "kill", "unseen":
				w.kill(e.a, e.kind == "kill", func(int) bool { return rapid.Bool().Draw(rt, "kept") })
				excused[e.a] = true
			case "leave":
				if !w.dead[e.a] {
					w.leave(e.a)
					excused[e.a] = true
				}
			case "ask":
				w.ask(e.a)
			case "expel":
				w.expel(e.a, e.b)
				excused[e.b] = true
			case "sleep":
				w.asleep[e.a] = max(w.asleep[e.a], w.now+min(e.long, 12*time.Second))
				excused[e.a] = excused[e.a] || min(e.long, 12*time.Second)+time.Duration(jitter)*time.Millisecond > simLimit-2*simPeriod
			case "reset":
				if e.a != e.b && !w.dead[e.a] && !w.dead[e.b] {
					w.reset(e.a, e.b)
					excused[e.a], excused[e.b] = true, true
				}
			case "cut":
				if e.a != e.b {
					w.cutWay(e.a, e.b, e.long)
				}
			}
		}
		// Cuts that overlap or follow one another closely make one: count the longest hold of each way, roughly.
		held := map[[2]int]time.Duration{}
		for _, e := range events {
			if e.kind == "cut" && e.a != e.b {
				held[[2]int{e.a, e.b}] += e.long
			}
		}
		for k, d := range held {
			if d+time.Duration(jitter)*time.Millisecond > simLimit-2*simPeriod {
				excused[k[0]], excused[k[1]] = true, true
			}
		}
		w.run(100 * time.Second)
		tell := func() string { return fmt.Sprintf("%+v\n%s", events, w) }
		if err := w.agree(); err != nil {
			rt.Fatalf("%v\n%s", err, tell())
		}
		for _, r := range w.survivors() {
			w.ask(r)
		}
		w.run(w.now + 100*time.Second)
		s := w.survivors() // what was accepted before may end first, and be without one that was cut off: see TestMemberEndsWhatWasAccepted
		for _, r := range s {
			if d := w.log[r]; len(d) == 0 || !slices.Equal(d[len(d)-1].agreed, s) {
				rt.Fatalf("rank %d: survivors %v asked, and it decided %+v\n%s", r, s, d, tell())
			}
		}
		for _, r := range s {
			for _, q := range w.m[r].set.list() {
				if !slices.Contains(s, q) && !w.m[r].mine.left.has(q) {
					rt.Fatalf("rank %d keeps %d, which is gone\n%s", r, q, tell())
				}
			}
		}
		for r := range n {
			for _, d := range w.log[r] {
				for _, q := range d.lost {
					if !excused[q] && !w.m[q].stopped { // of those that stop, see below
						rt.Fatalf("rank %d declared %d lost, which did nothing\n%s", r, q, tell())
					}
				}
			}
			if w.m[r].stopped && !excused[r] && !slices.ContainsFunc(events, func(e event) bool {
				return e.long > 3*time.Second || e.kind == "unseen" || e.kind == "reset" || w.tcp && e.kind == "kill"
			}) {
				rt.Fatalf("rank %d stopped for nothing: %s\n%s", r, w.m[r].why, tell())
			}
		}
	})
}
