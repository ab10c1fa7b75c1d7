// SPDX-License-Identifier: Apache-2.0

package model

import (
	"testing"

	"github.com/doorbell-net/doorbell/internal/testenv"
)

// arrivals have sums that tell which of them were counted.
var arrivals = Reset{Net: []uint8{1, 2, 4}, LSA: []uint8{8, 16}, Ops: 3}

func resets(name string, change func(*Reset)) Reset {
	c := arrivals
	c.Name = name
	change(&c)
	return c
}

var rightResets = []Reset{
	resets("three by the network, two by LSA peers", func(*Reset) {}),
	resets("three by the network, two by LSA peers, over the words' wrap", func(c *Reset) { c.Before = 253 }),
	resets("the progress stores sums", func(c *Reset) { c.Absolute, c.Before = true, 126 }),
	resets("waits of all bits", func(c *Reset) { c.Bits, c.Before = 8, 253 }),
	resets("waits of all bits, the progress stores sums", func(c *Reset) { c.Bits, c.Absolute = 8, true }),
	resets("waits of three bits", func(c *Reset) { c.Bits, c.Net, c.LSA, c.Before = 3, []uint8{1, 1, 1}, []uint8{1}, 253 }),
	resets("words exchanged with 0, all add", func(c *Reset) { c.Fault = ResetExchanges }),
}

var largerResets = []Reset{
	resets("three by each way, five operations", func(c *Reset) {
		c.Net, c.LSA, c.Ops, c.Bits, c.Before = []uint8{1, 2, 4}, []uint8{8, 16, 32}, 5, 8, 253
	}),
	resets("three by each way, five operations, the progress stores sums", func(c *Reset) {
		c.Net, c.LSA, c.Ops, c.Absolute, c.Before = []uint8{1, 2, 4}, []uint8{8, 16, 32}, 5, true, 253
	}),
}

// TestReset checks resets by remembered offset, which arrivals race with.
func TestReset(t *testing.T) {
	if testenv.Race {
		checkRight(t, rightResets[:1], 2_000_000)
		return
	}
	taken := checkRight(t, rightResets, 2_000_000)
	if long() {
		checkRight(t, largerResets, 60_000_000)
	}
	allTaken(t, taken, resetText)
}

// TestResetPlanted checks that each fault in a reset is found.
func TestResetPlanted(t *testing.T) {
	fault := func(f ResetFault) func(*Reset) { return func(c *Reset) { c.Fault = f } }
	checkPlanted(t, []planted[Reset]{
		{resets("0 stored into the words", fault(ResetStores)), "but"},
		{resets("words exchanged with 0, the progress stores sums", func(c *Reset) { c.Fault, c.Absolute = ResetExchanges, true }), "but"},
		{resets("offset of NET alone", fault(ResetNET)), "but"},
		{resets("offset of LSA alone", fault(ResetLSA)), "but"},
		{resets("one reading told, another remembered", fault(ResetRereads)), "but"},
		{resets("the offset of before forgotten", fault(ResetForgets)), "but"},
		{resets("another thread reads", fault(ReadBeside)), "a read saw -"},
		{resets("a wait of three bits begins with an old NET", func(c *Reset) {
			c.Fault, c.Bits, c.Net = NearAnyBits, 3, []uint8{5}
		}), "a wait for"},
	})
}
