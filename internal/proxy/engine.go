// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/doorbell-net/doorbell/gpu"
	"github.com/doorbell-net/doorbell/internal/sys"
)

// Mode is who drives progress.
type Mode int

// Modes. In both, host calls that wait drive it too.
const (
	Auto     Mode = iota // Thread where there are cores for it, else Assisted
	Thread               // a thread of its own polls, as in the paper
	Assisted             // device threads that wait, and a timer as a backstop
)

func (m Mode) String() string { return [...]string{"auto", "thread", "assisted"}[m] }

// ParseMode reads "auto", "thread" or "assisted".
func ParseMode(s string) (Mode, error) {
	for m := Auto; m <= Assisted; m++ {
		if s == m.String() {
			return m, nil
		}
	}
	return 0, fmt.Errorf("progress %q: auto, thread and assisted are accepted", s)
}

// Choose is what Auto stands for: a thread for each process where that leaves a core for each process's kernels and
// there are four cores at least.
func Choose(m Mode, cores, processes int) Mode {
	if m != Auto {
		return m
	}
	if cores >= 4 && cores >= 2*processes {
		return Thread
	}
	return Assisted
}

// Times of a progress owner that finds nothing.
const (
	sleepAfter  = 200 * time.Microsecond
	backstopMin = time.Millisecond
	backstopMax = 10 * time.Millisecond
	idleAfter   = time.Second
	idleNap     = 500 * time.Millisecond
	yieldEvery  = 32 // fruitless passes between two offers of the core
	// Passes of others during a nap of the backstop from which on they drive, and it is not needed.
	drivenPasses = 8
)

// Engine is the progress of a process: it drives the owners of its ranks.
type Engine struct {
	mode   Mode
	owners atomic.Pointer[[]*Owner]
	turn   atomic.Uint32

	mu      sync.Mutex
	stopped chan struct{} // closed when the driver has ended; nil without one
	ended   chan struct{} // closed when it is to end

	napping uint32 // 0; 1 once the backstop is to end
	asleep  uint32 // 1 while the thread sleeps; producers that see it wake it
	ending  atomic.Bool
}

// NewEngine makes an engine that drives nothing yet. mode is Thread or Assisted.
func NewEngine(mode Mode) *Engine {
	e := &Engine{mode: mode}
	e.owners.Store(new([]*Owner))
	return e
}

// Mode is Thread or Assisted.
func (e *Engine) Mode() Mode { return e.mode }

// Asleep is the word that is not 0 while the engine's thread sleeps.
func (e *Engine) Asleep() *uint32 { return &e.asleep }

// Add starts to drive an owner; the first one starts the engine.
func (e *Engine) Add(o *Owner) {
	e.mu.Lock()
	defer e.mu.Unlock()
	next := append(slices.Clone(*e.owners.Load()), o)
	e.owners.Store(&next)
	if e.stopped == nil {
		e.stopped, e.ended = make(chan struct{}), make(chan struct{})
		e.ending.Store(false)
		if e.mode == Thread {
			go e.poll(e.stopped)
		} else {
			atomic.StoreUint32(&e.napping, 0)
			go e.backstop(e.stopped, e.ended)
		}
	}
}

// Remove stops driving an owner; the last one stops the engine, and Remove returns when it has stopped.
func (e *Engine) Remove(o *Owner) {
	e.mu.Lock()
	defer e.mu.Unlock()
	next := slices.DeleteFunc(slices.Clone(*e.owners.Load()), func(x *Owner) bool { return x == o })
	e.owners.Store(&next)
	if len(next) == 0 && e.stopped != nil {
		e.ending.Store(true)
		close(e.ended)
		atomic.StoreUint32(&e.napping, 1)
		sys.FutexWake(&e.napping, 1)
		e.wake()
		<-e.stopped
		e.stopped = nil
	}
}

func (e *Engine) wake() {
	atomic.StoreUint32(&e.asleep, 0)
	sys.FutexWake(&e.asleep, 1)
}

// Wake ends the sleep of the engine's thread, if it sleeps: a kernel was launched that cannot.
func (e *Engine) Wake() {
	if atomic.LoadUint32(&e.asleep) != 0 {
		e.wake()
	}
}

