// SPDX-License-Identifier: Apache-2.0

//go:build !lockstep

// Kernels here are written for warps of one lane.

package soft

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/doorbell-net/doorbell/gpu"
	"github.com/doorbell-net/doorbell/internal/device"
	"pgregory.net/rapid"
)

// kernel makes a kernel's call of a function.
func kernel(name string, f func(gpu.Thread)) gpu.Call {
	return gpu.NewKernel(name, func(t gpu.Thread, _ struct{}) { f(t) }, "").Bind(struct{}{})
}

func newStream(t testing.TB, d *Device) device.Stream {
	s := d.NewStream()
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func start(t testing.TB, s device.Stream, g device.Grid, f func(gpu.Thread)) {
	t.Helper()
	if err := s.Launch(kernel(t.Name(), f), g); err != nil {
		t.Fatal(err)
	}
}

func wait(t testing.TB, s device.Stream) {
	t.Helper()
	if err := s.Wait(t.Context()); err != nil {
		t.Fatalf("%+v", err)
	}
}

// TestEachWarpOnce launches grids of many shapes: each warp of each block runs once, knows its place, and meets those
// of its block; blocks of a cooperative grid meet each other.
func TestEachWarpOnce(t *testing.T) {
	for _, o := range []Options{{}, {Resident: 1}, {Resident: 1, Seed: 1}, {Resident: 3, Seed: 99}} {
		d := newDevice(t, o)
		s := newStream(t, d)
		for _, g := range []device.Grid{
			{Blocks: 1, Warps: 1}, {Blocks: 1, Warps: 32}, {Blocks: 7, Warps: 1}, {Blocks: 100, Warps: 3}, {Blocks: 2, Warps: 32}, {Blocks: 5000, Warps: 1},
			{Blocks: 1, Warps: 1, Cooperative: true}, {Blocks: 9, Warps: 4, Cooperative: true}, {Blocks: 64, Warps: 2, Cooperative: true},
		} {
			ran := make([]atomic.Int32, g.Blocks*g.Warps)
			sums := make([]int, g.Blocks)
			var arrived atomic.Int32
			start(t, s, g, func(th gpu.Thread) {
				if int(th.Blocks()) != g.Blocks || int(th.Warps()) != g.Warps || int(th.Threads()) != g.Warps || th.Lane() != 0 || th.Index() != th.Warp() {
					panic("a thread has another place than its grid says")
				}
				ran[int(th.Block())*g.Warps+int(th.Warp())].Add(1)
				for i := range 5 { // each warp in turn adds to a plain word of its block
					if int(th.Warp()) == i%g.Warps {
						sums[th.Block()] += i + 1
					}
					th.SyncBlock()
					if sums[th.Block()] != (i+1)*(i+2)/2 {
						panic("what a warp wrote before the barrier is not seen after it")
					}
					th.SyncBlock()
				}
				if g.Cooperative {
					arrived.Add(1)
					for start := th.Clock(); int(arrived.Load()) < g.Blocks*g.Warps; th.Idle(0, 0) {
						if th.Clock()-start > uint64(10*time.Second) {
							panic("not all blocks are resident")
						}
						runtime.Gosched()
					}
				}
			})
			wait(t, s)
			for i := range ran {
				if n := ran[i].Load(); n != 1 {
					t.Fatalf("%+v, %+v: warp %d ran %d times", o, g, i, n)
				}
			}
		}
	}
}

// TestResident holds how many blocks of a grid that is not cooperative run at a time.
func TestResident(t *testing.T) {
	for _, most := range []int{1, 2, 5} {
		s := newStream(t, newDevice(t, Options{Resident: most, Seed: 3}))
		var now, peak atomic.Int32
		start(t, s, device.Grid{Blocks: 60, Warps: 2}, func(th gpu.Thread) {
			if th.Warp() == 0 {
				n := now.Add(1)
				for old := peak.Load(); n > old && !peak.CompareAndSwap(old, n); old = peak.Load() {
				}
			}
			for range 20 {
				runtime.Gosched()
			}
			th.SyncBlock()
			if th.Warp() == 0 {
				now.Add(-1)
			}
		})
		wait(t, s)
		if n := int(peak.Load()); n > most {
			t.Errorf("%d blocks ran at a time, %d may", n, most)
		}
	}
}

// TestShuffled runs blocks in an order drawn from the seed: so a dependence of one block on an earlier one shows.
func TestShuffled(t *testing.T) {
	orders := func(seed uint64) (all []string) {
		s := newStream(t, newDevice(t, Options{Resident: 1, Seed: seed}))
		for range 5 {
			var order []int32
			start(t, s, device.Grid{Blocks: 12, Warps: 1}, func(th gpu.Thread) { order = append(order, th.Block()) })
			wait(t, s)
			all = append(all, fmt.Sprint(order))
		}
		return all
	}
	ascending := fmt.Sprint([]int32{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11})
	for _, o := range orders(0) {
		if o != ascending {
			t.Errorf("without a seed the order is %s", o)
		}
	}
	a, b, again := orders(1), orders(2), orders(1)
	if fmt.Sprint(a) != fmt.Sprint(again) {
		t.Errorf("one seed gives two orders: %v and %v", a, again)
	}
	if fmt.Sprint(a) == fmt.Sprint(b) || a[0] == a[1] && a[1] == a[2] || a[0] == ascending && a[1] == ascending {
		t.Errorf("orders are not shuffled: %v, %v", a, b)
	}
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.Uint64Range(1, 3000).Draw(t, "blocks")
		o := newOrder(n, rapid.Uint64().Draw(t, "seed"))
		seen := make([]bool, n)
		for i := range int64(n) {
			b := o.at(i)
			if b < 0 || uint64(b) >= n || seen[b] {
				t.Fatalf("place %d of %d is block %d", i, n, b)
			}
			seen[b] = true
		}
	})
}

