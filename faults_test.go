// SPDX-License-Identifier: Apache-2.0

package doorbell_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/doorbell-net/doorbell"
	"github.com/doorbell-net/doorbell/internal/testenv"
)

// TestProgramsOverFaults runs every operation over networks that do all that a network may do wrong, one of
// them without order.
func TestProgramsOverFaults(t *testing.T) {
	// Over tcp each cut takes as long as connecting does: in a short run a few programs meet some.
	few := []string{"puts", "values", "flush", "reset", "contexts"}
	var all []string
	if testenv.Race {
		all = few
	}
	for _, c := range []struct {
		net, faults string
		programs    []string // nil: all
		backend     string
	}{
		{"fault+shm", "all,unordered", all, ""}, {"fault+shm", "all,delay=80,split=100,again=80,stall=10", few, ""}, {"fault+tcp", "all,duplicate", few, ""},
		{"fault+shm", "all,unordered", all, "gdaki"}, {"fault+tcp", "all,duplicate", few, "gdaki"},
	} {
		if testenv.Race && c.net == "fault+tcp" {
			continue // half the time of them all; tcp has tests of its own under the detector
		}
		faults := fmt.Sprintf("seed=%d,%s", testenv.Seed, c.faults)
		t.Run(c.net+","+c.faults+","+c.backend, func(t *testing.T) {
			t.Logf("DOORBELL_SEED=%d", testenv.Seed)
			cs := local(t, 3, doorbell.Options{Net: c.net, Faults: faults, RanksPerNode: 1, Backend: c.backend})
			for _, p := range programs {
				if (p.name == "large" || c.programs != nil && !slices.Contains(c.programs, p.name)) && !testenv.Long() {
					continue
				}
				if !t.Run(p.name, func(t *testing.T) { each(t, cs, p.run) }) {
					return // its ranks are of no use any more
				}
			}
		})
	}
}
