// SPDX-License-Identifier: Apache-2.0

package doorbell_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/doorbell-net/doorbell"
	"github.com/doorbell-net/doorbell/gin"
	"github.com/doorbell-net/doorbell/gpu"
	"github.com/doorbell-net/doorbell/internal/testenv"
)

// closer is what a test closes in some order.
type closer struct {
	what  string
	close func() error
	busy  bool // refused while a window stands on it
}

// group is a job of ranks in this process, with everything that a rank has.
func group(t *testing.T, n int) (things []closer) {
	cs, err := doorbell.Local(n, doorbell.Options{Timeout: testBound, Log: quiet()})
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	each(t, cs, func(r *rank) {
		b := r.alloc(4096)
		s, err := b.Slice(1000, 1000)
		r.must(err)
		w, err := r.Register(r.ctx, s)
		r.must(err)
		w2, err := r.Register(r.ctx, b)
		r.must(err)
		dc, dc2 := r.devComm(doorbell.Needs{Signals: 1}), r.devComm(doorbell.Needs{Contexts: 2, Barriers: 1, Counters: 1})
		r.run(func(t gpu.Thread) {
			d, d2, co := dc.Device(), dc2.Device(), gin.ByThread(t)
			c, c2, world := gin.Open(&d, 0), gin.Open(&d2, 1), gin.World(&d)
			for p := range world.Ranks {
				ok(c.Put(co, world, p, w.Device(), uint64(100*r.Rank()), w2.Device(), 0, 100, gin.StrongInc(0)), "put")
			}
			ok(c.WaitSignal(co, 0, uint64(world.Ranks), 64, gin.FromTeam(world)), "wait")
			ok(c2.Barrier(co, world, 0, gin.FencePut), "barrier")
		})
		mu.Lock()
		defer mu.Unlock()
		for what, c := range map[string]io.Closer{"window of a slice": w, "window": w2, "device communicator": dc, "second device communicator": dc2, "stream": r.st, "communicator": r.Comm} {
			things = append(things, closer{what: fmt.Sprintf("%s of rank %d of %d", what, r.Rank(), n), close: c.Close})
		}
		things = append(things, closer{fmt.Sprintf("buffer of rank %d of %d", r.Rank(), n), b.Free, true})
	})
	return things
}

// TestCloseInAnyOrder makes two jobs of different size in this process and closes all they have in a random order,
// each thing twice; nothing is left behind.
func TestCloseInAnyOrder(t *testing.T) {
	rng := testenv.Random(t)
	rounds := 100
	if testenv.Race {
		rounds = 20
	}
	for i := range rounds {
		var things []closer
		for _, n := range []int{2, 3} {
			things = append(things, group(t, n)...)
		}
		things = append(things, things...)
		rng.Shuffle(len(things), func(i, j int) { things[i], things[j] = things[j], things[i] })
		var order []string
		for _, c := range things {
			order = append(order, c.what)
			if err := c.close(); err != nil && !c.busy {
				t.Fatalf("round %d: close %s: %v\norder: %s", i, c.what, err, strings.Join(order, ", "))
			}
		}
	}
	if left := leftovers(); len(left) > 0 {
		t.Errorf("goroutines are left behind:\n%s", strings.Join(left, "\n\n"))
	}
}

// TestCloseAtOnce closes from many goroutines at once.
func TestCloseAtOnce(t *testing.T) {
	for range 20 {
		things := group(t, 3)
		var wg sync.WaitGroup
		for _, c := range append(things, things...) {
			wg.Go(func() {
				if err := c.close(); err != nil && !c.busy {
					t.Errorf("close %s: %v", c.what, err)
				}
			})
		}
		wg.Wait()
	}
}

