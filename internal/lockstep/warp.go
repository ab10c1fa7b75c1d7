// SPDX-License-Identifier: Apache-2.0

package lockstep

import (
	"fmt"
	"math/bits"
	"runtime"
	"sync"
)

// Lanes is the number of lanes of a warp.
const Lanes = 32

const all = 1<<Lanes - 1

// Warp is where the lanes of one warp meet. Reset makes it ready for a launch. The other methods are called by its lanes,
// each with its own number; End by anybody. A call that cannot end well panics, in each lane that waits, with the
// *Divergence or with what was given to End.
//
// Its functions are not instrumented for the race detector, and hide from it that they synchronize: see doc.go.
type Warp struct {
	mu    sync.Mutex
	in    uint32 // lanes that wait, a bit each
	left  uint32 // lanes that have ended
	err   error  // ends each wait
	draws uint64 // state of draw
	at    [Lanes]arrival
	out   [Lanes]uint64 // values of the last meeting: the next one is over when all have read them
	wake  [Lanes]chan struct{}
	fence [2]byte // addresses, for the race detector
}

// arrival is a lane's last one.
type arrival struct {
	op     string
	value  uint64
	callee site
	syncs  int // how often it came to Sync or Through
}

// Reset prepares for a launch. seed draws the order in which lanes go on after a meeting.
func (w *Warp) Reset(seed uint64) {
	w.in, w.left, w.err, w.draws = 0, 0, nil, seed
	if w.wake[0] == nil {
		for i := range w.wake {
			w.wake[i] = make(chan struct{}, 1)
		}
	}
}

// Shuffle is the value that lane from gave to the same operation, which op names.
//
//go:norace
func (w *Warp) Shuffle(lane int32, op string, value uint64, from int32) uint64 {
	if from < 0 || from >= Lanes {
		panic(fmt.Errorf("%s asks for lane %d, 0 to %d are there, at %v", op, from, Lanes-1, here()))
	}
	w.meet(lane, op, value, nil)
	return w.out[from]
}

// Ballot has bit i set where lane i gave true.
//
//go:norace
func (w *Warp) Ballot(lane int32, vote bool) uint32 {
	v := uint64(0)
	if vote {
		v = 1
	}
	w.meet(lane, "a vote", v, nil)
	set := uint32(0)
	for i, v := range &w.out {
		set |= uint32(v) << i
	}
	return set
}

// Match has bit i set where lane i gave the same value.
//
//go:norace
func (w *Warp) Match(lane int32, value uint64) uint32 {
	w.meet(lane, "Match", value, nil)
	set := uint32(0)
	for i, v := range &w.out {
		if v == value {
			set |= 1 << i
		}
	}
	return set
}

// Elect is true in one lane, the first.
//
//go:norace
func (w *Warp) Elect(lane int32) bool {
	w.meet(lane, "Elect", 0, nil)
	return lane == 0
}

// Sync waits for all lanes; what they wrote before is visible to each of them after.
func (w *Warp) Sync(lane int32) { w.ordered(lane, "SyncWarp", func() {}) }

// Through is Sync, with one lane calling cross between: what it waits for, the warp has waited for.
func (w *Warp) Through(lane int32, op string, cross func()) { w.ordered(lane, op, cross) }

//go:norace
func (w *Warp) ordered(lane int32, op string, cross func()) {
	// Lanes may be at the next one while others have still to read of this one, so two addresses in turn.
	a := &w.at[lane]
	at := &w.fence[a.syncs%2]
	a.syncs++
	release(at)
	w.meet(lane, op, 0, func() {
		acquire(at)
		cross()
		release(at)
	})
	acquire(at)
}

// Leave says that the lane has ended; last, that all have.
//
//go:norace
func (w *Warp) Leave(lane int32) (last bool) {
	hide()
	w.mu.Lock()
	w.left |= 1 << lane
	if w.in != 0 && w.in|w.left == all && w.err == nil {
		w.err = w.divergence()
		w.release()
	}
	last = w.left == all
	w.mu.Unlock()
	show()
	return last
}

// End ends the waits of the launch, those that come later too.
//
//go:norace
func (w *Warp) End(cause error) {
	hide()
	w.mu.Lock()
	if w.err == nil {
		w.err = cause
	}
	w.release()
	w.mu.Unlock()
	show()
}

//go:norace
func (w *Warp) meet(lane int32, op string, value uint64, cross func()) {
	a := &w.at[lane]
	a.callee = here()
	hide()
	w.mu.Lock()
	a.op, a.value = op, value
	switch {
	case w.err != nil:
	case (w.in|w.left|1<<lane)&all != all:
		w.in |= 1 << lane
		w.mu.Unlock()
		<-w.wake[lane]
		w.mu.Lock()
	default: // the last one
		w.last(lane, cross)
	}
	err := w.err
	w.mu.Unlock()
	show()
	if err != nil {
		panic(err)
	}
}

// last ends a meeting, or says why it is none; w.mu is held.
//
//go:norace
func (w *Warp) last(lane int32, cross func()) {
	w.in |= 1 << lane
	if !w.together() {
		w.err = w.divergence()
	}
	w.in &^= 1 << lane // it does not wait
	if w.err == nil && cross != nil {
		w.mu.Unlock()
		show()
		err := try(cross)
		hide()
		w.mu.Lock()
		if w.err == nil {
			w.err = err
		}
	}
	for i := range w.at {
		w.out[i] = w.at[i].value
	}
	w.release()
	if w.err == nil && w.draw(2) == 0 {
		w.mu.Unlock()
		runtime.Gosched() // the others first
		w.mu.Lock()
	}
}

// try calls f and returns what it panicked with.
func try(f func()) (err error) {
	defer func() {
		switch v := recover().(type) {
		case nil:
		case error:
			err = v
		default:
			err = fmt.Errorf("%v", v)
		}
	}()
	f()
	return nil
}

// release lets the lanes that wait go on, in an order of its own; w.mu is held.
//
//go:norace
func (w *Warp) release() {
	for w.in != 0 {
		rest := w.in
		for range w.draw(bits.OnesCount32(rest)) {
			rest &= rest - 1
		}
		lane := bits.TrailingZeros32(rest)
		w.in &^= 1 << lane
		w.wake[lane] <- struct{}{}
	}
}

// draw is a number below n (xorshift64: Marsaglia, J. Stat. Software 8(14), 2003).
//
//go:norace
func (w *Warp) draw(n int) int {
	x := w.draws | 1<<63
	x ^= x << 13
	x ^= x >> 7
	x ^= x << 17
	w.draws = x
	return int(x >> 32 % uint64(n))
}
