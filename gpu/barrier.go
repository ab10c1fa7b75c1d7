// SPDX-License-Identifier: Apache-2.0

package gpu

import (
	"runtime"
	"sync"
	"sync/atomic"
)

// Alone is what a thread panics with that waits at a barrier of its block for warps that have ended.
var Alone = aloneError{}

type aloneError struct{}

func (aloneError) Error() string {
	return "a warp waits at SyncBlock or SyncWarps, and too few of its block are left to meet it: others have ended"
}

// barriers is how many a block has on a GPU.
const barriers = 16

// barrier is a barrier of a block: arrivals are counted, the last one opens the next generation. Waiters look a few times
// and then sleep, since there may be more warps than cores.
type barrier struct {
	in   atomic.Int32 // warps that wait
	gen  atomic.Uint32
	mu   sync.Mutex
	cond *sync.Cond
}

func (b *barrier) reset() {
	if b.cond == nil {
		b.cond = sync.NewCond(&b.mu)
	}
	b.in.Store(0)
}

// wait is a warp's, until n have come.
func (b *barrier) wait(of *SoftBlock, n int32) {
	g := b.gen.Load()
	if b.in.Add(1) == n {
		b.in.Store(0)
		b.release()
		return
	}
	for range 32 {
		if b.gen.Load() != g {
			break
		}
		runtime.Gosched()
	}
	b.mu.Lock()
	alone := false
	for b.gen.Load() == g && !of.ended.Load() && !alone {
		if alone = of.warps-of.left.Load() < n; !alone {
			b.cond.Wait()
		}
	}
	b.mu.Unlock()
	if of.ended.Load() {
		panic(Ended)
	}
	if alone {
		panic(Alone)
	}
}

// look has those that wait see that a warp has ended.
func (b *barrier) look() {
	if b.in.Load() > 0 { // who comes later looks by itself
		b.mu.Lock()
		b.cond.Broadcast()
		b.mu.Unlock()
	}
}

func (b *barrier) release() {
	b.mu.Lock()
	b.gen.Add(1)
	b.cond.Broadcast()
	b.mu.Unlock()
}
