// SPDX-License-Identifier: Apache-2.0

package gpu_test

import (
	"strings"
	"testing"

	"github.com/doorbell-net/doorbell/gpu"
)

// TestSyncWarps: two groups of a block meet at barriers of their own, many times, at their own pace; what a warp wrote
// before is there for those that it met, and under -race the detector agrees.
func TestSyncWarps(t *testing.T) {
	const rounds = 200
	var data [6]int
	warps(6, func(th gpu.Thread) {
		group, size, first, n := int32(1), int32(2), int32(0), rounds
		if th.Warp() >= 2 {
			group, size, first, n = 15, 4, 2, 3*rounds
		}
		for i := range n {
			data[th.Warp()] = i
			th.SyncWarps(group, size)
			for w := first; w < first+size; w++ {
				if data[w] != i {
					t.Errorf("warp %d in round %d: warp %d wrote %d", th.Warp(), i, w, data[w])
					return
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

// TestOneLane: a warp of one lane matches itself and is the one elected.
func TestOneLane(t *testing.T) {
	v := [2]gpu.U32x4{{1, 2, 3, 4}}
	warps(2, func(th gpu.Thread) {
		if gpu.Match(th, th.Warp()) != 1 || !gpu.Elect(th) {
			t.Error("one lane does not match itself, or is not elected")
		}
	})
	gpu.StoreOnce(gpu.PtrTo(&v[1]), gpu.LoadOnce(gpu.PtrTo(&v[0])))
	if v[1] != v[0] {
		t.Errorf("%v was copied as %v", v[0], v[1])
	}
}
