// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/doorbell-net/doorbell/gpu"
	"github.com/doorbell-net/doorbell/internal/abi"
	"github.com/doorbell-net/doorbell/internal/sys"
	"github.com/doorbell-net/doorbell/internal/testenv"
)

var small = shape{contexts: 1, peers: 1, depth: 16, signals: 1, counters: 1, windows: 1, maxBytes: 1000, bytes: 1000}

// TestEngine starts and stops engines of both modes: what is put is moved with nobody else's help, also after idle
// times, by each owner, and after the engine was empty and started again.
func TestEngine(t *testing.T) {
	for _, mode := range []Mode{Thread, Assisted} {
		t.Run(mode.String(), func(t *testing.T) {
			e := NewEngine(mode)
			if e.Mode() != mode {
				t.Errorf("mode is %v", e.Mode())
			}
			for round := range 5 {
				var rigs []*shmRig
				for range 1 + round%3 {
					r := newShmRig(t, small)
					rigs = append(rigs, r)
					e.Add(r.owner)
				}
				for i := range 20 {
					if i == 10 {
						time.Sleep(3 * time.Millisecond) // sleep: the engine is to find nothing for a while
					}
					for _, r := range rigs {
						if !r.put(0, 0, r.signal(), nil, true) {
							t.Fatal("no room")
						}
						if atomic.LoadUint32(e.Asleep()) != 0 {
							wake(e.Asleep())
						}
						eventually(t, "the operation is taken", func() bool { return r.completed(0, 0) == i+1 })
					}
				}
				for _, r := range rigs {
					e.Remove(r.owner)
				}
				r := rigs[0]
				r.put(0, 0, r.signal(), nil, true)
				time.Sleep(2 * time.Millisecond) // sleep: nobody is to take it
				if r.completed(0, 0) != 20 {
					t.Error("an owner is driven after it was removed")
				}
			}
		})
	}
}

// wake is what a producer does that sees the engine asleep.
func wake(word *uint32) {
	if atomic.SwapUint32(word, 0) != 0 {
		sys.FutexWake(word, 1)
	}
}

// TestAsleep has the thread fall asleep when there is nothing to do, and a producer wake it. A hint or a wake that is
// lost delays an operation by the backstop at most.
func TestAsleep(t *testing.T) {
	e := NewEngine(Thread)
	r := newShmRig(t, small)
	e.Add(r.owner)
	defer e.Remove(r.owner)
	for i := range 10 {
		eventually(t, "the thread sleeps", func() bool { return atomic.LoadUint32(e.Asleep()) == 1 })
		r.put(0, 0, r.signal(), nil, i%2 == 0)
		if i%3 != 0 {
			wake(e.Asleep())
		}
		eventually(t, "the operation is taken", func() bool { return r.completed(0, 0) == i+1 })
	}
}

// TestTwoDrivers has many goroutines drive one owner, and each other's, while several kernels put: under -race, nothing
// is lost or taken twice.
func TestTwoDrivers(t *testing.T) {
	e := NewEngine(Assisted)
	s := small
	s.peers, s.depth = 2, 8
	rigs := []*shmRig{newShmRig(t, s), newShmRig(t, s)}
	for _, r := range rigs {
		e.Add(r.owner)
	}
	const each = 2000
	var wg sync.WaitGroup
	var stop atomic.Bool
	for i := range 4 {
		wg.Go(func() {
			for !stop.Load() {
				e.Assist(rigs[i%2].owner)
			}
		})
	}
	var producers sync.WaitGroup
	for _, r := range rigs {
		for p := range 2 {
			producers.Go(func() {
				d := r.signal()
				d.Flags |= abi.FlagCounter
				for i := 0; i < each; {
					if r.put(0, p, d, nil, i%3 != 0) {
						i++
					} else {
						sys.Yield()
					}
				}
			})
		}
	}
	producers.Wait()
	for _, r := range rigs {
		eventually(t, "all is through", func() bool { return r.completed(0, 0) == each && r.completed(0, 1) == each })
	}
	stop.Store(true)
	wg.Wait()
	for _, r := range rigs {
		e.Remove(r.owner)
		if n := r.counter(0, 0); n != 2*each {
			t.Errorf("the counter is %d, want %d", n, 2*each)
		}
		for p, mem := range r.signals {
			if n := gpu.Load(gpu.Cast[uint64](gpu.PtrOf(mem)), gpu.Acquire, gpu.ScopeSys); n != each {
				t.Errorf("the signal of peer %d is %d, want %d", p, n, each)
			}
		}
		st, err := r.owner.Stats(t.Context())
		if err != nil || st.Signals != 2*each || st.Puts != 0 {
			t.Errorf("stats are %+v, %v", st, err)
		}
	}
}

