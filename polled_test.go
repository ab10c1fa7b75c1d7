// SPDX-License-Identifier: Apache-2.0

package doorbell_test

import (
	"sync"
	"testing"
	"time"

	"github.com/doorbell-net/doorbell"
	"github.com/doorbell-net/doorbell/gin"
	"github.com/doorbell-net/doorbell/gpu"
	"github.com/doorbell-net/doorbell/internal/testenv"
)

// TestErrorsArePolled asks each rank for errors every millisecond while windows and device communicators are made, used
// and closed all around: none is told, since there is none.
func TestErrorsArePolled(t *testing.T) {
	each(t, local(t, 3, doorbell.Options{}), childPolled)
	if testenv.Race {
		return
	}
	for _, c := range startJob(t, "polled", 3, all(3), "DOORBELL_NET=tcp") {
		c.done()
	}
}

func childPolled(r *rank) {
	first := r.devComm(doorbell.Needs{Signals: 1})
	var mu sync.Mutex
	made := []*doorbell.DevComm{first}
	stop, asked := make(chan struct{}), 0
	var wg sync.WaitGroup
	wg.Go(func() {
		tick := time.NewTicker(time.Millisecond)
		defer tick.Stop()
		for {
			if lost := r.Lost(); len(lost) > 0 {
				r.Errorf("rank %d: lost are %v", r.Rank(), lost)
			}
			mu.Lock()
			for _, dc := range made {
				if err := dc.Cause(); err != nil {
					r.Errorf("rank %d: cause is %v", r.Rank(), err)
				}
			}
			mu.Unlock()
			asked++
			select {
			case <-tick.C:
			case <-stop:
				return
			}
		}
	})
	done := sync.OnceFunc(func() {
		close(stop)
		wg.Wait()
	})
	defer done()
	for range 15 {
		w := r.window(5000 + r.Rank())
		dc := r.devComm(doorbell.Needs{Contexts: 2, Signals: 2, Barriers: 1})
		mu.Lock()
		made = append(made, dc)
		mu.Unlock()
		r.run(func(t gpu.Thread) {
			d, co := dc.Device(), gin.ByThread(t)
			c, world := gin.Open(&d, 1), gin.World(&d)
			next := (world.Rank + 1) % world.Ranks
			ok(c.Put(co, world, next, w.Device(), 0, w.Device(), 2500, 2000, gin.StrongInc(1)), "put")
			ok(c.WaitSignal(co, 1, 1, 64, gin.FromAny()), "wait")
			ok(c.Barrier(co, world, 0, gin.FencePut), "barrier")
		})
		r.sync()
		mu.Lock()
		made = made[:1]
		mu.Unlock()
		r.drop(dc, w)
	}
	done()
	r.sync() // who closes is seen to leave
	if asked < 5 {
		r.fail("asked %d times", asked)
	}
}
