// SPDX-License-Identifier: Apache-2.0

package devicetest

import "github.com/doorbell-net/doorbell/gpu"

// CountArgs are Count's. Runs has a word for each warp of the grid.
type CountArgs struct {
	Runs, Wrong   gpu.Ptr[uint32]
	Blocks, Warps int32
}

// Count counts how often each warp runs, and the threads that see another shape than was launched.
//
//gpu:kernel
func Count(t gpu.Thread, a CountArgs) {
	good := t.Blocks() == a.Blocks && t.Warps() == a.Warps && t.Block() >= 0 && t.Block() < a.Blocks && t.Warp() >= 0 && t.Warp() < a.Warps &&
		t.Threads() == a.Warps*gpu.WarpSize && t.Index() == t.Warp()*gpu.WarpSize+t.Lane()
	if !good {
		gpu.AtomicAdd(a.Wrong, 1, gpu.Relaxed, gpu.ScopeGPU)
	} else if t.Lane() == 0 {
		gpu.AtomicAdd(a.Runs.At(int(t.Block()*t.Warps()+t.Warp())), 1, gpu.Relaxed, gpu.ScopeGPU)
	}
}

// MeetArgs are Meet's. Patience is in nanoseconds.
type MeetArgs struct {
	Arrived, Late gpu.Ptr[uint32]
	Patience      uint64
}

// Meet has each block wait for all others; those that wait in vain add to Late.
//
//gpu:kernel
func Meet(t gpu.Thread, a MeetArgs) {
	if t.Index() != 0 {
		return
	}
	gpu.AtomicAdd(a.Arrived, 1, gpu.AcqRel, gpu.ScopeGPU)
	if !await(t, a.Arrived, uint32(t.Blocks()), a.Patience) {
		gpu.AtomicAdd(a.Late, 1, gpu.Relaxed, gpu.ScopeGPU)
	}
}

// await waits until a word is at least want.
func await(t gpu.Thread, p gpu.Ptr[uint32], want uint32, patience uint64) bool {
	start := t.Clock()
	for round := int32(0); gpu.Load(p, gpu.Acquire, gpu.ScopeSys) < want; round++ {
		waited := t.Clock() - start
		if waited > patience {
			return false
		}
		t.Idle(round, waited)
	}
	return true
}

// RoundArgs are Rounds'.
type RoundArgs struct {
	Wrong  gpu.Ptr[uint32]
	Rounds uint32
}

// cells is a word for each warp of a block.
var cells gpu.Shared[[32]uint32]

// Rounds has each warp write a cell of its block, and read its neighbour's after the barrier. What it reads must be of
// this block and this round.
//
//gpu:kernel
func Rounds(t gpu.Thread, a RoundArgs) {
	c := cells.Of(t)
	next := (t.Warp() + 1) % t.Warps()
	for round := range a.Rounds {
		stamp := uint32(t.Block())<<16 | round<<5
		if t.Lane() == 0 {
			c[t.Warp()] = stamp | uint32(t.Warp())
		}
		t.SyncBlock()
		if c[next] != stamp|uint32(next) {
			gpu.AtomicAdd(a.Wrong, 1, gpu.Relaxed, gpu.ScopeGPU)
		}
		t.SyncBlock()
	}
}

// StepArgs are Step's.
type StepArgs struct {
	Cell, Wrong gpu.Ptr[uint32]
	From        uint32
}

// Step raises a plain word by one, which must be From. Only the order of launches makes that so.
//
//gpu:kernel
func Step(t gpu.Thread, a StepArgs) {
	if t.Index() != 0 {
		return
	}
	if a.Cell.Load() != a.From {
		gpu.AtomicAdd(a.Wrong, 1, gpu.Relaxed, gpu.ScopeGPU)
	}
	a.Cell.Store(a.From + 1)
}

// PairArgs are Pair's. Patience is in nanoseconds.
type PairArgs struct {
	Mine, Theirs, Late gpu.Ptr[uint32]
	Patience           uint64
}

// Pair waits until each block of its own grid and of another one, of as many blocks, has come.
//
//gpu:kernel
func Pair(t gpu.Thread, a PairArgs) {
	if t.Index() != 0 {
		return
	}
	gpu.AtomicAdd(a.Mine, 1, gpu.AcqRel, gpu.ScopeGPU)
	if !await(t, a.Mine, uint32(t.Blocks()), a.Patience) || !await(t, a.Theirs, uint32(t.Blocks()), a.Patience) {
		gpu.AtomicAdd(a.Late, 1, gpu.Relaxed, gpu.ScopeGPU)
	}
}

// GateArgs are Gate's. Patience is in nanoseconds.
type GateArgs struct {
	Open, Late gpu.Ptr[uint32]
	Patience   uint64
}

// Gate holds its stream until the host opens it.
//
//gpu:kernel
func Gate(t gpu.Thread, a GateArgs) {
	if t.Index() == 0 && !await(t, a.Open, 1, a.Patience) {
		gpu.AtomicAdd(a.Late, 1, gpu.Relaxed, gpu.ScopeGPU)
	}
}

// FailArgs are Fail's.
type FailArgs struct {
	Block, Warp int32
	Passed      gpu.Ptr[uint32]
}

// Fail has one warp fail while the rest of its block waits for it at a barrier.
//
//gpu:kernel
func Fail(t gpu.Thread, a FailArgs) {
	if t.Block() != a.Block {
		return
	}
	if t.Warp() == a.Warp {
		panic("this warp fails")
	}
	t.SyncBlock()
	gpu.AtomicAdd(a.Passed, 1, gpu.Relaxed, gpu.ScopeGPU)
}

// FillArgs are Fill's.
type FillArgs struct {
	To    gpu.Ptr[byte]
	Bytes uint64
	Value uint32
}

// Fill writes a byte to each of Bytes.
//
//gpu:kernel
func Fill(t gpu.Thread, a FillArgs) {
	for i := uint64(t.Block()*t.Threads() + t.Index()); i < a.Bytes; i += uint64(t.Blocks() * t.Threads()) {
		a.To.Byte(i).Store(byte(a.Value))
	}
}
