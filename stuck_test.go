// SPDX-License-Identifier: Apache-2.0

package doorbell_test

import (
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/doorbell-net/doorbell"
	"github.com/doorbell-net/doorbell/gin"
	"github.com/doorbell-net/doorbell/gpu"
	"github.com/doorbell-net/doorbell/netplugin"
	"github.com/doorbell-net/doorbell/netplugin/shm"
)

// stuckNet is shm that takes nothing for other ranks while it is stuck.
type stuckNet struct{ shm.Plugin }

var stuck atomic.Bool

func init() { netplugin.Register(stuckNet{}) }

func (stuckNet) Name() string { return "stuck" }

func (n stuckNet) Open(c netplugin.Config) (netplugin.Endpoint, error) {
	e, err := n.Plugin.Open(c)
	return stuckEnd{e, int32(c.Rank)}, err
}

type stuckEnd struct {
	netplugin.Endpoint
	rank int32
}

func (e stuckEnd) Post(ops []netplugin.Op) int {
	for i := range ops {
		if stuck.Load() && ops[i].Peer != e.rank {
			return e.Endpoint.Post(ops[:i])
		}
	}
	return e.Endpoint.Post(ops)
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
		var all [2]gin.Request
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
				stuck.Store(true)
				defer stuck.Store(false)
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
						stuck.Store(false)
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

func eventually(t testing.TB, what string, f func() bool) {
	t.Helper()
	for end := time.Now().Add(testBound); !f(); time.Sleep(50 * time.Microsecond) { // sleep: a kernel is looked at, and must not be helped
		if time.Now().After(end) {
			t.Fatalf("not within %v: %s", testBound, what)
		}
	}
}
