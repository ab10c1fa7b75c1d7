// SPDX-License-Identifier: Apache-2.0

package doorbell_test

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/doorbell-net/doorbell"
	"github.com/doorbell-net/doorbell/gin"
	"github.com/doorbell-net/doorbell/gpu"
	"github.com/doorbell-net/doorbell/netplugin"
	"github.com/doorbell-net/doorbell/netplugin/shm"
)

// stuckNet is shm that takes nothing for other ranks while it is stuck, and takes it and fails while it is broken.
type stuckNet struct{ shm.Plugin }

const (
	works int32 = iota
	isStuck
	isBroken
)

var (
	stuck     atomic.Int32
	errBroken = errors.New("retries exceeded")
)

func init() { netplugin.Register(stuckNet{}) }

func (stuckNet) Name() string { return "stuck" }

func (n stuckNet) Open(c netplugin.Config) (netplugin.Endpoint, error) {
	e, err := n.Plugin.Open(c)
	return &stuckEnd{Endpoint: e, rank: int32(c.Rank)}, err
}

type stuckEnd struct {
	netplugin.Endpoint
	rank   int32
	failed []netplugin.Completion
}

func (e *stuckEnd) Post(ops []netplugin.Op) int {
	for i := range ops {
		op, how := &ops[i], stuck.Load()
		if how == works || op.Peer == e.rank || how == isBroken && op.Peer != 1 {
			continue
		}
		n := e.Endpoint.Post(ops[:i])
		if n == i && how == isBroken {
			op.State = netplugin.Posted
			e.failed = append(e.failed, netplugin.Completion{Token: op.Token, Err: errBroken})
			n++
		}
		return n
	}
	return e.Endpoint.Post(ops)
}

func (e *stuckEnd) Poll(done []netplugin.Completion) int {
	n := copy(done, e.failed)
	e.failed = e.failed[n:]
	return n + e.Endpoint.Poll(done[n:])
}

// stuckWaits are the device calls that wait for the network, each in a context of its own.
var stuckWaits = []struct {
	name string
	call func(c *gin.Context, co gin.Coop, world gin.Team) gin.Status
}{
	{"credit, of a signal", func(c *gin.Context, co gin.Coop, world gin.Team) gin.Status {
		s := gin.OK
		for i := 0; i < 3 && s == gin.OK; i++ {
			s = c.Signal(co, world, 1, gin.StrongInc(0))
		}
		return s
	}},
	{"flush", func(c *gin.Context, co gin.Coop, _ gin.Team) gin.Status { return c.Flush(co) }},
	{"flush of a peer", func(c *gin.Context, co gin.Coop, world gin.Team) gin.Status { return c.FlushPeer(co, world, 1) }},
	{"request", func(c *gin.Context, co gin.Coop, world gin.Team) gin.Status {
		r, s := c.FlushAsync(co, world, 1)
		if done, why := c.Test(co.Thread(), r); s == gin.OK && (done || why != gin.OK) {
			return why
		}
		return c.Wait(co, r)
	}},
	{"requests of all", func(c *gin.Context, co gin.Coop, _ gin.Team) gin.Status {
		var all [3]gin.Request // of as many ranks as the tests have
		if s := c.FlushAllAsync(co, gpu.PtrTo(&all[0])); s != gin.OK {
			return s
		}
		return c.WaitAll(co, gpu.PtrTo(&all[0]))
	}},
	{"fence over contexts", func(c *gin.Context, co gin.Coop, world gin.Team) gin.Status {
		return c.FenceContexts(co, world, 1, 0, c.DevComm().Contexts)
	}},
}

// TestStuckNetwork has each wait for the network end with Timeout at its deadline while the network takes nothing, again
// and again, with PeerLost, Aborted and Revoked when that comes, and be OK when the network goes on.
func TestStuckNetwork(t *testing.T) {
	cause := errors.New("given up")
	for name, end := range map[string]func(c, peer *doorbell.Comm){
		"goes on": nil,
		"abort":   func(c, _ *doorbell.Comm) { c.Abort(cause) },
		"revoke":  func(c, _ *doorbell.Comm) { c.Revoke() },
		"lost":    func(_, peer *doorbell.Comm) { peer.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			want := map[string]gin.Status{"abort": gin.Aborted, "revoke": gin.Revoked, "lost": gin.PeerLost}[name]
			best := testBound
			for range 5 {
				stuck.Store(isStuck)
				defer stuck.Store(works)
				cs := local(t, 2, doorbell.Options{Net: "stuck"})
				each(t, cs, func(r *rank) {
					dc := r.devComm(doorbell.Needs{Contexts: len(stuckWaits), Signals: 1, QueueDepth: 2, Fence: true})
					r.sync()
					if r.Rank() == 1 {
						return
					}
					var waiting atomic.Int32
					r.start(doorbell.Grid{Blocks: len(stuckWaits), Warps: 1, Cooperative: true}, func(t gpu.Thread) {
						d, co := dc.Device(), gin.ByThread(t)
						w := stuckWaits[t.Block()]
						c, world := gin.Open(&d, t.Block()), gin.World(&d)
						ok(c.Signal(co, world, 1, gin.StrongInc(0)), "%s: first signal", w.name)
						c.SetTimeout(uint64(3 * time.Millisecond))
						for range 3 {
							expect(w.call(&c, co, world), gin.Timeout, "%s", w.name)
						}
						c.SetTimeout(uint64(testBound))
						waiting.Add(1)
						expect(w.call(&c, co, world), want, "%s, %s", w.name, name)
					})
					eventually(t, "all wait", func() bool { return int(waiting.Load()) == len(stuckWaits) })
					start := time.Now()
					if end == nil {
						stuck.Store(works)
					} else {
						end(r.Comm, cs[1])
					}
					r.wait()
					best = min(best, time.Since(start))
					if c := dc.Cause(); (c == nil) != (want == gin.OK) {
						r.fail("cause is %v", c)
					}
				})
			}
			if best > 100*time.Millisecond { // of five, since others may have the processors
				t.Errorf("the fastest took %v", best)
			}
		})
	}
}

