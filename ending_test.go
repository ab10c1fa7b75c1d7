// SPDX-License-Identifier: Apache-2.0

package doorbell_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/doorbell-net/doorbell"
	"github.com/doorbell-net/doorbell/gin"
	"github.com/doorbell-net/doorbell/gpu"
)

// waits are the device calls that wait for what a peer does, each for rank 1 in vain. Those that wait for the network are
// stuckWaits.
var waits = map[string]func(c *gin.Context, co gin.Coop, d *gin.DevComm, w gin.SignalWindow) gin.Status{
	"signal": func(c *gin.Context, co gin.Coop, d *gin.DevComm, _ gin.SignalWindow) gin.Status {
		return c.WaitSignal(co, 0, 1<<40, 64, gin.FromPeer(gin.World(d), 1))
	},
	"LSA peers' signal": func(c *gin.Context, co gin.Coop, d *gin.DevComm, _ gin.SignalWindow) gin.Status {
		return c.WaitLSASignal(co, 0, 1<<40, 64, gin.FromPeer(gin.World(d), 1))
	},
	"counter": func(c *gin.Context, co gin.Coop, d *gin.DevComm, _ gin.SignalWindow) gin.Status {
		return c.WaitCounter(co, 0, 1<<40, 64, gin.FromPeer(gin.World(d), 1))
	},
	"barrier": func(c *gin.Context, co gin.Coop, d *gin.DevComm, _ gin.SignalWindow) gin.Status {
		return c.Barrier(co, gin.World(d), 0, gin.FencePut)
	},
	"signal at an address": func(c *gin.Context, co gin.Coop, d *gin.DevComm, w gin.SignalWindow) gin.Status {
		return c.WaitSignalAt(co, w, 0, 1<<40, 64, gin.FromPeer(gin.World(d), 1))
	},
	"shadow, to follow": func(c *gin.Context, co gin.Coop, d *gin.DevComm, _ gin.SignalWindow) gin.Status {
		_, _, s := c.WaitFollow(co, 0, 1<<40, gin.FromPeer(gin.World(d), 1))
		return s
	},
	"shadow, to meet": func(c *gin.Context, co gin.Coop, d *gin.DevComm, _ gin.SignalWindow) gin.Status {
		if c.Shadow(1) == 0 {
			c.AddShadow(1, 1<<40)
		}
		return c.WaitMeet(co, 1, gin.FromPeer(gin.World(d), 1))
	},
	"LSA barrier": func(c *gin.Context, co gin.Coop, d *gin.DevComm, _ gin.SignalWindow) gin.Status {
		return c.LSABarrier(co, 0)
	},
	"barrier without a fence": func(c *gin.Context, co gin.Coop, d *gin.DevComm, _ gin.SignalWindow) gin.Status {
		return c.Barrier(co, gin.World(d), 1, gin.FenceNone)
	},
	"barrier that flushes": func(c *gin.Context, co gin.Coop, d *gin.DevComm, _ gin.SignalWindow) gin.Status {
		return c.Barrier(co, gin.World(d), 2, gin.FencePut|gin.FenceGet)
	},
	"hybrid barrier": func(c *gin.Context, co gin.Coop, _ *gin.DevComm, _ gin.SignalWindow) gin.Status {
		return c.HybridBarrier(co, 3, gin.FencePut)
	},
	"hybrid barrier without a fence": func(c *gin.Context, co gin.Coop, _ *gin.DevComm, _ gin.SignalWindow) gin.Status {
		return c.HybridBarrier(co, 4, gin.FenceNone)
	},
	"LLA2A": func(c *gin.Context, co gin.Coop, d *gin.DevComm, _ gin.SignalWindow) gin.Status {
		l, s := c.LLA2A(co, 0)
		if s == gin.OK {
			_, s = l.Recv(0, gin.FromPeer(gin.LSA(d), 1))
		}
		return s
	},
}

// waitAll starts a kernel on rank 0 that has one block in each wait, and reports their statuses.
func (r *rank) waitAll(dc *doorbell.DevComm, w gin.SignalWindow) func() map[string]gin.Status {
	var names []string
	for name := range waits {
		names = append(names, name)
	}
	got := make([]gin.Status, len(names))
	r.start(doorbell.Grid{Blocks: len(names), Warps: 1, Cooperative: true}, func(t gpu.Thread) {
		d := dc.Device()
		c := gin.Open(&d, 0)
		got[t.Block()] = waits[names[t.Block()]](&c, gin.ByThread(t), &d, w)
	})
	return func() map[string]gin.Status {
		r.wait()
		m := map[string]gin.Status{}
		for i, name := range names {
			m[name] = got[i]
		}
		return m
	}
}

