// SPDX-License-Identifier: Apache-2.0

package gpu_test

import (
	"bytes"
	"strings"
	"sync"
	"testing"

	"github.com/doorbell-net/doorbell/gpu"
)

// TestSyncWarps: two groups of a block meet at barriers of their own, many times, at their own pace; what a warp wrote
// before is there for those that it met, and under -race the detector agrees.
func TestSyncWarps(t *testing.T) {
	const rounds = 200
	var data [6]int
	var wrong sync.Once
	warps(6, func(th gpu.Thread) {
		group, size, first, n := int32(1), int32(2), int32(0), rounds
		if th.Warp() >= 2 {
			group, size, first, n = 15, 4, 2, 3*rounds
		}
		for i := range n {
			if th.Lane() == int32(i%gpu.WarpSize) {
				data[th.Warp()] = i
			}
			th.SyncWarps(group, size)
			for w := first; w < first+size; w++ {
				if data[w] != i {
					wrong.Do(func() { t.Errorf("warp %d in round %d: warp %d wrote %d", th.Warp(), i, w, data[w]) })
				}
			}
			th.SyncWarps(group, size)
		}
		th.SyncBlock()
		if data[0] != rounds-1 || data[5] != 3*rounds-1 {
			t.Errorf("after all: %v", data)
		}
	})
}

// TestAnyOfBlock: all threads of a block get true in the rounds in which one of them, another in each, passes true, and false else.
func TestAnyOfBlock(t *testing.T) {
	const rounds = 200
	warps(3, func(th gpu.Thread) {
		for i := range int32(rounds) {
			if got, want := th.AnyOfBlock(i%2 == 1 && i/2%th.Threads() == th.Index()), i%2 == 1; got != want {
				t.Errorf("thread %d, round %d: %v, want %v", th.Index(), i, got, want)
			}
		}
	})
}

// TestSyncWarpsRefused: a barrier or a number that a GPU does not have.
func TestSyncWarpsRefused(t *testing.T) {
	warps(2, func(th gpu.Thread) {
		for _, c := range [][2]int32{{0, 2}, {16, 2}, {-1, 2}, {1, 0}, {1, 3}} {
			func() {
				defer func() {
					if text, _ := recover().(string); !strings.Contains(text, "barriers 1 to 15") {
						t.Errorf("barrier %d of %d warps: %q", c[0], c[1], text)
					}
				}()
				th.SyncWarps(c[0], c[1])
			}()
		}
	})
}

// TestMatchAndElect: a lane matches those that gave the same value, in all its bits, and one lane is elected; a warp of one
// lane matches itself and is the one.
func TestMatchAndElect(t *testing.T) {
	warps(2, func(th gpu.Thread) {
		for n := int32(1); n <= 40; n++ {
			v, want := th.Lane()%n-1, uint32(0)
			for lane := range int32(gpu.WarpSize) {
				if lane%n-1 == v {
					want |= 1 << lane
				}
			}
			if got, wide := gpu.Match(th, v), gpu.Match(th, int64(v)<<40); got != want || wide != want {
				t.Errorf("lane %d matches %#x, and %#x by high bits (want %#x)", th.Lane(), got, wide, want)
			}
			if gpu.Ballot(th, gpu.Elect(th)) != 1 {
				t.Error("the first lane is not the one elected")
			}
		}
	})
}

// TestOnce copies 16 bytes with the hints that they are not read again.
func TestOnce(t *testing.T) {
	b := aligned(32)
	b[0], b[15] = 1, 2
	p := gpu.Cast[gpu.U32x4](gpu.PtrOf(b))
	gpu.StoreOnce(p.At(1), gpu.LoadOnce(p))
	if !bytes.Equal(b[:16], b[16:]) {
		t.Errorf("%v was copied as %v", b[:16], b[16:])
	}
}
