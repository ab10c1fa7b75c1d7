// SPDX-License-Identifier: Apache-2.0

// Package plugintest is the conformance kit of network plugins: what package netplugin promises to Core, held against a
// plugin in this process.
//
//	func TestConformance(t *testing.T) {
//		plugintest.Run(t, func(testing.TB) plugintest.Harness { return plugintest.Harness{Plugin: foo.Plugin{}} })
//	}
//
// Each check makes a world of ranks with an endpoint each, guarded memory, and a dumb model of what that memory must
// hold. It reads a rank's memory only when the plugin's powers say that it is complete there. What is random follows from
// a seed that is logged.
//
// # How to test a network of your own
//
// A plugin may stand in any module; testdata/mailbox is a whole one, with its tests. Write the powers first: the kit holds
// the plugin against what it declares, so less is easier, and Core supplies what is missing or refuses. Then run, in this
// order,
//
//	go test -run Conformance                 # every rule, in seconds
//	go test -run Conformance -race           # a payload that no signal orders is reported here, and may not show elsewhere
//	DOORBELL_LONG=1 go test -run Conformance # also each byte of a region above 4 GiB
//
// and the same over the plugin made worse, since what never happens on your desk does elsewhere: import package
// netplugin/fault, and give as Harness.Plugin what netplugin.Lookup("fault+foo", netplugin.Faults{Text: "all"}) finds.
// With History, try as many seeds as there is time for.
//
// A failure names its check; "-run Conformance/weak" repeats one. What each one holds is in the comment of its function:
// checkWeak, and so on. Checks of what a plugin does not have (an endpoint that connects, say) pass at once.
package plugintest

import (
	"math/rand/v2"
	"runtime/debug"
	"testing"
	"time"

	"github.com/doorbell-net/doorbell/netplugin"
)

// Harness is the plugin under test and how hard to test it. Only Plugin must be given.
type Harness struct {
	Plugin netplugin.Plugin
	// Ranks of each world, 2 or more; default 3.
	Ranks int
	// Deadline of each wait for a completion or an arrival; default 5 s.
	Deadline time.Duration
	// Seed of what is random. 0 takes a new one each time; it is logged.
	Seed uint64
	// Histories is how many random ones are tried; default 30.
	Histories int
	// Allocates: operations may allocate, as those of a network that breaks on purpose do.
	Allocates bool

	epoch func(rank int) uint32 // of a world's ranks; nil: 0
}

func (h *Harness) fill() {
	if h.Ranks == 0 {
		h.Ranks = 3
	}
	if h.Deadline == 0 {
		h.Deadline = 5 * time.Second
	}
	if h.Seed == 0 {
		h.Seed = rand.Uint64() | 1
	}
	if h.Histories == 0 {
		h.Histories = 30
	}
}

// Run holds the plugin that open gives against each rule, as subtests. open is called for each of them; what it starts
// it ends by t.Cleanup.
func Run(t *testing.T, open func(t testing.TB) Harness) {
	for _, c := range checks {
		t.Run(c.name, func(t *testing.T) { c.on(t, open(t)) })
	}
}

// check is one rule, or a few that are seen by the same operations.
type check struct {
	name string
	run  func(t testing.TB, h Harness)
}

var checks = []check{
	{"open", checkOpen},
	{"put", checkPut},
	{"limit", checkLimit},
	{"large-offsets", checkLargeOffsets},
	{"signal", checkSignal},
	{"alignment", checkAlignment},
	{"get", checkGet},
	{"get-order", checkGetOrder},
	{"payload-first", checkPayloadFirst},
	{"weak", checkWeak},
	{"concurrent", checkConcurrent},
	{"history", checkHistory},
	{"burst", checkBurst},
	{"contexts", checkContexts},
	{"no-room", checkNoRoom},
	{"bounds", checkBounds},
	{"failure", checkFailure},
	{"regions", checkRegions},
	{"many-regions", checkManyRegions},
	{"withdraw", checkWithdraw},
	{"lose", checkLose},
	{"epoch", checkEpoch},
	{"close", checkClose},
	{"allocations", checkAllocations},
}

// on runs the check; a plugin that panics fails it.
func (c check) on(t testing.TB, h Harness) {
	t.Helper()
	h.fill()
	t.Logf("seed %d: set Harness.Seed to repeat", h.Seed)
	defer func() {
		if p := recover(); p != nil {
			t.Errorf("panic: %v\n%s", p, debug.Stack())
		}
	}()
	c.run(t, h)
}
