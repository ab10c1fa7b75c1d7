// SPDX-License-Identifier: Apache-2.0

package model

import (
	"testing"

	"github.com/doorbell-net/doorbell/internal/testenv"
)

// anyOps are all kinds of operation.
const anyOps = "pwsbPWS"

var rightHolds = []Hold{
	{Name: "any operations, three open, batches of two", Kinds: anyOps, Open: 3, Pieces: 2, Batch: 2},
	{Name: "any operations, two open, three pieces, a piece fails", Kinds: anyOps, Open: 2, Pieces: 3, Batch: 2, Fails: true},
	{Name: "whole ones, four open, batches of three", Kinds: "pws", Open: 4, Pieces: 2, Batch: 3},
	{Name: "cut ones, three open", Kinds: "PWS", Open: 3, Pieces: 2, Batch: 1},
	{Name: "weak signals of whole puts, completions say nothing", Kinds: "pPw", Open: 3, Pieces: 2, Batch: 2, Local: true},
	{Name: "one open", Kinds: anyOps, Open: 1, Pieces: 4, Batch: 1, Fails: true},
}

var largerHolds = []Hold{
	{Name: "any operations, four open, batches of four", Kinds: anyOps, Open: 4, Pieces: 2, Batch: 4},
	{Name: "any operations, three open, three pieces, a piece fails", Kinds: anyOps, Open: 3, Pieces: 3, Batch: 3, Fails: true},
	{Name: "any operations, five open, batches of two", Kinds: anyOps, Open: 5, Pieces: 2, Batch: 2},
	{Name: "whole ones, five open, a piece fails", Kinds: "pwsb", Open: 5, Pieces: 2, Batch: 5, Fails: true},
}

// TestHold checks strong signals over a network without order, for any operations in any number.
func TestHold(t *testing.T) {
	if testenv.Race {
		checkRight(t, rightHolds[5:], 2_000_000)
		return
	}
	taken := checkRight(t, rightHolds, 2_000_000)
	if long() {
		checkRight(t, largerHolds, 60_000_000)
	}
	allTaken(t, taken, holdText)
}

// TestHoldPlanted checks that each fault in what a signal is held for is found.
func TestHoldPlanted(t *testing.T) {
	hold := func(name, kinds string, f HoldFault) Hold {
		return Hold{Name: name, Kinds: kinds, Open: 3, Pieces: 2, Batch: 2, Fault: f}
	}
	local := hold("completions say nothing of the target", anyOps, HoldRight)
	local.Local = true
	weak := hold("weak signals alone, completions say nothing of the target", "pPwW", HoldRight)
	weak.Local = true
	deaf := hold("a piece that failed counts as ended", anyOps, HoldDeaf)
	deaf.Fails = true
	checkPlanted(t, []planted[Hold]{
		{hold("no hold", anyOps, HoldNothing), "is seen before piece"},
		{hold("no hold, whole puts only", "ps", HoldNothing), "is seen before piece"},
		{hold("strong held for its own put's pieces only", anyOps, HoldWhileCut), "(s) is seen before piece"},
		{hold("weak signal of a cut put not held", anyOps, HoldStrongOnly), "(W) is seen before piece 0"},
		{hold("held for the operation before only", "ps", HoldLast), "(s) is seen before piece"},
		{hold("held for operations whose last piece is posted", anyOps, HoldOperations), "is seen before piece 0"},
		{hold("held for what is posted, not for its batch", anyOps, HoldBatchBlind), "is seen before piece"},
		{hold("held until the table is empty, its own place included", anyOps, HoldByTable), Stuck},
		{local, "is seen before piece"},
		{weak, "(W) is seen before piece 0"},
		{deaf, "is seen before piece"},
	})
}
