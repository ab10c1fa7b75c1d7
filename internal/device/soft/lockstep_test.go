// SPDX-License-Identifier: Apache-2.0

//go:build lockstep

package soft_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/doorbell-net/doorbell/gpu"
	"github.com/doorbell-net/doorbell/internal/device"
	"github.com/doorbell-net/doorbell/internal/device/devicetest"
	"github.com/doorbell-net/doorbell/internal/device/soft"
	"github.com/doorbell-net/doorbell/internal/testenv"
)

// launch runs f on a device of its own, and returns how it ended.
func launch(t *testing.T, g device.Grid, f func(gpu.Thread)) error {
	t.Helper()
	s := soft.New(soft.Options{}).NewStream()
	k := gpu.NewKernel(t.Name(), func(t gpu.Thread, _ struct{}) { f(t) }, "")
	if err := s.Launch(k.Bind(struct{}{}), g); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), devicetest.Bound)
	defer cancel()
	return s.Wait(ctx)
}

// place is a line of this file that a message must name.
type place struct {
	once sync.Once // all lanes come there
	text string
}

// line is the line n lines after the caller's.
func (p *place) line(n int) {
	_, _, l, _ := runtime.Caller(1)
	p.once.Do(func() { p.text = fmt.Sprintf("soft/lockstep_test.go:%d", l+n) })
}

var (
	word    gpu.Shared[int64]
	meeting gpu.Shared[gpu.Mbarrier]
	warp    = device.Grid{Blocks: 1, Warps: 1}
)

// TestBrokenKernelIsRefused: each of these kernels would hang on a GPU, trap there, or compute something else.
func TestBrokenKernelIsRefused(t *testing.T) {
	var at *place // what the message must name
	var vectors [32]uint32
	words, _ := hostWords(t)
	for _, c := range []struct {
		name   string
		grid   device.Grid
		kernel func(gpu.Thread)
		want   []string
	}{
		{"half a warp shuffles", warp, func(t gpu.Thread) {
			if t.Lane() < 16 {
				at.line(1)
				gpu.ShflXor(t, uint32(1), 8)
			}
		}, []string{"lanes 0-15 wait in ShflXor", "lanes 16-31 have ended"}},
		{"one lane leaves before a vote", warp, func(t gpu.Thread) {
			if t.Lane() == 5 {
				return
			}
			at.line(1)
			gpu.Any(t, true)
		}, []string{"lanes 0-4,6-31 wait in a vote", "lanes 5 have ended"}},
		{"two places for one shuffle", warp, func(t gpu.Thread) {
			if t.Lane()%2 == 0 {
				gpu.ShflIdx(t, uint64(1), 0)
			} else {
				at.line(1)
				gpu.ShflIdx(t, uint64(1), 0)
			}
		}, []string{"ShflIdx"}},
		{"two ways to one SyncWarp", warp, func(t gpu.Thread) {
			meet := func() { t.SyncWarp() }
			if t.Lane() == 0 {
				at.line(1)
				meet()
			} else {
				meet()
			}
		}, []string{"lanes 0 wait in SyncWarp", "lanes 1-31 wait in SyncWarp"}},
		{"a shuffle meets a barrier", warp, func(t gpu.Thread) {
			if t.Lane() == 31 {
				at.line(1)
				t.SyncWarp()
			} else {
				gpu.ShflXor(t, float32(1), 1)
			}
		}, []string{"lanes 0-30 wait in ShflXor", "lanes 31 wait in SyncWarp"}},
		{"a mask beyond the warp", warp, func(t gpu.Thread) {
			at.line(1)
			gpu.ShflXor(t, uint32(1), 32)
		}, []string{"ShflXor asks for lane", "0 to 31"}},
		{"a divergent barrier of the block", device.Grid{Blocks: 2, Warps: 3}, func(t gpu.Thread) {
			if t.Warp() != 1 || t.Lane() < 7 {
				at.line(1)
				t.SyncBlock()
			}
		}, []string{"lanes 0-6 wait in SyncBlock", "lanes 7-31 have ended"}},
		{"a barrier of the block in one warp only", device.Grid{Blocks: 1, Warps: 3}, func(t gpu.Thread) {
			if t.Warp() == 2 {
				t.SyncBlock()
			}
		}, []string{"a warp waits at SyncBlock or SyncWarps, and too few of its block are left"}},
		{"a barrier of two warps in half of one", device.Grid{Blocks: 1, Warps: 3}, func(t gpu.Thread) {
			if t.Warp() == 0 || t.Warp() == 1 && t.Lane() >= 16 {
				at.line(1)
				t.SyncWarps(3, 2)
			}
		}, []string{"lanes 0-15 have ended", "lanes 16-31 wait in SyncWarps(3, 2)"}},
		{"two barriers of warps at one place", device.Grid{Blocks: 1, Warps: 2}, func(t gpu.Thread) {
			at.line(1)
			t.SyncWarps(1+t.Lane()/31, 2)
		}, []string{"lanes 0-30 wait in SyncWarps(1, 2)", "lanes 31 wait in SyncWarps(2, 2)"}},
		{"a barrier of two warps in one warp only", device.Grid{Blocks: 1, Warps: 2}, func(t gpu.Thread) {
			if t.Warp() == 1 {
				t.SyncWarps(15, 2)
			}
		}, []string{"a warp waits at SyncBlock or SyncWarps, and too few of its block are left"}},
		{"half a warp matches", warp, func(t gpu.Thread) {
			if t.Lane() < 16 {
				at.line(1)
				gpu.Match(t, t.Lane())
			}
		}, []string{"lanes 0-15 wait in Match", "lanes 16-31 have ended"}},
		{"an election in a branch", warp, func(t gpu.Thread) {
			if t.Lane() == 9 {
				at.line(1)
				gpu.Elect(t)
			}
		}, []string{"lanes 9 wait in Elect", "lanes 0-8,10-31 have ended"}},
		{"16 bytes at an odd word", warp, func(t gpu.Thread) {
			at.line(1)
			gpu.Cast[gpu.U32x4](gpu.PtrTo(&vectors[0]).Byte(4 + 16 - gpu.PtrTo(&vectors[0]).Addr()%16)).Load()
		}, []string{"multiples of 16"}},
		{"8 bytes at an odd word", warp, func(t gpu.Thread) {
			at.line(1)
			gpu.Cast[gpu.U32x2](gpu.PtrTo(&vectors[0]).Byte(4 + 16 - gpu.PtrTo(&vectors[0]).Addr()%16)).Store(gpu.U32x2{})
		}, []string{"multiples of 8"}},
		{"an atomic across words", warp, func(t gpu.Thread) {
			at.line(1)
			gpu.AtomicAdd(gpu.Cast[uint64](gpu.PtrTo(&vectors[0]).Byte(4+16-gpu.PtrTo(&vectors[0]).Addr()%16)), 1, gpu.Relaxed, gpu.ScopeGPU)
		}, []string{"multiples of 8"}},
		{"an atomic on memory of the host", warp, func(t gpu.Thread) {
			gpu.Store(words.At(1), 1, gpu.Release, gpu.ScopeSys) // accepted, as loads are
			at.line(1)
			gpu.AtomicMax(words.At(1), 2, gpu.Relaxed, gpu.ScopeSys)
		}, []string{"atomic of the device", "memory of the host"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			at = new(place)
			err := launch(t, c.grid, c.kernel)
			var failed *device.KernelError
			if !errors.As(err, &failed) {
				t.Fatalf("the kernel ended with %v, want a KernelError", err)
			}
			for _, want := range append(c.want, at.text) {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("the error is\n%v\nand does not say %q", err, want)
				}
			}
		})
	}
}

