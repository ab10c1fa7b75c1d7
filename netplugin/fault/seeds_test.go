// SPDX-License-Identifier: Apache-2.0

package fault_test

import (
	"flag"
	"fmt"
	"testing"
	"time"

	"github.com/doorbell-net/doorbell/internal/testenv"
	"github.com/doorbell-net/doorbell/netplugin"
	"github.com/doorbell-net/doorbell/netplugin/plugintest"
)

var seeds = flag.Int("seeds", 0, "seeds of faults that TestSeeds tries, from DOORBELL_SEED on; 0: 200, or 10,000 with DOORBELL_LONG=1")

// TestSeeds: under each seed of all faults at once, a random history of the same seed ends as it does in the model. A tenth
// of the seeds is tried over tcp too, where sockets break and frames come twice.
//
//	DOORBELL_LONG=1 go test ./netplugin/fault -run TestSeeds -v -seeds 10000
//	DOORBELL_SEED=N go test ./netplugin/fault -run TestSeeds -seeds 1     # again the one that failed
func TestSeeds(t *testing.T) {
	n := *seeds
	if n == 0 && testenv.Long() {
		n = 10_000
	} else if n == 0 {
		n = 200
	}
	for _, c := range []struct {
		net, faults string
		seeds       int
	}{{"shm", "all", n}, {"tcp", "all,duplicate", (n + 9) / 10}} {
		start := time.Now()
		const block = 100 // worlds that live at once
		for first := 0; first < c.seeds; first += block {
			last := min(first+block, c.seeds)
			ok := t.Run(fmt.Sprintf("%s %d to %d", c.net, first+1, last), func(t *testing.T) {
				for i := first; i < last; i++ {
					underSeed(t, c.net, c.faults, testenv.Seed+uint64(i))
				}
			})
			if !ok {
				return
			}
		}
		t.Logf("fault+%s: %d seeds from %d on, all right, in %v", c.net, c.seeds, testenv.Seed, time.Since(start).Round(time.Millisecond))
	}
}

// underSeed tries one history; each third on a network without order, each fourth with much of what cannot be done in Post.
func underSeed(t *testing.T, net, faults string, seed uint64) {
	text := fmt.Sprintf("seed=%d,%s", seed, faults)
	if seed%3 == 0 {
		text += ",unordered"
	}
	if seed%4 == 0 {
		text += ",reorder=90,delay=80,split=100"
	}
	defer func() {
		if t.Failed() {
			t.Logf("fault+%s, faults %q: DOORBELL_SEED=%d and -seeds 1 repeat it", net, text, seed)
		}
	}()
	plugintest.History(t, plugintest.Harness{Plugin: lookup(t, "fault+"+net, netplugin.Faults{Text: text}), Seed: seed | 1<<63})
}
