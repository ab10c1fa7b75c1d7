// SPDX-License-Identifier: Apache-2.0

package gpu

import (
	"runtime"
	"sync"
	"sync/atomic"
)

// Env is what a software device gives to the threads of a launch. Kernels do not use it.
type Env interface {
	// Clock is nanoseconds on the device's clock.
	Clock() uint64
	// Idle is Thread.Idle.
	Idle(round int32, waited uint64) bool
	// Wake wakes a sleeper on the word.
	Wake(word *uint32)
}

// SoftBlock is a block of a launch on a software device; SoftWarp one warp of it. They are made once and used for many
// launches, so that a launch allocates nothing. Kernels do not use them.
type SoftBlock struct {
	Env     Env
	index   int32
	blocks  int32
	warps   int32
	ended   atomic.Bool
	barrier [barriers]barrier // the block's own, and those with names
	warp    []SoftWarp
	shared  sync.Map // *Shared[T] -> *T
}

// SoftWarp is one warp of a SoftBlock.
type SoftWarp struct {
	block *SoftBlock
	index int32
	_     [48]byte // warps run on different cores
}

// Reset prepares the block for a launch: its place in the grid, and how many warps it has.
func (b *SoftBlock) Reset(index, blocks, warps int32) {
	b.index, b.blocks, b.warps = index, blocks, warps
	b.ended.Store(false)
	for i := range b.barrier {
		b.barrier[i].reset()
	}
	if int(warps) > len(b.warp) {
		b.warp = make([]SoftWarp, warps)
		for i := range b.warp {
			b.warp[i] = SoftWarp{block: b, index: int32(i)}
		}
	}
}

// Thread is the thread of warp w; on a software device of one lane a warp is a thread.
func (b *SoftBlock) Thread(w int32) Thread { return Thread{&b.warp[w]} }

// End releases the threads that wait at the block's barriers, since one that they wait for will not come. They leave
// the kernel by a panic with the value Ended.
func (b *SoftBlock) End() {
	b.ended.Store(true)
	for i := range b.barrier {
		b.barrier[i].release()
	}
}

// Ended is what a thread panics with when its launch was ended under it by SoftBlock.End.
var Ended = endedError{}

type endedError struct{}

func (endedError) Error() string { return "launch ended: another thread of the block failed" }

// barriers is how many a block has on a GPU.
const barriers = 16

// barrier is a barrier of a block: arrivals are counted, the last one opens the next generation. Waiters look a few times
// and then sleep, since there may be more warps than cores.
type barrier struct {
	in   atomic.Int32
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

func (b *barrier) wait(w *SoftWarp, n int32) {
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
	for b.gen.Load() == g && !w.block.ended.Load() {
		b.cond.Wait()
	}
	b.mu.Unlock()
	if w.block.ended.Load() {
		panic(Ended)
	}
}

func (b *barrier) release() {
	b.mu.Lock()
	b.gen.Add(1)
	b.cond.Broadcast()
	b.mu.Unlock()
}

// Shared is a package variable of a kernel that exists once per block, in the block's shared memory. Its content at
// the start of a launch is not defined.
type Shared[T any] struct{ _ byte }

// Of is the calling thread's block's instance.
func (s *Shared[T]) Of(t Thread) *T {
	m := &t.w.block.shared
	if v, ok := m.Load(s); ok {
		return v.(*T)
	}
	v, _ := m.LoadOrStore(s, new(T))
	return v.(*T)
}
