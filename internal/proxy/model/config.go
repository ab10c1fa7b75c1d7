// SPDX-License-Identifier: Apache-2.0

package model

import "fmt"

// Limits of the state's fixed arrays.
const (
	maxProducers = 3
	maxDrivers   = 2
	maxDepth     = 4
	maxWords     = 3
	maxPuts      = 8
)

// HintRule says when a pass looks at a queue's head because of its hint word.
type HintRule uint8

const (
	// HintChanged looks when the hint differs from the one seen last.
	HintChanged HintRule = iota
	// HintAhead looks while the hint is ahead of head (rolling), whether it is new or not.
	HintAhead
)

// Detect says what convinces the proxy that a producer died between its ticket and its descriptor.
type Detect uint8

const (
	// DetectHint needs a hint ahead of the empty head slot.
	DetectHint Detect = iota
	// DetectLaterSlot needs a hint ahead, or any full slot behind the empty one.
	DetectLaterSlot
	// DetectTicket needs the ticket word itself ahead of the empty head slot.
	DetectTicket
)

// Fault is a planted mistake. The zero value is the protocol as designed.
type Fault uint8

const (
	NoFault Fault = iota
	// FetchAddTicket takes the ticket before room is seen; a timeout then leaves a hole.
	FetchAddTicket
	// ClearHint has the consumer clear the hint once it has seen it.
	ClearHint
	// FirstWordOnly checks the phase of word 0 and trusts the others.
	FirstWordOnly
	// ConsumedEarly publishes consumed before the slot is copied.
	ConsumedEarly
	// CellRelaxed stores word 0 without release behind an unphased cell.
	CellRelaxed
	// CellFirst reads the unphased cell before word 0.
	CellFirst
	// FlushByConsumed has one index for both purposes: consumed, so that a flush lies.
	FlushByConsumed
	// CreditByCompleted has one index for both purposes: completed, so that credit starves.
	CreditByCompleted
	// CompletedCounts counts completions instead of publishing their contiguous prefix.
	CompletedCounts
	// EndedPerSlot remembers completions beyond the prefix in one bit per slot, while more than Depth may be open.
	EndedPerSlot
	// SignalFirst raises the signal before it stores the payload.
	SignalFirst
	// SignalRelaxed raises the signal after the payload, but without release.
	SignalRelaxed
	// SignalOwnPut has the network hold a signal for its own put only (weak instead of strong).
	SignalOwnPut
	// UnlockRelaxed gives the try-lock back without release.
	UnlockRelaxed
	// PlainCompare compares tickets as plain numbers instead of rolling ones.
	PlainCompare
	// ZeroedAnywhere zeroes the slots but starts at a ticket that is no multiple of 2*Depth.
	ZeroedAnywhere
	// CreditNotMax caches consumed+Depth without taking the maximum with the old credit (harmless).
	CreditNotMax
	// NoSleepFence lacks the full fence between asleep=1 and the owner's last look.
	NoSleepFence
	// NoWakeFence lacks the full fence between the descriptor and the producer's look at asleep.
	NoWakeFence
	// SleepIfBusy sleeps after a last look that another driver's lock prevented.
	SleepIfBusy
	// RecheckByHint makes the last look before sleep by hint instead of by head.
	RecheckByHint
	// ConsumeAfterAbort goes on consuming a queue that was declared dead (a late descriptor is then taken).
	ConsumeAfterAbort
)

// Config is one finite instance of the protocol.
//
// A program is a string of operations of one producer: p put, s put with a strong signal, f flush.
type Config struct {
	Name     string
	Depth    int      // slots in the queue, a power of two
	Words    int      // words in a slot, each with a phase bit
	Cell     bool     // and a word without one, stored before a release store of word 0 (inline payload, source bytes)
	Wrap     int      // tickets count modulo Wrap, a multiple of 2*Depth
	Start    int      // the first ticket
	Programs []string // one per producer
	Drivers  int      // 1: the thread (or backstop); 2: and a waiting device thread, while producers run

	Async    bool // a network that completes out of order; else the holder of the lock copies by itself
	InFlight int  // operations in flight at most (Async)

	Timeouts int  // waits for credit that may give up, in all
	NoSweep  bool // heads are looked at for their hint only
	NoHints  bool // every hint is lost
	Hint     HintRule
	Budget   bool // a pass may end although descriptors are left

	Sleep    bool // the thread sleeps when idle, producers wake it
	Remote   bool // the owner's fence before its last look is one of all threads (membarrier)
	Backstop bool // the sleep ends by itself

	Crash    bool   // one producer may die between its ticket and its last word
	Detect   Detect // how the proxy finds that out
	Spurious bool   // the proxy's timer may also run out while the producer is only slow

	Fault Fault
}

// String is the instance's name.
func (c Config) String() string { return c.Name }

// parts is the number of words in a slot, the cell included.
func (c *Config) parts() int {
	if c.Cell {
		return c.Words + 1
	}
	return c.Words
}

// validate returns an error that names the first field out of its range.
func (c *Config) validate() error {
	puts := 0
	for _, p := range c.Programs {
		for _, k := range p {
			switch k {
			case 'p', 's':
				puts++
			case 'f':
			default:
				return fmt.Errorf("check model %q: operation %q, accepted are p, s and f", c.Name, k)
			}
		}
	}
	switch {
	case c.Depth < 1 || c.Depth > maxDepth || c.Depth&(c.Depth-1) != 0:
		return fmt.Errorf("check model %q: depth %d, accepted is a power of two up to %d", c.Name, c.Depth, maxDepth)
	case c.Words < 1 || c.Words > maxWords:
		return fmt.Errorf("check model %q: %d words, accepted are 1 to %d", c.Name, c.Words, maxWords)
	case c.Cell && c.Words == maxWords:
		return fmt.Errorf("check model %q: %d words and a cell, accepted are %d words beside a cell", c.Name, c.Words, maxWords-1)
	case len(c.Programs) < 1 || len(c.Programs) > maxProducers:
		return fmt.Errorf("check model %q: %d producers, accepted are 1 to %d", c.Name, len(c.Programs), maxProducers)
	case c.Drivers < 1 || c.Drivers > maxDrivers:
		return fmt.Errorf("check model %q: %d drivers, accepted are 1 and %d", c.Name, c.Drivers, maxDrivers)
	case puts > maxPuts:
		return fmt.Errorf("check model %q: %d puts, accepted are %d", c.Name, puts, maxPuts)
	case c.Wrap > 128 || c.Wrap < 2*(puts+c.Depth):
		// Below it the model's tickets would wrap into themselves, which 64 bits never do.
		return fmt.Errorf("check model %q: tickets modulo %d, accepted are %d to 128", c.Name, c.Wrap, 2*(puts+c.Depth))
	case c.Async && (c.InFlight < 1 || c.InFlight > maxPuts):
		return fmt.Errorf("check model %q: %d in flight, accepted are 1 to %d", c.Name, c.InFlight, maxPuts)
	case c.Sleep && c.Async:
		return fmt.Errorf("check model %q: sleep with operations in flight, which the owner must poll", c.Name)
	}
	return nil
}