// TestShortDeadline has each wait end with Timeout at its deadline, again and again; then what was waited for comes and
// the same call is OK.
func TestShortDeadline(t *testing.T) {
	const deadline = 3 * time.Millisecond
	var log logText
	each(t, local(t, 2, doorbell.Options{Log: slog.New(slog.NewTextHandler(&log, nil))}), func(r *rank) {
		dc := r.devComm(doorbell.Needs{Signals: 2, Counters: 1, Barriers: 5, LLA2ABlocks: 1, LLA2ASlots: 1})
		sw := r.signalWindow(1)
		r.sync()
		if r.Rank() == 0 {
			r.run(func(t gpu.Thread) {
				d, co := dc.Device(), gin.ByThread(t)
				d.Timeout = uint64(deadline)
				c := gin.Open(&d, 0)
				for name, wait := range waits {
					for range 3 {
						start := t.Clock()
						expect(wait(&c, co, &d, sw.Device()), gin.Timeout, "wait for %s", name)
						if took := time.Duration(t.Clock() - start); took < deadline || took > 100*deadline+time.Second {
							panic(fmt.Sprintf("a wait of %v ended after %v", deadline, took))
						}
					}
				}
			})
			if err := dc.Cause(); err != nil {
				r.fail("a timeout stuck: %v", err)
			}
		}
		r.sync()
		r.run(func(t gpu.Thread) {
			d, co := dc.Device(), gin.ByThread(t)
			c, world := gin.Open(&d, 0), gin.World(&d)
			for i := range 5 {
				ok(c.Barrier(co, world, 0, gin.FencePut), "barrier %d after timeouts", i)
				ok(c.LSABarrier(co, 0), "LSA barrier %d after timeouts", i)
				ok(c.Barrier(co, world, 1, gin.FenceNone), "barrier %d without a fence after timeouts", i)
				ok(c.Barrier(co, world, 2, gin.FencePut|gin.FenceGet), "barrier %d that flushes after timeouts", i)
				ok(c.HybridBarrier(co, 3, gin.FencePut), "hybrid barrier %d after timeouts", i)
				ok(c.HybridBarrier(co, 4, gin.FenceNone), "hybrid barrier %d without a fence after timeouts", i)
			}
			ok(c.Signal(co, world, 1-world.Rank, gin.StrongAdd(0, 1<<40)), "signal")
			ok(c.WaitSignal(co, 0, 1<<40, 64, gin.FromPeer(world, 1-world.Rank)), "wait after timeouts")
		})
		r.sync()
	})
	// Who was waited for is told, though a timeout does not stick.
	for deadline := time.Now().Add(3 * time.Second); !strings.Contains(log.String(), "peer=1"); time.Sleep(10 * time.Millisecond) { // sleep: the log line comes by the clock
		if time.Now().After(deadline) {
			t.Fatalf("no log line says which peer a wait timed out for:\n%s", log.String())
		}
	}
}

// TestAbort ends the waits of device and host within 100 ms, from four goroutines at once; Revoke likewise, and when
// both come the status and the reason are of the same one.
func TestAbort(t *testing.T) {
	cause := errors.New("the training step was given up")
	for name, end := range map[string]func(c *doorbell.Comm, i int){
		"abort":  func(c *doorbell.Comm, _ int) { c.Abort(cause) },
		"revoke": func(c *doorbell.Comm, _ int) { c.Revoke() },
		"both": func(c *doorbell.Comm, i int) {
			if i%2 == 0 {
				c.Abort(cause)
			} else {
				c.Revoke()
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			best := testBound
			for range 10 {
				each(t, local(t, 2, doorbell.Options{}), func(r *rank) {
					if r.Rank() == 0 {
						best = min(best, abortOnce(r, name, cause, end))
					} else {
						r.devComm(abortNeeds)
						r.signalWindow(1)
						r.sync() // and never answers
					}
				})
			}
			if best > 100*time.Millisecond { // of ten, since others may have the processors
				t.Errorf("the fastest took %v", best)
			}
		})
	}
}

