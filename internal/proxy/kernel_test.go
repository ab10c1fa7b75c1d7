// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"bytes"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/doorbell-net/doorbell/gin"
	"github.com/doorbell-net/doorbell/gpu"
	"github.com/doorbell-net/doorbell/internal/abi"
	"github.com/doorbell-net/doorbell/internal/device/soft"
	"github.com/doorbell-net/doorbell/internal/sys"
	"pgregory.net/rapid"
)

// thread is a device thread, as a launch would have it.
func thread() gpu.Thread {
	b := &gpu.SoftBlock{Env: soft.New(soft.Options{})}
	b.Reset(0, 1, 1)
	return b.Thread(0)
}

// forKernels is the communicator of a rig as kernels get it.
func (r *rig) forKernels(asleep *uint32) *abi.DevComm {
	a := r.dc.ABI
	a.CellPayload, a.Timeout, a.Asleep = abi.CellPayload, uint64(testBound), gpu.PtrTo(asleep)
	a.SigOffset, a.Shadow = words(r.contexts*r.signals), words(r.contexts*r.signals)
	return &a
}

// TestSmallPuts has kernels' code put payloads of each small size, from and to anywhere, over several laps of the queue:
// what arrives is what was sent, and nothing beside it changes.
func TestSmallPuts(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		s := shape{contexts: 1, peers: 1, depth: 4, signals: 1, counters: 1, windows: 1, cells: true, maxBytes: abi.CellPayload, bytes: 600}
		r := newShmRig(t, s)
		dc := r.forKernels(new(uint32))
		size := uint64(s.bytes)
		info := gpu.Cast[abi.WindowInfo](words(abi.InfoBytes(1) / 8))
		info.Store(abi.WindowInfo{Gen: 5})
		w := abi.Window{Info: info, Base: gpu.PtrOf(r.mem[0]), Size: size, ID: 0, Gen: 5}
		w.Peer(0).Store(abi.WindowPeer{Size: size})
		c, me, world := gin.Open(dc, 0), gin.ByThread(thread()), gin.World(dc)
		want := bytes.Clone(r.all)
		puts := rapid.IntRange(1, 20).Draw(rt, "puts")
		for i := range puts {
			n := rapid.IntRange(0, abi.CellPayload).Draw(rt, "size")
			src, dst := rapid.IntRange(0, s.bytes-n).Draw(rt, "source"), rapid.IntRange(0, s.bytes-n).Draw(rt, "destination")
			for j := range n { // it may be written again at once: the put has taken it along
				r.mem[0][src+j] = byte(i*41 + j*7 + 1)
			}
			copy(want[r.spans[0][0]+dst:], r.mem[0][src:src+n])
			if st := c.Put(me, world, 0, w, uint64(dst), w, uint64(src), uint64(n), gin.StrongInc(0).Counter(0)); st != gin.OK {
				rt.Fatalf("put %d of %d bytes: %v", i, n, st)
			}
			clear(r.mem[0][src : src+n])
			if rapid.Bool().Draw(rt, "move") || i%s.depth == s.depth-1 {
				r.until(t, "it is moved", func() bool { return r.completed(0, 0) == i+1 })
			}
		}
		r.until(t, "all are moved", func() bool { return r.completed(0, 0) == puts })
		if !bytes.Equal(r.all, want) {
			for i := range want {
				if r.all[i] != want[i] {
					rt.Fatalf("byte %d of the window is %#x, want %#x", i-r.spans[0][0], r.all[i], want[i])
				}
			}
		}
		if got := gpu.Load(gpu.Cast[uint64](gpu.PtrOf(r.signals[0])), gpu.Acquire, gpu.ScopeSys); got != uint64(puts) || c.ReadCounter(0) != uint64(puts) {
			rt.Fatalf("%d puts raised the signal to %d and the counter to %d", puts, got, c.ReadCounter(0))
		}
	})
}

