// SPDX-License-Identifier: Apache-2.0

package bootstrap

import (
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

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
