// SPDX-License-Identifier: Apache-2.0

//go:build !lockstep

// Kernels here are written for warps of one lane.

package gpu

import (
	"runtime"
	"sync"
	"testing"
)

// nowhere is an Env for blocks whose threads do not wait.
type nowhere struct{}

func (nowhere) Clock() uint64           { return 0 }
func (nowhere) Idle(int32, uint64) bool { return false }
func (nowhere) Wake(*uint32)            {}

// block runs f by each thread of a block.
func block(warps int32, f func(t Thread)) {
	b := &SoftBlock{Env: nowhere{}}
	b.Reset(2, 5, warps)
	var wg sync.WaitGroup
	for i := range warps * WarpSize {
		wg.Go(func() {
			defer b.Leave(i)
			f(b.Thread(i))
		})
	}
	wg.Wait()
}

// TestVotes: a warp of one lane votes with itself.
func TestVotes(t *testing.T) {
	block(3, func(th Thread) {
		if Ballot(th, true) != 1 || Ballot(th, false) != 0 || !Any(th, true) || Any(th, false) || !All(th, true) || All(th, false) {
			t.Error("votes of one lane")
		}
		if th.Block() != 2 || th.Blocks() != 5 || th.Warps() != 3 || th.Threads() != 3*WarpSize || th.Index() != th.Warp()*WarpSize {
			t.Error("a thread's place")
		}
	})
}

// TestBlockEnds has a block end while some of its threads wait at the barrier: they leave with Ended, also those that
// come later; the block is of use for the next launch.
func TestBlockEnds(t *testing.T) {
	b := &SoftBlock{Env: nowhere{}}
	for range 50 {
		b.Reset(0, 1, 4)
		left := make([]any, 4)
		var wg sync.WaitGroup
		for w := range int32(4) {
			wg.Go(func() {
				defer func() { left[w] = recover() }()
				if w == 3 {
					runtime.Gosched()
					b.End()
					return
				}
				if w == 2 {
					b.Thread(w).SyncWarps(7, 2)
				}
				b.Thread(w).SyncBlock()
			})
		}
		wg.Wait()
		for w, v := range left[:3] {
			if v != any(Ended) {
				t.Fatalf("warp %d left with %v", w, v)
			}
		}
		b.Reset(0, 1, 2) // fewer warps than before
		n := 0
		for w := range int32(2) {
			wg.Go(func() {
				for i := range 100 {
					if int32(i%2) == w {
						n++
					}
					b.Thread(w).SyncBlock()
				}
			})
		}
		wg.Wait()
		if n != 100 {
			t.Fatalf("%d of 100 turns", n)
		}
	}
}

// TestBarrierAlone: a warp that waits at a barrier for warps that have ended, or end later, leaves with Alone; one that waits for
// those that are left meets them.
func TestBarrierAlone(t *testing.T) {
	for i := range 50 {
		b := &SoftBlock{Env: nowhere{}}
		b.Reset(0, 1, 3)
		var wg sync.WaitGroup
		var left any
		for w := range int32(3) {
			wg.Go(func() {
				defer b.Leave(w)
				b.Thread(w).SyncBlock()
				if w == 2 {
					return
				}
				for range 100 * (1 - w) { // the other one waits, and looks who is left
					runtime.Gosched()
				}
				b.Thread(w).SyncWarps(1, 2)
				if w == 1 {
					defer func() { left = recover() }()
					if i%2 == 0 {
						b.Thread(w).SyncBlock()
					} else {
						b.Thread(w).SyncWarps(1, 2)
					}
				}
			})
		}
		wg.Wait()
		if left != any(Alone) {
			t.Fatalf("the warp left with %v", left)
		}
	}
}
