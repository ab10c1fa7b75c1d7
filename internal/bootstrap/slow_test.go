// SPDX-License-Identifier: Apache-2.0

package bootstrap

import (
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/doorbell-net/doorbell/internal/testenv"
)

// A rank whose readers do not get their turn for long, while its clock goes on, sees that bytes wait and blames nobody.
func TestLateReaders(t *testing.T) {
	if !haveAbstract {
		t.Skip("needs linux: to see that bytes wait in a socket")
	}
	checkLeaks(t)
	w := newChaosWorld(t, 3, 0, false, testenv.Random(t))
	w.ranks[0].deaf.close()
	time.Sleep(3 * chaosLimit / 2) // sleep: nothing is to happen
	w.ranks[0].deaf.reopen()
	var wg sync.WaitGroup
	for _, k := range w.ranks {
		wg.Go(func() {
			if _, err := k.AllGather(t.Context(), "late", Blob{}); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	for r, k := range w.ranks {
		if log, _, stopped, why := k.state(); len(log) > 0 || stopped {
			t.Errorf("rank %d: decided %v, stopped %v %s\n%s", r, log, stopped, why, w)
		}
	}
	w.end()
}

// Ranks of a process that has far more to do than cores, and collects garbage all the time, are slow, not lost.
func TestBusyIsNotLost(t *testing.T) {
	if os.Getenv("DOORBELL_LONG") != "1" {
		t.Skip("needs DOORBELL_LONG=1: keeps all cores busy for 20 s")
	}
	checkLeaks(t)
	gs := mustJoin(t, tcpConfigs(t, 4, func(c *Config) { c.bootID, c.Suspect = string(rune('a'+c.Rank)), time.Second }))
	defer closeGroups(gs)
	for _, g := range gs {
		g.OnLost(func(r int, cause error) { t.Errorf("rank %d lost %d: %v", g.Rank(), r, cause) })
	}
	var stop atomic.Bool
	var wg sync.WaitGroup
	for range 4 * runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			var keep [][]byte
			for !stop.Load() {
				if keep = append(keep, make([]byte, 1<<16)); len(keep) > 100 {
					keep = nil
					runtime.GC()
				}
			}
		})
	}
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); {
		each(gs, func(g Group) {
			if _, err := g.AllGather(t.Context(), "busy", Blob{}); err != nil {
				t.Error(err)
			}
		})
	}
	stop.Store(true)
	wg.Wait()
}