// Assist is what a waiting thread of an owner's rank calls: it drives that owner, and when there was nothing to do, one
// of the others in turn.
func (e *Engine) Assist(first *Owner) bool {
	if first.Pass() {
		return true
	}
	all := *e.owners.Load()
	if len(all) < 2 {
		return false
	}
	o := all[e.turn.Add(1)%uint32(len(all))]
	return o != first && o.Pass()
}

// round drives each owner once.
func (e *Engine) round() (worked bool) {
	for _, o := range *e.owners.Load() {
		if o.Pass() {
			worked = true
		}
	}
	return worked
}

func (e *Engine) quiet() bool {
	for _, o := range *e.owners.Load() {
		if !o.Quiet() {
			return false
		}
	}
	return true
}

// passes counts those of all owners.
func (e *Engine) passes() (n uint64) {
	for _, o := range *e.owners.Load() {
		n += gpu.Load(gpu.PtrTo(&o.stats.Passes), gpu.Relaxed, gpu.ScopeSys)
	}
	return n
}

func (e *Engine) audit() {
	for _, o := range *e.owners.Load() {
		o.Audit()
	}
}

// poll is the dedicated thread. It never enters Go's scheduler while it polls: that costs a locked goroutine 20 us.
func (e *Engine) poll(stopped chan struct{}) {
	runtime.LockOSThread()
	defer close(stopped)
	idle, since, nap := 0, uint64(0), backstopMin
	for !e.ending.Load() {
		if e.round() {
			idle, nap = 0, backstopMin
			continue
		}
		if idle++; idle%yieldEvery != 0 {
			continue
		}
		sys.Yield() // another process may want the core
		now := sys.Nanotime()
		if idle == yieldEvery {
			since = now
			continue
		}
		if now-since < uint64(sleepAfter) {
			continue
		}
		if e.sleep(nap) {
			nap = min(2*nap, backstopMax)
		} else {
			nap = backstopMin
		}
		e.audit()
		idle = 0
	}
}

// backstop drives the owners by the clock where no thread polls: what a kernel that has ended left behind, and lost
// hints. After a second without work it sleeps until a producer wakes it: waking a hundred times a second took each
// process almost a hundredth of a core.
func (e *Engine) backstop(stopped, ended chan struct{}) {
	defer close(stopped)
	nap, since := backstopMin, sys.Nanotime()
	timer := time.NewTimer(backstopMax)
	defer timer.Stop()
	driven := false
	for !e.ending.Load() {
		before := e.passes()
		if driven {
			// Waiting threads drive. Of a thread in a system call the runtime's monitor would look every 20 us whether it
			// comes back, and with more ranks than cores each look costs the ranks 10 us of their core.
			timer.Reset(backstopMax)
			select {
			case <-timer.C:
			case <-ended:
			}
		} else {
			// A sleeping thread: a timer of the runtime costs twice as much to come.
			sys.FutexWait(&e.napping, 0, nap)
		}
		driven = e.passes()-before > drivenPasses
		worked := false
		for n := 0; n < 1000 && e.round(); n++ { // a thousand passes at most before it looks at ending
			worked = true
		}
		e.audit()
		if nap = min(2*nap, backstopMax); worked {
			nap, since = backstopMin, sys.Nanotime()
		} else if sys.Nanotime()-since > uint64(idleAfter) && e.sleep(idleNap) {
			nap = backstopMin
		}
	}
}

// sleep waits for a producer, for the time given at most. It is false when there was something to do instead.
func (e *Engine) sleep(nap time.Duration) bool {
	atomic.StoreUint32(&e.asleep, 1)
	// A producer stores its descriptor and then looks at asleep, with no fence between: that stands here, where it is
	// rare. Without it (an old kernel) a wake may be lost, and the nap bounds the harm.
	sys.Membarrier()
	quiet := e.quiet() && !e.ending.Load()
	if quiet {
		sys.FutexWait(&e.asleep, 1, nap)
	}
	atomic.StoreUint32(&e.asleep, 0)
	return quiet
}
