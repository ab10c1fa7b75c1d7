// SPDX-License-Identifier: Apache-2.0

//go:build linux

package doorbell_test

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/doorbell-net/doorbell"
	"github.com/doorbell-net/doorbell/gin"
	"github.com/doorbell-net/doorbell/gpu"
	"github.com/doorbell-net/doorbell/internal/env"
)

// TestKilledComesAgain: a rank that was killed and opens again is refused at once, and is told what is accepted. What it leaves in
// this process closes without waiting for a rank that moves nothing, and so does the other one.
func TestKilledComesAgain(t *testing.T) {
	for _, p := range []struct{ net, far string }{{"shm", "0"}, {"dma", "1"}, {"tcp", "0"}, {"staged+tcp", "1"}} {
		for _, backend := range []string{"proxy", "gdaki"} {
			t.Run(p.net+"/"+backend, func(t *testing.T) {
				t.Setenv(env.Far.Name(), p.far)
				killedComesAgain(t, doorbell.Options{
					Size: 2, Net: p.net, Backend: backend, Job: "again", Addr: fmt.Sprintf("unix:@doorbell-again-%d-%s-%s", os.Getpid(), p.net, backend),
					Timeout: testBound, Log: quiet(),
				})
			})
		}
	}
}

func killedComesAgain(t *testing.T, o doorbell.Options) {
	cs, errs := make([]*doorbell.Comm, 2), make([]error, 2)
	var wg sync.WaitGroup
	for r := range cs {
		wg.Go(func() {
			o := o
			o.Rank = r
			cs[r], errs[r] = doorbell.Open(t.Context(), o)
		})
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	dcs, ws := make([]*doorbell.DevComm, 2), make([]*doorbell.Window, 2)
	each(t, cs, func(r *rank) { dcs[r.Rank()], ws[r.Rank()] = r.devComm(doorbell.Needs{Signals: 1}), r.window(1<<20) })
	closes := func(r int) {
		t.Helper()
		start := time.Now()
		if err := cs[r].Close(); err != nil {
			t.Error(err)
		}
		if took := time.Since(start); took > testBound/4 { // what a network waits for a peer to come back is longer
			t.Errorf("rank %d closed after %v", r, took)
		}
	}
	// Rank 0 moves nothing, so what rank 1 puts there stays on its way, where a network needs both.
	if err := cs[0].Paused(t.Context(), func() {
		cs[1].Kill()
		again := o
		again.Rank = 1
		if _, err := doorbell.Open(t.Context(), again); err == nil || !strings.Contains(err.Error(), "rank 0") || !strings.Contains(err.Error(), "accepted is a job started anew") {
			t.Errorf("opened again: %v", err)
		}
		st := cs[1].Stream()
		err := errors.Join(doorbell.Launch(st, kernel("puts", func(t gpu.Thread) {
			d, co := dcs[1].Device(), gin.ByThread(t)
			c, w := gin.Open(&d, 0), ws[1].Device()
			ok(c.Put(co, gin.World(&d), 0, w, 0, w, 0, 1<<20, gin.StrongInc(0)), "put")
		}), one, struct{}{}), st.Wait(t.Context()))
		if err != nil {
			t.Error(err)
		}
		closes(1)
	}); err != nil {
		t.Error(err)
	}
	closes(0)
}

// TestGDAKIMadeAnew: who puts to a rank that has closed its device communicator has lost that queue pair's peer, over each wire; one
// that both make anew works.
func TestGDAKIMadeAnew(t *testing.T) {
	for _, p := range []struct{ net, far string }{{"shm", "0"}, {"tcp", "0"}, {"ce", "1"}, {"dma", "1"}, {"staged+tcp", "1"}} {
		t.Run(p.net, func(t *testing.T) {
			t.Setenv(env.Far.Name(), p.far)
			each(t, local(t, 2, doorbell.Options{Net: p.net, Backend: "gdaki"}), func(r *rank) {
				old, w := r.devComm(doorbell.Needs{Signals: 1}), r.window(8)
				if r.sync(); r.Rank() == 1 {
					r.must(old.Close())
				} else {
					r.run(func(t gpu.Thread) {
						d, co := old.Device(), gin.ByThread(t)
						c, s := gin.Open(&d, 0), gin.OK
						for s == gin.OK {
							if s = c.PutValue(co, gin.World(&d), 1, w.Device(), 0, 1, 8, gin.None()); s == gin.OK {
								s = c.Flush(co)
							}
						}
						expect(s, gin.PeerLost, "a put to an end that is no more")
					})
					r.must(old.Close())
				}
				dc := r.devComm(doorbell.Needs{Signals: 1})
				r.run(func(t gpu.Thread) {
					d, co := dc.Device(), gin.ByThread(t)
					c, world, other := gin.Open(&d, 0), gin.World(&d), 1-d.Rank
					ok(c.PutValue(co, world, other, w.Device(), 0, 1, 8, gin.StrongInc(0)), "put")
					ok(c.WaitSignal(co, 0, 1, 64, gin.FromPeer(world, other)), "wait")
				})
				r.sync()
			})
		})
	}
}