// TestErrorCompletion has an operation to rank 1 fail after it was posted, in all contexts but the last, while a thread is in
// each kind of wait: all end with RemoteError, and the peer is named. The last context goes on, and so do other peers.
func TestErrorCompletion(t *testing.T) {
	type call struct {
		name string
		wait func(c *gin.Context, co gin.Coop, d *gin.DevComm, w gin.SignalWindow) gin.Status
	}
	var calls []call
	for name, wait := range waits {
		calls = append(calls, call{name, wait})
	}
	for _, s := range stuckWaits {
		calls = append(calls, call{s.name, func(c *gin.Context, co gin.Coop, d *gin.DevComm, _ gin.SignalWindow) gin.Status {
			return s.call(c, co, gin.World(d))
		}})
	}
	stuck.Store(isStuck)
	defer stuck.Store(works)
	var log logText
	each(t, local(t, 3, doorbell.Options{Net: "stuck", Log: slog.New(slog.NewTextHandler(&log, nil))}), func(r *rank) {
		needs := abortNeeds
		needs.Contexts, needs.QueueDepth, needs.Fence = len(calls)+1, 2, true
		dc, sw := r.devComm(needs), r.signalWindow(1)
		r.sync()
		if r.Rank() != 0 {
			r.sync()
			return
		}
		var waiting atomic.Int32
		r.start(doorbell.Grid{Blocks: len(calls), Warps: 1, Cooperative: true}, func(t gpu.Thread) {
			d, co, call := dc.Device(), gin.ByThread(t), calls[t.Block()]
			c, world := gin.Open(&d, t.Block()), gin.World(&d)
			ok(c.Signal(co, world, 1, gin.StrongInc(0)), "%s: signal", call.name)
			waiting.Add(1)
			for range 3 {
				expect(call.wait(&c, co, &d, sw.Device()), gin.RemoteError, "%s", call.name)
			}
			expect(c.Signal(co, world, 1, gin.StrongInc(0)), gin.RemoteError, "%s: signal afterwards", call.name)
			ok(c.Signal(co, world, 2, gin.StrongInc(0)), "%s: signal to another peer", call.name)
			ok(c.FlushPeer(co, world, 2), "%s: flush of another peer", call.name)
		})
		eventually(t, "all wait", func() bool { return int(waiting.Load()) == len(calls) })
		stuck.Store(isBroken)
		r.wait()
		stuck.Store(works)
		r.run(func(t gpu.Thread) {
			d, co := dc.Device(), gin.ByThread(t)
			c, world := gin.Open(&d, int32(len(calls))), gin.World(&d)
			ok(c.Signal(co, world, 1, gin.StrongInc(0)), "signal of another context")
			ok(c.Flush(co), "flush of another context")
			first := gin.Open(&d, 0)
			expect(first.FlushPeer(co, world, 1), gin.RemoteError, "flush when the network works again")
		})
		var cause *doorbell.Cause
		if err := dc.Cause(); !errors.As(err, &cause) || cause.Status != gin.RemoteError || cause.Peer != 1 {
			r.fail("cause is %v", err)
		}
		says(r, cause, "cause", "rank 0", "RemoteError", "rank 1", errBroken.Error())
		r.sync()
	})
	for x, c := range calls {
		if s := fmt.Sprintf("to rank 1, context %d,", x); !strings.Contains(log.String(), s) {
			t.Errorf("%s: no log line says %q:\n%s", c.name, s, &log)
		}
	}
}

func eventually(t testing.TB, what string, f func() bool) {
	t.Helper()
	for end := time.Now().Add(testBound); !f(); time.Sleep(50 * time.Microsecond) { // sleep: a kernel is looked at, and must not be helped
		if time.Now().After(end) {
			t.Fatalf("not within %v: %s", testBound, what)
		}
	}
}
