// SPDX-License-Identifier: Apache-2.0

package model

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/doorbell-net/doorbell/internal/testenv"
)

// base is what most instances share: two words a slot, tickets modulo 32.
func base(name string, depth int, programs ...string) Config {
	return Config{Name: name, Depth: depth, Words: 2, Wrap: 32, Programs: programs, Drivers: 1}
}

func with(c Config, change func(*Config)) Config {
	change(&c)
	return c
}

func long() bool { return os.Getenv("DOORBELL_LONG") == "1" }

// right are instances of the protocol as designed, or with a change that must do no harm.
var right = []Config{
	with(base("one producer over two laps and the wrap", 1, "pspsp"), func(c *Config) { c.Start = 30 }),
	with(base("two drivers, timeouts, depth 1 over the wrap", 1, "ps", "s"), func(c *Config) { c.Start, c.Drivers, c.Timeouts = 31, 2, 2 }),
	with(base("flushes, depth 2 over the wrap", 2, "psf", "s"), func(c *Config) { c.Start = 31 }),
	with(base("depth 2 over a lap", 2, "pp", "s"), func(c *Config) { c.Start = 2 }),
	with(base("three words a slot", 2, "p", "sf"), func(c *Config) { c.Words, c.Start = 3, 29 }),
	with(base("depth 4 over the wrap", 4, "s", "pf"), func(c *Config) { c.Start = 31 }),
	with(base("depth 4 over a lap", 4, "pspsp"), func(c *Config) { c.Start = 29 }),
	with(base("an unphased cell before a release", 1, "pp", "s"), func(c *Config) { c.Cell, c.Start = true, 31 }),
	with(base("three producers", 2, "s", "s", "s"), func(c *Config) { c.Start = 31 }),
	with(base("network out of order, one in flight", 2, "sf", "s"), func(c *Config) { c.Async, c.InFlight = true, 1 }),
	with(base("network out of order, two in flight", 2, "psf"), func(c *Config) { c.Async, c.InFlight, c.Start = true, 2, 30 }),
	with(base("network out of order, two producers", 2, "pf", "s"), func(c *Config) { c.Async, c.InFlight, c.Drivers = true, 2, 2 }),
	with(base("every hint lost", 2, "ps", "s"), func(c *Config) { c.NoHints, c.Drivers = true, 2 }),
	with(base("passes that end by budget", 2, "ps", "s"), func(c *Config) { c.Budget, c.Start = true, 1 }),
	with(base("credit not monotonic", 1, "ps", "s"), func(c *Config) { c.Fault, c.Drivers, c.Timeouts = CreditNotMax, 2, 1 }),
	with(base("hint ahead of head, one producer, no sweep", 2, "pssp"), func(c *Config) { c.Hint, c.NoSweep, c.Start = HintAhead, true, 30 }),
	with(base("hint ahead of head, one producer, no sweep, budget", 2, "pssp"), func(c *Config) { c.Hint, c.NoSweep, c.Budget = HintAhead, true, true }),
	with(base("sleep without backstop, two drivers", 2, "p", "s"), func(c *Config) { c.Sleep, c.Drivers = true, 2 }),
	with(base("sleep without backstop, the owner fences for all", 2, "p", "s"), func(c *Config) {
		c.Sleep, c.Drivers, c.Remote, c.Fault = true, 2, true, NoWakeFence
	}),
	with(base("sleep with backstop, no fences, hints lost", 2, "p", "s"), func(c *Config) {
		c.Sleep, c.Drivers, c.Backstop, c.NoHints, c.Fault = true, 2, true, true, NoWakeFence
	}),
	with(base("a producer dies, waits end by abort alone", 2, "sf", "pf"), func(c *Config) { c.Crash, c.Detect = true, DetectTicket }),
	with(base("a producer dies, depth 1", 1, "sf", "pf"), func(c *Config) { c.Crash, c.Detect, c.Drivers = true, DetectTicket, 2 }),
	with(base("a producer dies, network out of order", 2, "sf", "pf"), func(c *Config) {
		c.Crash, c.Detect, c.Async, c.InFlight = true, DetectTicket, true, 1
	}),
	with(base("a slow producer is taken for dead", 2, "sf", "p"), func(c *Config) { c.Spurious, c.Detect, c.Drivers = true, DetectTicket, 2 }),
}