// TestMadeWhileClosing makes things from many goroutines while the communicator is closed: each is closed with it, or refused.
func TestMadeWhileClosing(t *testing.T) {
	rng := testenv.Random(t)
	nop := kernel("nop", func(gpu.Thread) {})
	for range 6 {
		c := local(t, 1, doorbell.Options{})[0]
		b, err := c.Alloc(64)
		if err != nil {
			t.Fatal(err)
		}
		made := make(chan struct{}, 1000)
		var wg sync.WaitGroup
		for what, another := range map[string]func() error{
			"buffer":              func() error { _, err := c.Alloc(64); return err },
			"window":              func() error { _, err := c.Register(t.Context(), b); return err },
			"signal window":       func() error { _, err := c.RegisterSignals(t.Context(), 1); return err },
			"device communicator": func() error { _, err := c.DevComm(t.Context(), doorbell.Needs{QueueDepth: 2}); return err },
			"stream":              func() error { return doorbell.Launch(c.Stream(), nop, one, struct{}{}) },
			"graph": func() error {
				_, err := c.Graph(func(s *doorbell.Stream) error { return doorbell.Launch(s, nop, one, struct{}{}) })
				return err
			},
		} {
			wg.Go(func() {
				for {
					if err := another(); err != nil {
						if !errors.Is(err, doorbell.ErrClosed) {
							t.Errorf("%s: %v", what, err)
						}
						return
					}
					select {
					case made <- struct{}{}:
					default:
					}
				}
			})
		}
		for range rng.IntN(30) {
			<-made
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		wg.Wait()
	}
}

// TestPostedBeforeClose closes a communicator right after its kernel posted: all of it arrives.
func TestPostedBeforeClose(t *testing.T) {
	for _, progress := range []string{"assisted", "thread"} {
		t.Run(progress, func(t *testing.T) {
			for range 20 {
				each(t, local(t, 2, doorbell.Options{Progress: progress}), func(r *rank) {
					const puts, bytes = 1000, 3000
					dc := r.devComm(doorbell.Needs{Signals: 1})
					recv, send := r.window(bytes), r.window(bytes)
					r.sync()
					r.run(func(t gpu.Thread) {
						d, co := dc.Device(), gin.ByThread(t)
						c, world := gin.Open(&d, 0), gin.World(&d)
						if r.Rank() == 0 {
							for range puts {
								ok(c.Put(co, world, 1, recv.Device(), 0, send.Device(), 0, bytes, gin.StrongInc(0)), "put")
							}
							return
						}
						ok(c.WaitSignal(co, 0, puts, 64, gin.FromPeer(world, 0)), "wait for all that was posted")
					})
					if r.Rank() == 0 {
						r.must(dc.Close())
						r.must(r.Close())
					}
				})
			}
		})
	}
}

// usage is what this process has of the kernel and of the heap.
type usage struct{ files, maps, goroutines, heap int }

func measure() usage {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	fds, _ := os.ReadDir("/proc/self/fd")
	maps, _ := os.ReadFile("/proc/self/maps")
	return usage{len(fds), bytes.Count(maps, []byte("doorbell")), runtime.NumGoroutine(), int(m.HeapAlloc)}
}

// grown fails the test if there is more than before. The runtime keeps some for itself, and ranks of one process look at
// the same time.
func (u usage) grown(r *rank, before usage, what string) {
	if u.files > before.files+3 || u.maps > before.maps || u.goroutines > before.goroutines+2 || u.heap > before.heap+4<<20 {
		r.fail("%s: %+v, before: %+v", what, u, before)
	}
}

// progRounds registers and closes windows, of bytes and of signals, and makes and closes device communicators, again and again.
func progRounds(r *rank) {
	rounds := 2000
	switch {
	case testenv.Long():
		rounds = 100_000
	case testenv.Race:
		rounds = 200
	}
	b := r.alloc(1 << 16)
	round := func(n int) {
		for i := range n {
			s, err := b.Slice(i%1000, r.Size()+i%60000)
			r.must(err)
			w, err := r.Register(r.ctx, s)
			r.must(err)
			if i%100 == 0 {
				dc := r.devComm(doorbell.Needs{Signals: 10, QueueDepth: 8, Contexts: 2})
				r.run(func(t gpu.Thread) {
					d, co := dc.Device(), gin.ByThread(t)
					c, world := gin.Open(&d, 0), gin.World(&d)
					for p := range world.Ranks {
						ok(c.PutValue(co, world, p, w.Device(), uint64(r.Rank()), 1, 1, gin.StrongInc(0)), "put value")
					}
					ok(c.WaitSignal(co, 0, uint64(world.Ranks), 64, gin.FromTeam(world)), "wait")
				})
				r.sync() // nobody closes while others still put
				r.drop(dc)
			}
			if i%10 == 5 {
				r.drop(r.signalWindow(1 + i%500))
			}
			r.drop(w)
		}
	}
	round(200)
	r.sync()
	before := measure()
	r.sync()
	round(rounds)
	r.sync()
	measure().grown(r, before, fmt.Sprint(rounds, " rounds"))
	r.sync()
	manyWindows(r, b)
	r.must(b.Free())
}

// manyWindows registers 1,000 parts of one allocation, and puts into each.
func manyWindows(r *rank, b *doorbell.Buffer) {
	const n, part = 1000, 64
	fill(b.Bytes(), canary)
	windows, closers := make([]*doorbell.Window, n), make([]io.Closer, n)
	for i := range windows {
		s, err := b.Slice(i*part, part)
		r.must(err)
		windows[i], err = r.Register(r.ctx, s)
		r.must(err)
		closers[i] = windows[i]
	}
	dc := r.devComm(doorbell.Needs{Signals: 1})
	r.run(func(t gpu.Thread) {
		d, co := dc.Device(), gin.ByThread(t)
		c, world := gin.Open(&d, 0), gin.World(&d)
		to, from := (world.Rank+1)%world.Ranks, (world.Rank+world.Ranks-1)%world.Ranks
		for i, w := range windows {
			ok(c.PutValue(co, world, to, w.Device(), part-2, uint64(i), 2, gin.StrongInc(0)), "put into window %d", i)
		}
		ok(c.WaitSignal(co, 0, n, 64, gin.FromPeer(world, from)), "wait")
	})
	want := fill(make([]byte, b.Len()), canary)
	for i := range n {
		binary.LittleEndian.PutUint16(want[i*part+part-2:], uint16(i))
	}
	same(b.Bytes(), want, "%d windows of one allocation", n)
	r.sync()
	r.drop(dc)
	r.drop(closers...)
}

func TestRounds(t *testing.T) { each(t, local(t, 2, doorbell.Options{}), progRounds) }

// TestGroupsAtOnce has several groups of different sizes work at the same time, and made again: none hears of another.
func TestGroupsAtOnce(t *testing.T) {
	var wg sync.WaitGroup
	for n := 1; n <= 4; n++ {
		wg.Go(func() {
			for range 3 {
				err := tryEach(t, n, doorbell.Options{}, func(r *rank) {
					progContexts(r)
					progBarriers(r)
					progValues(r)
				})
				if err != nil {
					t.Errorf("%d ranks: %v", n, err)
				}
			}
		})
	}
	wg.Wait()
}

// TestHalfMade has ranks disagree while a communicator is made, and windows and device communicators be refused: what
// was made up to then is given back.
func TestHalfMade(t *testing.T) {
	for range 50 {
		if _, err := doorbell.Local(3, doorbell.Options{Net: "nothing", Log: quiet()}); err == nil {
			t.Fatal("a network that is not there was opened")
		}
	}
	if left := leftovers(); len(left) > 0 {
		t.Errorf("goroutines are left behind:\n%s", strings.Join(left, "\n\n"))
	}
	each(t, local(t, 2, doorbell.Options{}), func(r *rank) {
		b := r.alloc(64)
		round := func(n int) {
			for range n {
				mine := b
				if r.Rank() == 1 {
					mine = nil
				}
				if _, err := r.Register(r.ctx, mine); err == nil {
					r.fail("a window was made")
				}
				if _, err := r.DevComm(r.ctx, doorbell.Needs{Signals: 1 + r.Rank()}); err == nil {
					r.fail("a device communicator was made")
				}
			}
		}
		round(20)
		r.sync()
		before := measure()
		r.sync()
		round(300)
		r.sync()
		measure().grown(r, before, "refusals")
		r.must(b.Free()) // refused windows do not hold it
	})
}

// Read and Write take an address of kernels' and find the buffer.
func TestCopiesByAddress(t *testing.T) {
	for _, far := range []string{"0", "1"} {
		t.Setenv("DOORBELL_SOFT_FAR", far)
		comms := local(t, 2, doorbell.Options{})
		c := comms[0]
		a, err := c.Alloc(64)
		b, err2 := c.Alloc(64)
		other, err3 := comms[1].Alloc(64)
		if err := errors.Join(err, err2, err3); err != nil {
			t.Fatal(err)
		}
		word := func(b *doorbell.Buffer, i int) gpu.Ptr[uint32] { return gpu.Cast[uint32](b.Ptr()).At(i) }
		if err := errors.Join(doorbell.Write(c, word(a, 3), []uint32{1, 2, 3}), doorbell.Write(c, word(b, 0), []uint32{9}), doorbell.Write(c, word(a, 99), []uint32{})); err != nil {
			t.Fatal(err)
		}
		got, raw := make([]uint32, 4), make([]byte, 4)
		if err := errors.Join(doorbell.Read(c, got, word(a, 2)), b.Read(0, raw)); err != nil || !slices.Equal(got, []uint32{0, 1, 2, 3}) || binary.NativeEndian.Uint32(raw) != 9 {
			t.Errorf("far %s: %v %v, %v", far, got, raw, err)
		}
		for name, at := range map[string]gpu.Ptr[uint32]{"past its end": word(a, 15), "another rank's": word(other, 0), "nobody's": gpu.PtrTo(new(uint32))} {
			if err := doorbell.Read(c, make([]uint32, 2), at); !errors.Is(err, doorbell.ErrInvalid) || !strings.Contains(err.Error(), "rank 0") {
				t.Errorf("far %s, %s: %v", far, name, err)
			}
		}
		if err := a.Free(); err != nil {
			t.Fatal(err)
		}
		if err := doorbell.Write(c, word(a, 0), []uint32{1}); !errors.Is(err, doorbell.ErrInvalid) {
			t.Errorf("far %s, freed: %v", far, err)
		}
	}
}
