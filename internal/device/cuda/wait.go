// SPDX-License-Identifier: Apache-2.0

package cuda

import (
	"context"
	"fmt"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/doorbell-net/doorbell/internal/sys"
)

// waiter is a host thread that waits: it looks again and again, never inside the driver, and moves data meanwhile.
type waiter struct {
	progress *atomic.Pointer[func() bool]
	start    uint64
	n        int
}

func (w *waiter) begin() { w.start, w.n = sys.Nanotime(), 0 }

func (w *waiter) waited() time.Duration { return time.Duration(sys.Nanotime() - w.start) }

// sleepWord is what waiting threads sleep on. Nobody wakes them: a store of a GPU wakes nobody.
var sleepWord uint32

// giveEvery is after how many rounds, of a microsecond or so each, a thread that moves data gives way to other goroutines: they
// may be ranks that have yet to launch what this one's kernel waits for. The scheduler would have it wait ten milliseconds.
const giveEvery = 64

// round is called between two looks. A kernel of some microseconds ends sooner than a thread that sleeps wakes, one of
// some milliseconds does not.
func (w *waiter) round() {
	w.n++
	drives := false
	if w.progress != nil {
		if f := w.progress.Load(); f != nil {
			if drives = true; (*f)() {
				return
			}
		}
	}
	switch waited := w.waited(); {
	case drives: // kernels wait for what this thread moves: it does not sleep
		sys.Yield()
		if w.n%giveEvery == 0 {
			runtime.Gosched()
		}
	case waited < 50*time.Microsecond:
		sys.Pause()
	case waited < time.Millisecond:
		runtime.Gosched()
	default:
		sys.FutexWait(&sleepWord, 0, min(waited/16, time.Millisecond))
	}
}

// event is a point in a stream: all items below n are done.
type event struct {
	s *stream
	n uint64
}

func (e *event) Done() bool { return e.s.reached(e.n) || e.s.failure() != nil }

func (e *event) Wait(ctx context.Context) error {
	return e.wait(ctx, waiter{progress: &e.s.dev.progress})
}

func (e *event) wait(ctx context.Context, w waiter) error {
	s := e.s
	asked := uint64(0)
	for w.begin(); !s.reached(e.n); w.round() {
		if err := s.failure(); err != nil {
			return err
		}
		if ctx.Err() != nil {
			return fmt.Errorf("wait for stream: %d of %d items done: %w; of GPU %d: %s", s.known(), e.n, context.Cause(ctx), s.card.index, s.card.report())
		}
		// The mark does not come if the kernel failed: only the driver says so, and it is asked rarely, since it takes microseconds.
		if now := sys.Nanotime(); now-asked > uint64(200*time.Microsecond) {
			if asked != 0 {
				s.idle()
			}
			asked = now
		}
	}
	return s.failure()
}