// larger are run with DOORBELL_LONG=1 only.
var larger = []Config{
	with(base("three producers, two drivers, timeouts, flush", 2, "sf", "s", "p"), func(c *Config) { c.Start, c.Drivers, c.Timeouts = 31, 2, 1 }),
	with(base("three producers, depth 1", 1, "sf", "s", "p"), func(c *Config) { c.Start, c.Drivers, c.Timeouts = 31, 2, 1 }),
	with(base("two producers, four puts, depth 2 over the wrap", 2, "ps", "sp"), func(c *Config) { c.Start, c.Drivers = 31, 2 }),
	with(base("two producers, four puts, three words", 2, "ps", "sp"), func(c *Config) { c.Start, c.Words = 31, 3 }),
	with(base("depth 4, five puts", 4, "pss", "ps"), func(c *Config) { c.Start = 30 }),
	with(base("network out of order, two producers, two in flight", 2, "psf", "s"), func(c *Config) { c.Async, c.InFlight, c.Start = true, 2, 31 }),
	with(base("network out of order, one producer, four puts", 2, "pspsf"), func(c *Config) { c.Async, c.InFlight, c.Start = true, 2, 29 }),
	with(base("network out of order, two producers, one in flight", 2, "psf", "s"), func(c *Config) { c.Async, c.InFlight = true, 1 }),
	with(base("sleep without backstop, two puts and one", 2, "ps", "s"), func(c *Config) { c.Sleep = true }),
	with(base("a producer of two dies", 2, "sf", "psf"), func(c *Config) { c.Crash, c.Detect, c.Drivers = true, DetectTicket, 2 }),
	with(base("a slow producer of two is taken for dead", 2, "sf", "ps"), func(c *Config) { c.Spurious, c.Detect, c.Drivers = true, DetectTicket, 2 }),
	with(base("sleep without backstop, three producers", 2, "s", "s", "p"), func(c *Config) { c.Sleep, c.Drivers = true, 2 }),
	with(base("a producer dies among three", 2, "sf", "s", "pf"), func(c *Config) { c.Crash, c.Detect = true, DetectTicket }),
	with(base("a slow producer is taken for dead among three", 2, "sf", "s", "p"), func(c *Config) { c.Spurious, c.Detect, c.Drivers = true, DetectTicket, 2 }),
}

// TestProtocol checks that no instance breaks a rule, and that together they take every kind of step.
func TestProtocol(t *testing.T) {
	if testenv.Race {
		checkRight(t, right[:1], 2_000_000)
		return
	}
	taken := checkRight(t, right, 2_000_000)
	if long() {
		checkRight(t, larger, 60_000_000)
	}
	allTaken(t, taken, opText, opFetchAdd, opCopy) // these two belong to planted faults
}

// checkRight checks that none of the instances breaks a rule, and returns the kinds of step that occurred.
func checkRight[I Instance](t *testing.T, instances []I, limit int) (taken [maxOpcodes]bool) {
	for _, c := range instances {
		t.Run(c.String(), func(t *testing.T) {
			r, err := Check(c, limit)
			if err != nil {
				t.Fatal(err)
			}
			t.Log(r)
			if r.Violation != nil {
				t.Fatal(r.Violation)
			}
			if r.Ends == 0 {
				t.Error("no end was reached, so nothing was checked")
			}
			for op, is := range r.taken {
				taken[op] = taken[op] || is
			}
		})
	}
	return taken
}

// allTaken checks that every kind of step occurred, save those named.
func allTaken(t *testing.T, taken [maxOpcodes]bool, text []string, save ...opcode) {
	t.Helper()
	for op, what := range text {
		if !taken[op] && !slices.Contains(save, opcode(op)) {
			t.Errorf("no instance ever %q", what)
		}
	}
}

// planted is a faulty instance, and a part of the rule that it must be found to break.
type planted[I Instance] struct {
	cfg  I
	rule string
}

// checkPlanted checks that each fault is found, for its own reason.
func checkPlanted[I Instance](t *testing.T, faults []planted[I]) {
	for _, p := range faults {
		t.Run(p.cfg.String(), func(t *testing.T) {
			r, err := Check(p.cfg, 2_000_000)
			if err != nil {
				t.Fatal(err)
			}
			if r.Violation == nil {
				t.Fatalf("not found in %v", r)
			}
			t.Logf("%v: %v", r, r.Violation)
			if !strings.Contains(r.Violation.Rule, p.rule) {
				t.Errorf("found %q, expected %q", r.Violation.Rule, p.rule)
			}
			if len(r.Violation.Trace) == 0 {
				t.Error("no run is shown")
			}
		})
	}
}