var abortNeeds = doorbell.Needs{Signals: 2, Counters: 1, Barriers: 5, LLA2ABlocks: 1, LLA2ASlots: 1}

// abortOnce says how long the waits took to end.
func abortOnce(r *rank, name string, cause error, end func(*doorbell.Comm, int)) time.Duration {
	dc, sw := r.devComm(abortNeeds), r.signalWindow(1)
	r.sync()
	statuses := r.waitAll(dc, sw.Device())
	host := make(chan error)
	go func() { host <- r.Barrier(r.ctx) }()
	time.Sleep(2 * time.Millisecond) // sleep: lets the waits begin; it is right too when they have not
	start := time.Now()
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() { end(r.Comm, i); end(r.Comm, i) })
	}
	got := statuses()
	err := <-host
	took := time.Since(start)
	wg.Wait()
	want := gin.Revoked
	if errors.Is(err, doorbell.ErrAborted) {
		want = gin.Aborted
	}
	for what, s := range got {
		if s != want {
			r.fail("%s ended with %v, the host with: %v", what, s, err)
		}
	}
	if name == "abort" && want != gin.Aborted || name == "revoke" && want != gin.Revoked {
		r.fail("%s ended the host's wait with: %v", name, err)
	}
	c, ok := dc.Cause().(*doorbell.Cause)
	if !ok || c.Status != want || c.Rank != 0 || want == gin.Aborted && !errors.Is(c, cause) || want == gin.Revoked && !errors.Is(c, doorbell.ErrRevoked) {
		r.fail("cause is %v", dc.Cause())
	}
	if took > 5*time.Second {
		r.fail("it took %v", took)
	}
	// New work is refused, with the reason.
	_, err = r.Register(r.ctx, nil)
	says(r, err, "register", "rank 0", map[gin.Status]string{gin.Aborted: cause.Error(), gin.Revoked: "revoked"}[want])
	_, err = r.DevComm(r.ctx, doorbell.Needs{})
	says(r, err, "device communicator", "rank 0")
	r.run(func(t gpu.Thread) {
		d, co := dc.Device(), gin.ByThread(t)
		ctx := gin.Open(&d, 0)
		expect(ctx.Signal(co, gin.World(&d), 1, gin.StrongInc(0)), want, "signal afterwards")
		expect(ctx.Flush(co), gin.OK, "flush of nothing")
	})
	return took
}

// TestAbortWhileClosing has a close wait for a kernel that waits for a peer; an abort ends both. So does the peer's end.
func TestAbortWhileClosing(t *testing.T) {
	for name, end := range map[string]func(me, peer *doorbell.Comm){
		"abort, device communicator": func(me, _ *doorbell.Comm) { me.Abort(errTest) },
		"peer ends":                  func(_, peer *doorbell.Comm) { peer.Close() },
	} {
		for _, what := range []string{"device communicator", "communicator"} {
			t.Run(name+", "+what, func(t *testing.T) {
				cs := local(t, 2, doorbell.Options{})
				each(t, cs, func(r *rank) {
					dc := r.devComm(doorbell.Needs{Signals: 2, Counters: 1, Barriers: 5, LLA2ABlocks: 1, LLA2ASlots: 1})
					sw := r.signalWindow(1)
					r.sync()
					if r.Rank() == 1 {
						return
					}
					statuses := r.waitAll(dc, sw.Device())
					closed := make(chan error)
					go func() {
						if what == "communicator" {
							closed <- r.Close()
						} else {
							closed <- dc.Close()
						}
					}()
					time.Sleep(20 * time.Millisecond) // sleep: lets the close begin; it is right too when it has not
					start := time.Now()
					end(r.Comm, cs[1])
					r.must(<-closed)
					if took := time.Since(start); took > 2*time.Second {
						r.fail("the close ended %v after the reason to", took)
					}
					for what, s := range statuses() {
						if s != gin.Aborted && s != gin.PeerLost {
							r.fail("%s ended with %v", what, s)
						}
					}
				})
			})
		}
	}
}