// TestShared has each block use its own instance of a shared variable, of many at once.
func TestShared(t *testing.T) {
	var a, b gpu.Shared[[4]int32]
	s := newStream(t, newDevice(t, Options{Resident: 4}))
	start(t, s, device.Grid{Blocks: 50, Warps: 4}, func(th gpu.Thread) {
		a.Of(th)[th.Warp()] = th.Block()*10 + th.Warp()
		b.Of(th)[th.Warp()] = -1
		th.SyncBlock()
		for w := range th.Warps() {
			if a.Of(th)[w] != th.Block()*10+w {
				panic("another block wrote into this one's shared memory")
			}
		}
	})
	wait(t, s)
}

// TestKernelFails ends kernels in each way that is not their end: the error says which thread and why, the rest of the
// grid does not start, threads at a barrier end, and the device goes on.
func TestKernelFails(t *testing.T) {
	d := newDevice(t, Options{Resident: 1}) // so that it is known how far the rest has come
	boom := errors.New("boom")
	for _, c := range []struct {
		name string
		fail func()
		says string
	}{
		{"panic", func() { panic("why") }, "why"},
		{"panic with an error", func() { panic(boom) }, "boom"},
		{"nil", func() { var p *int32; _ = *p }, "nil pointer"},
		{"goexit", runtime.Goexit, "Goexit"},
	} {
		for _, g := range []device.Grid{{Blocks: 1, Warps: 1}, {Blocks: 200, Warps: 1}, {Blocks: 3, Warps: 5}, {Blocks: 3, Warps: 5, Cooperative: true}} {
			t.Run(fmt.Sprintf("%s, %+v", c.name, g), func(t *testing.T) {
				s := d.NewStream()
				var ran atomic.Int32
				bad := int32(g.Blocks-1) / 2
				start(t, s, g, func(th gpu.Thread) {
					ran.Add(1)
					if th.Block() == bad && int(th.Warp()) == g.Warps-1 {
						c.fail()
					}
					th.SyncBlock()
				})
				ended := make(chan error, 1)
				go func() { ended <- s.Wait(t.Context()) }()
				var err error
				select {
				case err = <-ended:
				case <-time.After(10 * time.Second):
					t.Fatal("the launch does not end")
				}
				var ke *device.KernelError
				if !errors.As(err, &ke) || ke.Block != bad || int(ke.Warp) != g.Warps-1 || !strings.Contains(ke.Error(), c.says) || !strings.Contains(ke.Stack, "launch_test.go") && c.name != "goexit" {
					t.Errorf("error is %+v", err)
				}
				if g.Blocks == 200 && ran.Load() != bad+1 {
					t.Errorf("%d of 200 blocks ran, the one in the middle failed", ran.Load())
				}
				// The failure sticks to this stream and to no other.
				if err := s.Launch(kernel("next", func(gpu.Thread) { t.Error("it ran") }), g); !errors.As(err, &ke) {
					t.Errorf("next launch: %v", err)
				}
				if err := s.Close(); err != nil {
					t.Error(err)
				}
				other := d.NewStream()
				ok := false
				start(t, other, device.Grid{Blocks: 1, Warps: 1}, func(gpu.Thread) { ok = true })
				wait(t, other)
				if err := other.Close(); err != nil || !ok {
					t.Errorf("another stream: %v", err)
				}
			})
		}
	}
}