// TestPlanted checks that each planted fault is found, for its own reason.
func TestPlanted(t *testing.T) {
	faults := []planted[Config]{
		{with(base("ticket by fetch-add before credit, with a timeout", 1, "s", "s"), func(c *Config) {
			c.Fault, c.Timeouts = FetchAddTicket, 1
		}), Stuck},
		{with(base("hints cleared by the consumer, no sweep", 2, "s"), func(c *Config) { c.Fault, c.NoSweep = ClearHint, true }), Stuck},
		{with(base("no sweep, hint seen before its descriptor", 2, "s"), func(c *Config) { c.NoSweep = true }), Stuck},
		{with(base("no sweep, every hint lost", 2, "s"), func(c *Config) { c.NoSweep, c.NoHints = true, true }), Stuck},
		{with(base("no sweep, hint overtaken by an older one", 2, "s", "s"), func(c *Config) { c.NoSweep, c.Hint = true, HintAhead }), Stuck},
		{with(base("no sweep, budget ends a pass whose hint was noted", 2, "ss"), func(c *Config) { c.NoSweep, c.Budget = true, true }), Stuck},
		{with(base("only word 0's phase is checked", 2, "s"), func(c *Config) { c.Fault = FirstWordOnly }), "torn"},
		{with(base("only word 0's phase is checked, second lap", 1, "ss"), func(c *Config) { c.Fault = FirstWordOnly }), "torn"},
		{with(base("an unphased cell without release", 2, "s"), func(c *Config) { c.Cell, c.Fault = true, CellRelaxed }), "torn"},
		{with(base("an unphased cell read before word 0", 2, "s"), func(c *Config) { c.Cell, c.Fault = true, CellFirst }), "torn"},
		{with(base("consumed published before the copy", 1, "ss"), func(c *Config) { c.Fault = ConsumedEarly }), "overwritten"},
		{with(base("one index, consumed: flush lies", 2, "pf"), func(c *Config) {
			c.Fault, c.Async, c.InFlight = FlushByConsumed, true, 1
		}), "flush returned before"},
		{with(base("one index, completed: credit starves", 1, "pp"), func(c *Config) {
			c.Fault, c.Async, c.InFlight = CreditByCompleted, true, 1
		}), "no room although"},
		{with(base("completed counts instead of prefix", 2, "pf", "p"), func(c *Config) {
			c.Fault, c.Async, c.InFlight = CompletedCounts, true, 2
		}), "flush returned before"},
		{with(base("completions in a bit per slot, two a lap apart are one", 1, "ppp"), func(c *Config) {
			c.Fault, c.Async, c.InFlight = EndedPerSlot, true, 3
		}), Stuck},
		{with(base("completions in a bit per slot, one stands for another", 1, "ppp", "f"), func(c *Config) {
			c.Fault, c.Async, c.InFlight = EndedPerSlot, true, 3
		}), "flush returned before"},
		{with(base("signal before payload", 2, "s"), func(c *Config) { c.Fault = SignalFirst }), "is seen before the payload"},
		{with(base("signal without release", 2, "s"), func(c *Config) { c.Fault = SignalRelaxed }), "is seen before the payload"},
		{with(base("signal covers its own put only", 2, "ps"), func(c *Config) {
			c.Fault, c.Async, c.InFlight = SignalOwnPut, true, 2
		}), "is seen before the payload"},
		{with(base("lock given back without release", 2, "s", "s"), func(c *Config) { c.Fault, c.Drivers = UnlockRelaxed, 2 }), "went back"},
		{with(base("tickets compared as plain numbers", 1, "ss"), func(c *Config) { c.Fault, c.Start = PlainCompare, 30 }), Stuck},
		{with(base("zeroed slots, first ticket just below the wrap", 2, "s"), func(c *Config) { c.Fault, c.Start = ZeroedAnywhere, 31 }), "torn"},
		{with(base("tickets wrap at no multiple of two laps", 2, "ss"), func(c *Config) { c.Wrap, c.Start = 30, 28 }), "torn"},
		{with(base("no fence after asleep, no backstop", 2, "s"), func(c *Config) { c.Sleep, c.Fault = true, NoSleepFence }), Stuck},
		{with(base("no fence before the look at asleep, no backstop", 2, "s"), func(c *Config) { c.Sleep, c.Fault = true, NoWakeFence }), Stuck},
		{with(base("sleep although the lock was busy, no backstop", 2, "s", "s"), func(c *Config) {
			c.Sleep, c.Fault, c.Drivers = true, SleepIfBusy, 2
		}), Stuck},
		{with(base("last look before sleep by hint, no backstop", 2, "s", "s"), func(c *Config) {
			c.Sleep, c.Fault = true, RecheckByHint
		}), Stuck},
		{with(base("dead producer sought by its hint", 2, "s", "sf"), func(c *Config) { c.Crash, c.Detect = true, DetectHint }), Stuck},
		{with(base("dead producer sought by later slots", 1, "s", "s"), func(c *Config) { c.Crash, c.Detect = true, DetectLaterSlot }), Stuck},
		{with(base("a queue declared dead is consumed", 2, "s"), func(c *Config) {
			c.Spurious, c.Detect, c.Fault = true, DetectTicket, ConsumeAfterAbort
		}), "declared dead"},
	}
	if testenv.Race {
		faults = slices.DeleteFunc(faults, func(p planted[Config]) bool { return p.cfg.Fault == EndedPerSlot })
	}
	checkPlanted(t, faults)
}

