// SPDX-License-Identifier: Apache-2.0

package gpu

import (
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

// SoftBlock is a block of a launch on a software device; SoftThread one thread of it. They are made once and used for
// many launches, so that a launch allocates nothing. Kernels do not use them.
type SoftBlock struct {
	Env     Env
	index   int32
	blocks  int32
	warps   int32
	ended   atomic.Bool
	left    atomic.Int32      // warps that have ended
	barrier [barriers]barrier // the block's own, and those with names
	lanes   lanes
	threads []SoftThread
	shared  sync.Map // *Shared[T] -> *T
}

// SoftThread is one thread of a SoftBlock.
type SoftThread struct {
	block *SoftBlock
	index int32
	_     [48]byte // threads run on different cores
}

// Reset prepares the block for a launch: its place in the grid, and how many warps it has.
func (b *SoftBlock) Reset(index, blocks, warps int32) {
	b.index, b.blocks, b.warps = index, blocks, warps
	b.ended.Store(false)
	b.left.Store(0)
	for i := range b.barrier {
		b.barrier[i].reset()
	}
	b.lanes.reset(warps)
	if n := int(warps * WarpSize); n > len(b.threads) {
		b.threads = make([]SoftThread, n)
		for i := range b.threads {
			b.threads[i] = SoftThread{block: b, index: int32(i)}
		}
	}
}

// Thread is thread i of the block: a warp is WarpSize threads that follow one another.
func (b *SoftBlock) Thread(i int32) Thread { return Thread{&b.threads[i]} }

// Leave says that thread i has ended. Those that wait for it at a barrier, or at an operation of its warp, then leave
// the kernel too, by a panic that says so.
func (b *SoftBlock) Leave(i int32) {
	if !b.lanes.leave(i) {
		return
	}
	b.left.Add(1)
	for i := range b.barrier {
		b.barrier[i].look()
	}
}

// End releases the threads that wait at the block's barriers, since one that they wait for will not come. They leave
// the kernel by a panic with the value Ended.
func (b *SoftBlock) End() {
	b.ended.Store(true)
	b.lanes.end()
	for i := range b.barrier {
		b.barrier[i].release()
	}
}

// Ended is what a thread panics with when its launch was ended under it by SoftBlock.End.
var Ended = endedError{}

type endedError struct{}

func (endedError) Error() string { return "launch ended: another thread of the block failed" }

// Shared is a package variable of a kernel that exists once per block, in the block's shared memory. Its content at
// the start of a launch is not defined.
type Shared[T any] struct{ _ byte }

// Of is the calling thread's block's instance.
func (s *Shared[T]) Of(t Thread) *T {
	m := &t.at.block.shared
	if v, ok := m.Load(s); ok {
		return v.(*T)
	}
	v, _ := m.LoadOrStore(s, new(T))
	return v.(*T)
}
