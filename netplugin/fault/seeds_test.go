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

// TestSeeds: under each seed of all faults at once, a random history of the same seed ends as it does in the model.
//
//	DOORBELL_LONG=1 go test ./netplugin/fault -run TestSeeds -v -seeds 10000
//	DOORBELL_SEED=N go test ./netplugin/fault -run TestSeeds -seeds 1     # again the one that failed
func TestSeeds(t *testing.T) {
	n, start := *seeds, time.Now()
	if n == 0 && testenv.Long() {
		n = 10_000
	} else if n == 0 {
		n = 200
	}
	const block = 100
	for first := 0; first < n; first += block {
		last := min(first+block, n)
		t.Run(fmt.Sprintf("%d to %d", first+1, last), func(t *testing.T) {
			for i := first; i < last; i++ {
				underSeed(t, testenv.Seed+uint64(i))
			}
		})
		if t.Failed() {
			return
		}
	}
	t.Logf("%d seeds from %d on, all right, in %v", n, testenv.Seed, time.Since(start).Round(time.Millisecond))
}

// underSeed tries one history; each third on a network without order, each fourth with much of what it cannot do in Post.
func underSeed(t *testing.T, seed uint64) {
	text := fmt.Sprintf("seed=%d,all", seed)
	if seed%3 == 0 {
		text += ",unordered"
	}
	if seed%4 == 0 {
		text += ",reorder=90,delay=80,split=100"
	}
	defer func() {
		if t.Failed() {
			t.Logf("faults %q: DOORBELL_SEED=%d and -seeds 1 repeat it", text, seed)
		}
	}()
	plugintest.History(t, plugintest.Harness{Plugin: lookup(t, "fault+shm", netplugin.Faults{Text: text}), Seed: seed | 1<<63})
}