// TestSearch compares the search with a plain one that keeps whole states.
func TestSearch(t *testing.T) {
	if testenv.Race {
		t.Skip("a search is one goroutine: the race detector has nothing to see in it and makes it fifteen times slower, so that under it only a few instances run")
	}
	compared := 0
	for _, c := range right {
		compared += comparePlain(t, c, &machine{cfg: &c})
	}
	for _, c := range rightHolds {
		compared += comparePlain(t, c, &holder{cfg: &c})
	}
	for _, c := range rightResets {
		compared += comparePlain(t, c, &resetter{cfg: &c})
	}
	for _, c := range rightWindows {
		compared += comparePlain(t, c, &windower{cfg: &c})
	}
	if compared < 10 {
		t.Errorf("only %d instances were compared", compared)
	}
}

// comparePlain returns 1, or 0 for an instance that is too large to keep whole.
func comparePlain[S comparable](t *testing.T, c Instance, m protocol[S]) int {
	r, err := Check(c, 15_000)
	if err != nil {
		return 0
	}
	first := m.initial()
	seen := map[S]bool{first: true}
	steps := 0
	for todo := []S{first}; len(todo) > 0; {
		s := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		for _, n := range m.successors(&s) {
			steps++
			if !seen[n.state] {
				seen[n.state] = true
				todo = append(todo, n.state)
			}
		}
	}
	if r.States != len(seen) || r.Steps != steps {
		t.Errorf("%s: %v, a plain search finds %d states and %d steps", c, r, len(seen), steps)
	}
	return 1
}

// TestLimits checks that an instance out of range is refused, with the value and what is accepted.
func TestLimits(t *testing.T) {
	for want, c := range map[string]Instance{
		"depth 3, accepted":            base("", 3, "p"),
		"operation 'x', accepted":      base("", 2, "px"),
		"9 puts, accepted":             base("", 2, "ppppppppp"),
		"4 producers, accepted":        base("", 2, "p", "p", "p", "p"),
		"modulo 8, accepted":           with(base("", 2, "ppp"), func(c *Config) { c.Wrap = 8 }),
		"0 in flight, accepted":        with(base("", 2, "p"), func(c *Config) { c.Async = true }),
		"3 words and a cell, accepted": with(base("", 2, "p"), func(c *Config) { c.Words, c.Cell = 3, true }),
		`"px", accepted`:               Hold{Kinds: "px", Open: 1, Pieces: 2, Batch: 1},
		"6 operations open, accepted":  Hold{Kinds: "p", Open: 6, Pieces: 2, Batch: 1},
		"1 pieces, accepted":           Hold{Kinds: "p", Open: 1, Pieces: 1, Batch: 1},
		"batches of 0, accepted":       Hold{Kinds: "p", Open: 1, Pieces: 2},
		"7 arrivals, accepted":         Reset{Net: make([]uint8, 4), LSA: make([]uint8, 3), Ops: 1},
		"add up to 64, accepted":       Reset{Net: []uint8{60}, LSA: []uint8{4}, Ops: 1},
		"9 bits, accepted":             Reset{Bits: 9, Ops: 1},
		"0 operations, accepted":       Reset{},
		"before of 1, accepted":        Reset{Ops: 1, Before: 1, Fault: ResetExchanges},
		"8 windows, accepted":          Windows{Registered: 8, Gens: 1, Ops: 1, Threads: 1},
		"0 generations, accepted":      Windows{Registered: 1, Ops: 1, Threads: 1},
		"3 threads, accepted":          Windows{Registered: 1, Gens: 1, Ops: 1, Threads: 3},
		"3 operations of 2 threads":    Windows{Registered: 1, Gens: 1, Ops: 3, Threads: 2},
	} {
		if _, err := Check(c, 1000); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, expected %q", err, want)
		}
	}
	if _, err := Check(base("", 2, "ps", "s"), 1000); err == nil {
		t.Error("an instance with more states than the limit was accepted")
	}
}
