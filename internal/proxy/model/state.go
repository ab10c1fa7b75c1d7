// SPDX-License-Identifier: Apache-2.0

package model

// loc names a word of shared memory.
type loc uint8

const (
	locTicket    loc = iota // device memory, compare-and-swap by producers
	locCredit               // device memory, plain stores by producers
	locHint                 // host memory, plain stores by producers
	locConsumed             // host memory, stores by the lock's holder
	locCompleted            // host memory, stores by the lock's holder
	locLock                 // private to the process, taken by compare-and-swap
	locAsleep               // set by the thread, taken back by who wakes it
	locAbort                // set by the lock's holder
	locNet                  // the target's NET signal word, added to
	locPayload              // the target's window: one word per put
	locSlot      = locPayload + maxPuts
	locCount     = locSlot + maxDepth*maxWords
)

// storeRelease marks a buffered store that becomes visible only after every older one of its thread.
const storeRelease = 0x80

const bufCap = 8

// entry is a store that its thread has done and others may not see yet.
type entry struct{ at, val uint8 }

// storeBuffer holds stores in program order. They become visible in any order, except that stores to one word stay in
// order and a release store stays last.
type storeBuffer struct {
	n uint8
	e [bufCap]entry
}

func (b *storeBuffer) room() int { return bufCap - int(b.n) }

func (b *storeBuffer) push(l loc, v uint8, flags uint8) {
	b.e[b.n] = entry{uint8(l) | flags, v}
	b.n++
}

func (b *storeBuffer) remove(i int) {
	copy(b.e[i:b.n], b.e[i+1:b.n])
	b.n--
	b.e[b.n] = entry{} // one encoding per state
}

// visible reports whether store i may become visible now.
func (b *storeBuffer) visible(i int) bool {
	if b.e[i].at&storeRelease != 0 {
		return i == 0
	}
	for j := range i {
		if b.e[j].at&^storeRelease == b.e[i].at {
			return false
		}
	}
	return true
}

type producerPC uint8

const (
	pNext producerPC = iota // begins its next operation, or is done
	pCredit
	pRefresh
	pNoRoom
	pReserve
	pFlush
	pWakeLook
	pWakeCall
	pDead
)

type producer struct {
	pc, op uint8
	t, c   uint8 // ticket and credit as read; 0 when dead
}

type driverPC uint8

const (
	dIdle driverPC = iota
	dPass
	dRead
	dCopy
	dTake
	dSignal
	dFenceAsleep
	dRecheck
	dSleepCall
	dAsleep
)

type driver struct {
	pc     uint8
	last   uint8 // this pass is the last look before sleep
	mask   uint8 // words read so far
	copied [maxWords]uint8
}

// state is everything that a run's future depends on, ghosts included. Masks have one bit per put, by ticket order.
type state struct {
	mem  [locCount]uint8
	prod [maxProducers]producer
	drv  [maxDrivers]driver
	buf  [maxProducers + maxDrivers]storeBuffer

	// Private to whoever holds the lock.
	head      uint8 // descriptors taken, from 0
	seen      uint8 // hint seen last
	completed uint8 // contiguous prefix of noted
	noted     uint8 // completions seen (and counters raised)
	ended     uint8 // one bit per slot, under EndedPerSlot

	// The network.
	local  uint8 // locally complete
	raised uint8 // signal raised

	// Ghosts.
	signals  uint8 // puts that carry a signal
	posted   uint8 // tickets whose slot was written (issued) by their producer
	timeouts uint8
	crashed  uint8 // ticket order of the dead producer's put, plus 1
}

const stateBytes = int(locCount) + maxProducers*4 + maxDrivers*(3+maxWords) + (maxProducers+maxDrivers)*(1+2*bufCap) + 11

// encode writes the state's bytes; equal states have equal encodings.
func (s *state) encode(out *[(stateBytes + 7) / 8 * 8]byte) {
	n := copy(out[:], s.mem[:])
	put := func(vs ...uint8) { n += copy(out[n:], vs) }
	for i := range s.prod {
		p := &s.prod[i]
		put(p.pc, p.op, p.t, p.c)
	}
	for i := range s.drv {
		d := &s.drv[i]
		put(d.pc, d.last, d.mask)
		n += copy(out[n:], d.copied[:])
	}
	for i := range s.buf {
		b := &s.buf[i]
		put(b.n)
		for _, e := range b.e {
			out[n], out[n+1] = e.at, e.val
			n += 2
		}
	}
	put(s.head, s.seen, s.completed, s.noted, s.ended, s.local, s.raised, s.signals, s.posted, s.timeouts, s.crashed)
}

// load returns a word as thread th sees it: its own newest store, else memory.
func (s *state) load(th int, l loc) uint8 {
	b := &s.buf[th]
	for i := int(b.n) - 1; i >= 0; i-- {
		if b.e[i].at&^storeRelease == uint8(l) {
			return b.e[i].val
		}
	}
	return s.mem[l]
}