// TestKernelPanic has one thread of a grid fail. The error names kernel, block and warp and has the stack; threads of
// its block at a barrier end; the stream refuses more, another one does not.
func TestKernelPanic(t *testing.T) {
	c := local(t, 1, doorbell.Options{})[0]
	for _, g := range []doorbell.Grid{one, {Blocks: 5, Warps: 3}, {Blocks: 5, Warps: 3, Cooperative: true}} {
		st := c.Stream()
		k := laneKernel("broken", func(t gpu.Thread) {
			if t.Block() == t.Blocks()/2 && t.Warp() == t.Warps()-1 {
				var none []int
				_ = none[t.Block()+7]
			}
			t.SyncBlock()
		})
		if err := doorbell.Launch(st, k, g, struct{}{}); err != nil {
			t.Fatal(err)
		}
		err := st.Wait(t.Context())
		says(t, err, "wait", "rank 0", "kernel broken", fmt.Sprintf("block %d, warp %d", g.Blocks/2, g.Warps-1), "index out of range")
		var ke *doorbell.KernelError
		if !errors.As(err, &ke) || ke.Kernel != "broken" || int(ke.Block) != g.Blocks/2 || int(ke.Warp) != g.Warps-1 || !strings.Contains(ke.Stack, "ending_test.go") ||
			!strings.Contains(fmt.Sprintf("%+v", ke), "ending_test.go") {
			t.Errorf("%+v: no kernel error with a stack: %+v", g, err)
		}
		for range 2 {
			says(t, doorbell.Launch(st, kernel("next", func(gpu.Thread) { t.Error("a failed stream ran a kernel") }), one, struct{}{}), "launch", "kernel next", "broken")
			says(t, st.Wait(t.Context()), "wait again", "broken")
		}
		ran := false
		other := c.Stream()
		if err := errors.Join(doorbell.Launch(other, kernel("good", func(gpu.Thread) { ran = true }), one, struct{}{}), other.Wait(t.Context())); err != nil || !ran {
			t.Errorf("another stream: %v", err)
		}
		if err := errors.Join(st.Close(), other.Close()); err != nil {
			t.Error(err)
		}
	}
}

// TestBadGrids launches shapes that are refused: nothing runs, and the stream goes on.
func TestBadGrids(t *testing.T) {
	c := local(t, 1, doorbell.Options{})[0]
	st := c.Stream()
	for _, b := range []struct {
		g    doorbell.Grid
		says []string
	}{
		{doorbell.Grid{}, []string{"0 blocks", "1 to "}},
		{doorbell.Grid{Blocks: -1, Warps: 1}, []string{"-1 blocks"}},
		{doorbell.Grid{Blocks: 1 << 31, Warps: 1}, []string{"2147483648 blocks"}},
		{doorbell.Grid{Blocks: 1}, []string{"0 warps", "1 to 32"}},
		{doorbell.Grid{Blocks: 1, Warps: 33}, []string{"33 warps", "1 to 32"}},
		{doorbell.Grid{Blocks: 1000, Warps: 32, Cooperative: true}, []string{"1000 x 32", "resident", "8192"}},
	} {
		err := doorbell.Launch(st, kernel("shape", func(gpu.Thread) { t.Error("it ran") }), b.g, struct{}{})
		says(t, err, fmt.Sprint(b.g), append(b.says, "rank 0", "kernel shape")...)
	}
	ran := false
	if err := errors.Join(doorbell.Launch(st, kernel("good", func(gpu.Thread) { ran = true }), one, struct{}{}), st.Wait(t.Context())); err != nil || !ran {
		t.Errorf("after refusals: %v", err)
	}
}

// TestWaitEnds has a host's wait for a kernel end by its context; the kernel goes on.
func TestWaitEnds(t *testing.T) {
	c := local(t, 1, doorbell.Options{})[0]
	st := c.Stream()
	release := make(chan struct{})
	if err := doorbell.Launch(st, kernel("slow", func(gpu.Thread) { <-release }), one, struct{}{}); err != nil {
		t.Fatal(err)
	}
	e := st.Record()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	err := e.Wait(ctx)
	says(t, err, "wait", "rank 0", "0 of 1 launches", "deadline")
	if e.Done() || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("done: %v, error: %v", e.Done(), err)
	}
	close(release)
	if err := e.Wait(t.Context()); err != nil || !e.Done() {
		t.Errorf("done: %v, error: %v", e.Done(), err)
	}
}