// TestLaunchAllocs holds that a launch allocates nothing.
func TestLaunchAllocs(t *testing.T) {
	d := newDevice(t, Options{})
	s := newStream(t, d)
	for _, g := range []device.Grid{{Blocks: 1, Warps: 1}, {Blocks: 3, Warps: 4}, {Blocks: 20, Warps: 2}, {Blocks: 4, Warps: 4, Cooperative: true}} {
		var ended atomic.Int64
		want := int64(0)
		call := &countCall{ended: &ended}
		n := testing.AllocsPerRun(100, func() {
			if err := s.Launch(call, g); err != nil {
				t.Fatal(err)
			}
			for want++; ended.Load() != want; {
				runtime.Gosched()
			}
		})
		if n != 0 {
			t.Errorf("%+v: %v allocations a launch", g, n)
		}
	}
}

// countCall is a call that is used again and again.
type countCall struct{ ended *atomic.Int64 }

func (c *countCall) Name() string     { return "count" }
func (c *countCall) Code() *gpu.Code  { return nil }
func (c *countCall) Args() []byte     { return nil }
func (c *countCall) Run(t gpu.Thread) { t.SyncBlock() }
func (c *countCall) Release()         { c.ended.Add(1) }

// TestHooks has a waiting thread call what SetProgress gave, from many threads at once, and no longer once it is taken
// away; Wake clears the word.
func TestHooks(t *testing.T) {
	d := newDevice(t, Options{})
	s := newStream(t, d)
	var calls atomic.Int64
	d.SetProgress(func() bool { return calls.Add(1)%2 == 0 })
	g := device.Grid{Blocks: 4, Warps: 4}
	idle := func(th gpu.Thread) {
		for i := range int32(40) {
			th.Idle(i, uint64(i)*100_000) // up to 4 ms: yields, then sleeps
		}
	}
	start(t, s, g, idle)
	wait(t, s)
	if n := calls.Load(); n != 40*16 {
		t.Errorf("%d idle calls made %d calls of the hook", 40*16, n)
	}
	d.SetProgress(nil)
	start(t, s, g, idle)
	wait(t, s)
	if n := calls.Load(); n != 40*16 {
		t.Error("a hook is called after it was taken away")
	}
	word := uint32(1)
	start(t, s, device.Grid{Blocks: 1, Warps: 1}, func(th gpu.Thread) { th.Wake(gpu.PtrTo(&word)) })
	wait(t, s)
	if word != 0 {
		t.Error("the word of a sleeper that was woken is not cleared")
	}
}