// TestWakeIdle lets the backstop fall asleep for long, and has a kernel's code put: it sees the sleeper and wakes it.
func TestWakeIdle(t *testing.T) {
	t.Parallel()
	e := NewEngine(Assisted)
	r := newShmRig(t, small)
	e.Add(r.owner)
	defer e.Remove(r.owner)
	dc := r.forKernels(e.Asleep())
	c, me := gin.Open(dc, 0), gin.ByThread(thread())
	var took time.Duration
	for i := range 3 { // the machine may be busy once or twice; who is not woken sleeps on each time
		eventually(t, "the backstop sleeps", func() bool { return atomic.LoadUint32(e.Asleep()) == 1 })
		time.Sleep(20 * time.Millisecond) // sleep: it looks once more after it has said so, and is to find nothing
		if atomic.LoadUint32(e.Asleep()) == 0 {
			t.Fatal("the backstop does not sleep on, though nobody puts")
		}
		start := time.Now()
		if s := c.Signal(me, gin.World(dc), 0, gin.StrongInc(0)); s != gin.OK {
			t.Fatal(s)
		}
		eventually(t, "the signal is moved", func() bool { return r.completed(0, 0) == i+1 })
		if took = time.Since(start); took < idleNap/2 {
			return
		}
	}
	t.Errorf("a signal took %v while the engine slept: it was not woken", took)
}

// TestRemoveBusy takes owners from an engine and gives them back while kernels put without pause: Remove ends, one that
// the engine is without is not driven, and nothing is lost.
func TestRemoveBusy(t *testing.T) {
	for _, mode := range []Mode{Thread, Assisted} {
		t.Run(mode.String(), func(t *testing.T) {
			e := NewEngine(mode)
			rigs := []*shmRig{newShmRig(t, small), newShmRig(t, small)}
			var wg sync.WaitGroup
			var stop atomic.Bool
			put := make([]int, len(rigs))
			for i, r := range rigs {
				wg.Go(func() {
					for !stop.Load() {
						if r.put(0, 0, r.signal(), nil, put[i]%3 != 0) {
							put[i]++
						} else {
							sys.Yield()
						}
						if atomic.LoadUint32(e.Asleep()) != 0 {
							wake(e.Asleep())
						}
					}
				})
			}
			defer func() {
				stop.Store(true)
				wg.Wait()
			}()
			for round := range 20 {
				for i, r := range rigs {
					was := r.completed(0, 0)
					e.Add(r.owner)
					eventually(t, "it is driven", func() bool { return r.completed(0, 0) > was+i+round })
				}
				for i := range rigs {
					gone := make(chan struct{})
					go func() {
						e.Remove(rigs[(i+round)%2].owner)
						close(gone)
					}()
					select {
					case <-gone:
					case <-time.After(testBound):
						t.Fatalf("round %d: Remove does not end", round)
					}
				}
				// Queues are full now, and stay so: nobody moves anything.
				was := []int{rigs[0].completed(0, 0), rigs[1].completed(0, 0)}
				for range 100 {
					sys.Yield()
				}
				for i, r := range rigs {
					if now := r.completed(0, 0); now != was[i] {
						t.Fatalf("round %d: owner %d is driven after the last Remove: %d, then %d", round, i, was[i], now)
					}
				}
			}
			stop.Store(true)
			wg.Wait()
			for i, r := range rigs {
				r.until(t, "the rest is moved", func() bool { return r.completed(0, 0) == put[i] })
				if got := gpu.Load(gpu.Cast[uint64](gpu.PtrOf(r.signals[0])), gpu.Acquire, gpu.ScopeSys); got != uint64(put[i]) {
					t.Errorf("owner %d: %d signals were put, %d came", i, put[i], got)
				}
			}
		})
	}
}

// BenchmarkProxyBatch is passes that find 64 puts, as many as one takes. An operation of it is one put, with the writing
// of its descriptor.
func BenchmarkProxyBatch(b *testing.B) {
	for name, queues := range map[string]int{"1queue": 1, "2queues": 2, "256queues": 256} {
		b.Run(name, func(b *testing.B) {
			r := newShmRig(b, shape{contexts: queues, peers: 1, depth: 64, signals: 1, windows: 1, maxBytes: 1 << 18, bytes: 64})
			d := r.desc(abi.OpPutValue, 0, 8, 0, 7)
			d.Flags = abi.FlagSignalInc | abi.FlagStrong
			b.ReportAllocs()
			b.ResetTimer()
			for put, left := 0, b.N; left > 0; left -= put {
				for put = 0; put < min(left, 64) && r.put(put%queues, 0, d, nil, true); put++ {
				}
				for r.owner.Pass() {
				}
			}
			b.StopTimer()
			moved := 0
			for q := range queues {
				moved += r.completed(q, 0)
			}
			if moved != b.N {
				b.Fatalf("%d of %d puts were moved", moved, b.N)
			}
		})
	}
}