// TestTaken has a holder that does not let go: a pass goes by, and a host call ends by its context.
func TestTaken(t *testing.T) {
	r := newShmRig(t, small)
	r.put(0, 0, r.signal(), nil, true)
	if err := r.owner.With(t.Context(), func() {
		if r.owner.Pass() {
			t.Error("two were in a pass at once")
		}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		defer cancel()
		err := r.owner.AddWindow(ctx, &Window{ID: 9})
		if err == nil || !strings.Contains(err.Error(), "rank 0") || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a call while another one holds the owner: %v", err)
		}
	}); err != nil {
		t.Fatal(err)
	}
	if !r.owner.Pass() || r.completed(0, 0) != 1 {
		t.Error("after that it does not go on")
	}
}

// TestModes reads and chooses modes.
func TestModes(t *testing.T) {
	for _, m := range []Mode{Auto, Thread, Assisted} {
		if got, err := ParseMode(m.String()); got != m || err != nil {
			t.Errorf("%v is read as %v, %v", m, got, err)
		}
	}
	if _, err := ParseMode("x"); err == nil || !strings.Contains(err.Error(), `"x"`) {
		t.Errorf("x is read: %v", err)
	}
	for _, c := range []struct {
		m            Mode
		cores, procs int
		want         Mode
	}{
		{Auto, 1, 1, Assisted}, {Auto, 2, 1, Assisted}, {Auto, 3, 1, Assisted}, {Auto, 4, 1, Thread}, {Auto, 4, 2, Thread},
		{Auto, 4, 4, Assisted}, {Auto, 64, 8, Thread}, {Thread, 1, 8, Thread}, {Assisted, 64, 1, Assisted},
	} {
		if got := Choose(c.m, c.cores, c.procs); got != c.want {
			t.Errorf("%v on %d cores, %d processes: %v, want %v", c.m, c.cores, c.procs, got, c.want)
		}
	}
}

// TestDeadProducers looks for producers that died: by looks that are close together, a second of them; a stop of the
// whole process is not their fault, and neither is a network that takes nothing.
func TestDeadProducers(t *testing.T) {
	for name, c := range map[string]struct {
		looks int    // of auditGap each
		again bool   // the network takes nothing
		put   bool   // the descriptor is there
		jump  uint64 // one look after so long
		dead  bool
	}{
		"slow":            {looks: 40},
		"dead":            {looks: 60, dead: true},
		"process stopped": {looks: 30, jump: 100_000_000_000},
		"network full":    {looks: 100, again: true, put: true},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFakeRig(t, small, testenv.Random(t), 0)
			if c.again {
				f.net.again = 1
			}
			f.queue(0, 0).Prod.Raw().Ticket++
			if c.put {
				f.queue(0, 0).Prod.Raw().Ticket--
				f.put(0, 0, f.signal(), nil, true)
			}
			for i := range c.looks {
				f.owner.Pass()
				gap := uint64(auditGap)
				if i == c.looks/2 && c.jump > 0 {
					gap = c.jump
				}
				f.owner.audited = sys.Nanotime() - gap
				f.owner.Audit()
			}
			want := abi.OK
			if c.dead {
				want = abi.Aborted
			}
			if got := f.status(0, 0); got != abi.Status(want) {
				t.Errorf("status is %v, want %v", got, abi.Status(want))
			}
			if c.dead != (len(f.failed) == 1 && errors.Is(f.failed[0], errDied)) {
				t.Errorf("reported: %v", f.failed)
			}
		})
	}
}
