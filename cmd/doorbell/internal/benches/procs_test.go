// SPDX-License-Identifier: Apache-2.0

package benches

import (
	"fmt"
	"runtime"
	"testing"

	"github.com/doorbell-net/doorbell"
)

// Eight ranks end whatever the number of processors: whoever waits gives way to whom it waits for.
func TestAllToAllOnFewProcessors(t *testing.T) {
	for _, procs := range []int{1, 2, 8} {
		for _, mode := range []string{"assisted", "thread"} {
			t.Run(fmt.Sprintf("GOMAXPROCS=%d-%s", procs, mode), func(t *testing.T) {
				defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(procs))
				cfg := small(false)
				cfg.Iters = 50
				r, err := runAll(t, "alltoall", 8, doorbell.Options{Progress: mode}, cfg)
				if err != nil || !r.Verified {
					t.Fatalf("verified %v, %q, %v", r.Verified, r.Error, err)
				}
			})
		}
	}
}
