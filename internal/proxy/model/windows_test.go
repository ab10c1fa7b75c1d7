// SPDX-License-Identifier: Apache-2.0

package model

import (
	"testing"

	"github.com/doorbell-net/doorbell/internal/testenv"
)

// again has a window registered again once, and more generations than windows.
func again(name string, change func(*Windows)) Windows {
	c := Windows{Name: name, Registered: 2, Gens: 4, Ops: 2, Threads: 1}
	change(&c)
	return c
}

var rightWindows = []Windows{
	again("two threads, the target withdraws", func(c *Windows) { c.Ops, c.Threads, c.Closes = 1, 2, true }),
	again("three windows, one thread", func(c *Windows) { c.Registered, c.Ops, c.Closes = 3, 3, true }),
	again("cut puts, ordered", func(c *Windows) { c.Cut, c.Closes = true, true }),
	again("cut puts, no order", func(c *Windows) { c.Cut, c.Hold, c.Closes = true, true, true }),
	again("nothing is checked at the source", func(c *Windows) { c.Fault, c.Ops, c.Threads = NoSourceCheck, 1, 2 }),
	again("cut puts, no order, nothing is checked at the source", func(c *Windows) { c.Fault, c.Cut, c.Hold = NoSourceCheck, true, true }),
}

var largerWindows = []Windows{
	again("three windows, two threads, cut puts, the target withdraws", func(c *Windows) {
		c.Registered, c.Threads, c.Cut, c.Closes = 3, 2, true, true
	}),
	again("four windows, two threads, nothing is checked at the source", func(c *Windows) {
		c.Fault, c.Registered, c.Threads, c.Cut, c.Hold = NoSourceCheck, 4, 2, true, true
	}),
	again("six windows of seven generations", func(c *Windows) { c.Registered, c.Gens, c.Threads = 6, 7, 2 }),
}

// TestWindows checks signals at addresses in windows that are withdrawn and registered again.
func TestWindows(t *testing.T) {
	if testenv.Race {
		checkRight(t, rightWindows[3:4], 2_000_000)
		return
	}
	taken := checkRight(t, rightWindows, 2_000_000)
	if long() {
		checkRight(t, largerWindows, 60_000_000)
	}
	allTaken(t, taken, windowText)
}

// TestWindowsPlanted checks that each fault in how windows come and go is found.
func TestWindowsPlanted(t *testing.T) {
	fault := func(f WindowFault) func(*Windows) { return func(c *Windows) { c.Fault = f } }
	checkPlanted(t, []planted[Windows]{
		{again("no generation is checked", fault(NoGenCheck)), "which names window 1, is raised in window 2"},
		{again("the generation of before is kept", fault(GenKept)), "which names window 1, is raised in window 2"},
		{again("no more generations than windows in a descriptor's time", func(c *Windows) { c.Registered, c.Gens = 3, 2 }), "which names window 1, is raised in window 3"},
		{again("a cut put is checked once", func(c *Windows) { c.Fault, c.Cut = CheckedOnce, true }), "posted while none is registered"},
		{again("a cut put is checked once, no order", func(c *Windows) { c.Fault, c.Cut, c.Hold = CheckedOnce, true, true }), "posted while none is registered"},
		{again("withdrawn while operations are on their way", fault(RemovedWhileFlying)), "a mapping of window 1 that was given back"},
		{again("the device knows before the proxy", fault(DeviceFirst)), "which is the one registered, and is refused"},
		{again("the target places what comes too late", func(c *Windows) { c.Fault, c.Closes = TargetTrusts, true }), "which the target has withdrawn"},
	})
}