// hostWords is memory of the host, and what frees it.
func hostWords(t *testing.T) (words gpu.Ptr[uint64], free func()) {
	t.Helper()
	m, err := soft.New(soft.Options{}).AllocHost(64)
	if err != nil {
		t.Fatal(err)
	}
	free = sync.OnceFunc(func() {
		if err := m.Free(); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(free)
	return gpu.Cast[uint64](m.Ptr()), free
}

// TestHostAtomics: the host does atomics on its memory, also in the hook that a waiting kernel calls; and memory that was freed is
// nobody's.
func TestHostAtomics(t *testing.T) {
	words, free := hostWords(t)
	gpu.AtomicAdd(words, 1, gpu.Relaxed, gpu.ScopeSys)
	d := soft.New(soft.Options{})
	d.SetProgress(func() bool {
		gpu.AtomicAdd(words, 1, gpu.Relaxed, gpu.ScopeSys)
		return false
	})
	s := d.NewStream()
	k := gpu.NewKernel(t.Name(), func(t gpu.Thread, _ struct{}) { t.Idle(0, 0) }, "")
	if err := errors.Join(s.Launch(k.Bind(struct{}{}), warp), s.Wait(t.Context())); err != nil {
		t.Error(err)
	}
	if n := gpu.Load(words, gpu.Acquire, gpu.ScopeSys); n != 1+uint64(gpu.WarpSize) {
		t.Errorf("%d atomics of the host, want %d", n, 1+gpu.WarpSize)
	}
	free()
	if err := launch(t, warp, func(gpu.Thread) { gpu.AtomicAdd(words, 1, gpu.Relaxed, gpu.ScopeSys) }); err != nil {
		t.Error(err)
	}
}

// TestWarpWorksTogether: what is right passes, and computes what a GPU does.
func TestWarpWorksTogether(t *testing.T) {
	err := launch(t, device.Grid{Blocks: 3, Warps: 2}, func(t gpu.Thread) {
		if t.Index() == 0 {
			meeting.Of(t).Init(t, 40)
		}
		t.SyncBlock()
		for i := range uint32(20) {
			sum := uint64(t.Lane())
			for m := int32(16); m > 0; m /= 2 {
				sum += gpu.ShflXor(t, sum, m)
			}
			if sum != 31*16 || gpu.Ballot(t, t.Lane()%4 == 0) != 0x11111111 || gpu.Any(t, t.Lane() == 32) || !gpu.All(t, t.Lane() < 32) ||
				gpu.ShflIdx(t, float32(t.Lane()), 7) != 7 || gpu.Match(t, t.Lane()%2) != 0x55555555<<(t.Lane()%2) || gpu.Elect(t) != (t.Lane() == 0) {
				panic("a shuffle or a vote of 32 lanes")
			}
			if t.Index() == 40 {
				*word.Of(t) = int64(t.Block())
			}
			t.SyncBlock()
			if *word.Of(t) != int64(t.Block()) {
				panic("a barrier lets a thread through before another's store")
			}
			t.SyncWarps(4, 2)
			if b := meeting.Of(t); t.Index() >= 24 {
				if b.TryWait(t, i) {
					panic("a phase is complete before all its threads have arrived")
				}
				b.Arrive(t)
			}
			t.SyncWarps(4, 2)
			if !meeting.Of(t).TryWait(t, i) {
				panic("a phase is not complete when all its threads have arrived")
			}
			t.SyncBlock()
		}
	})
	if err != nil {
		t.Error(err)
	}
}

// TestMissingSyncWarpShows: without a SyncWarp between a store and the other lanes' loads some load comes first, since lanes
// go on in any order; with it, none.
func TestMissingSyncWarpShows(t *testing.T) {
	if testenv.Race {
		t.Skip("the detector says so itself: TestLaneRaces")
	}
	for _, synced := range []bool{true, false} {
		var stale uint32
		err := launch(t, warp, func(t gpu.Thread) {
			for i := range int64(200) {
				if t.Lane() == 0 {
					*word.Of(t) = i
				}
				if synced {
					t.SyncWarp()
				}
				if *word.Of(t) != i {
					gpu.AtomicAdd(gpu.PtrTo(&stale), 1, gpu.Relaxed, gpu.ScopeGPU)
				}
				t.SyncWarp()
			}
		})
		if err != nil || (stale == 0) != synced {
			t.Errorf("with a SyncWarp: %v; %d loads came before the store, error %v", synced, stale, err)
		}
	}
}

// TestMissingSyncWarpShowsAtTheStart: the same before any meeting, in a launch or another.
func TestMissingSyncWarpShowsAtTheStart(t *testing.T) {
	if testenv.Race {
		t.Skip("the detector says so itself: TestLaneRaces")
	}
	var cell, stale uint32
	k := gpu.NewKernel(t.Name(), func(t gpu.Thread, round uint32) {
		if t.Lane() == 0 {
			cell = round
		} else if cell != round {
			gpu.AtomicAdd(gpu.PtrTo(&stale), 1, gpu.Relaxed, gpu.ScopeGPU)
		}
	}, "")
	d := soft.New(soft.Options{})
	s := d.NewStream()
	for i := range uint32(200) {
		if err := s.Launch(k.Bind(i+1), warp); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Wait(t.Context()); err != nil || stale == 0 {
		t.Errorf("no load came before the store in 200 launches, error %v", err)
	}
}

// TestLanesOneByOne: no order among lanes is hidden: each is first through some meeting, and last through another.
func TestLanesOneByOne(t *testing.T) {
	var first [32]uint32
	var turn uint32
	err := launch(t, warp, func(t gpu.Thread) {
		for i := range uint32(2000) {
			if gpu.AtomicAdd(gpu.PtrTo(&turn), 1, gpu.Relaxed, gpu.ScopeGPU) == 32*i {
				gpu.AtomicAdd(gpu.PtrTo(&first[t.Lane()]), 1, gpu.Relaxed, gpu.ScopeGPU)
			}
			t.SyncWarp()
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	for lane, n := range first {
		if n == 0 {
			t.Errorf("lane %d was never the first of 2000 times: %v", lane, first)
		}
	}
}
