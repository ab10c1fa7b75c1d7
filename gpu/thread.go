// SPDX-License-Identifier: Apache-2.0

package gpu

import "github.com/doorbell-net/doorbell/internal/sys"

// Thread is the identity of the calling thread: the first parameter of each kernel. Grids are measured in warps: a
// block has Warps warps of [WarpSize] lanes, a grid has Blocks blocks.
//
// Its methods may be called by that thread only.
type Thread struct{ at *SoftThread }

// Lane is this thread's place in its warp, 0 to WarpSize-1.
func (t Thread) Lane() int32 { return t.at.index % WarpSize }

// Warp is this warp's place in its block, 0 to Warps()-1.
func (t Thread) Warp() int32 { return t.at.index / WarpSize }

// Warps is the number of warps in a block.
func (t Thread) Warps() int32 { return t.at.block.warps }

// Block is this block's place in the grid, 0 to Blocks()-1.
func (t Thread) Block() int32 { return t.at.block.index }

// Blocks is the number of blocks in the grid.
func (t Thread) Blocks() int32 { return t.at.block.blocks }

// Index is this thread's place in its block, Warp()*WarpSize + Lane().
func (t Thread) Index() int32 { return t.at.index }

// Threads is the number of threads in a block, Warps()*WarpSize.
func (t Thread) Threads() int32 { return t.at.block.warps * WarpSize }

// SyncWarp waits until each lane of the warp has called it; what they wrote before is visible to all of them after.
func (t Thread) SyncWarp() { syncWarp(t) }

// SyncBlock waits until each thread of the block has called it; what they wrote before is visible to all of them
// after. It ends without them when the launch ends early because one of them failed.
func (t Thread) SyncBlock() { syncWarps(t, 0, t.at.block.warps) }

// AnyOfBlock is SyncBlock, and says whether a thread passed true, the same to all of them.
func (t Thread) AnyOfBlock(v bool) bool {
	p := PtrTo(anyOfBlock.Of(t))
	if t.Index() == 0 {
		Store(p, 0, Relaxed, ScopeBlock)
	}
	t.SyncBlock()
	if v {
		Store(p, 1, Relaxed, ScopeBlock)
	}
	t.SyncBlock()
	v = Load(p, Relaxed, ScopeBlock) != 0
	t.SyncBlock() // before it is 0 again
	return v
}

var anyOfBlock Shared[uint32]

// SyncWarps is SyncBlock among so many warps of the block: those that call it with this barrier, 1 to 15, and all with the
// same number. Warps that do different things meet so without the others. Who comes when they have all met is of the next
// meeting.
func (t Thread) SyncWarps(barrier, warps int32) {
	if barrier < 1 || barrier >= barriers || warps < 1 || warps > t.at.block.warps {
		panic("gpu: SyncWarps: accepted are barriers 1 to 15 and 1 to as many warps as the block has")
	}
	syncWarps(t, barrier, warps)
}

// Clock is a time in nanoseconds that never steps back. All threads of a device read the same clock.
func (t Thread) Clock() uint64 { return t.at.block.Env.Clock() }

// Idle is what a loop that waits calls when it found nothing: at most 64 polls apart. round counts the calls of this
// wait from 0, waited is how long it has waited, in nanoseconds.
//
// On the software device it first lets the owner of the communicators move data (the hook that the launch was given),
// then gives way: to goroutines, from round 16 on to other processes, and after a millisecond it sleeps for a
// millisecond at most. On a GPU the thread sleeps for up to a microsecond and a hundredth of waited, 66 us at most. It is
// true when it moved some data: what is waited for may have come by that, or more of it may be to be moved.
func (t Thread) Idle(round int32, waited uint64) bool { return t.at.block.Env.Idle(round, waited) }

// Relax is what a loop that polls a word calls between two looks: it leaves the core's units to whoever shares them. On a
// GPU it is nothing. round is that of Idle: the longer a wait has lasted, the less often it looks.
func (t Thread) Relax(round int32) {
	if WarpSize == 1 {
		for range min(round, 7) + 1 {
			sys.Pause()
		}
	}
}

// Wake wakes the host thread that sleeps on the word at p, if one does. On a GPU it does nothing: a store of a GPU
// wakes nobody, and no host thread sleeps while one of its kernels is resident.
func (t Thread) Wake(p Ptr[uint32]) { t.at.block.Env.Wake(p.Raw()) }
