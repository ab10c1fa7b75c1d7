// SPDX-License-Identifier: Apache-2.0

package benches

import (
	"fmt"
	"testing"

	"github.com/doorbell-net/doorbell"
	"github.com/doorbell-net/doorbell/moe"
)

// Where the host does not see the device's memory, as on a GPU, inputs and results are copied, and the device's clock times
// each step.
func TestMoEInMemoryThatTheHostDoesNotSee(t *testing.T) {
	t.Setenv("DOORBELL_SOFT_FAR", "1")
	for _, name := range forms {
		for _, ranks := range []int{1, 4} {
			for _, format := range []moe.Format{moe.BF16, moe.FP8} {
				t.Run(fmt.Sprintf("%s-%d-%v", name, ranks, format), func(t *testing.T) {
					cfg := sized(name, small(true))
					cfg.Format, cfg.Flush, cfg.Hidden = format, 1<<14, 256
					r, err := runAll(t, name, ranks, doorbell.Options{RanksPerNode: min(ranks, 2)}, cfg)
					if err != nil || !r.Verified || len(r.Rows) != len(operations[name]) {
						t.Fatalf("verified %v: %q %v", r.Verified, r.Error, err)
					}
					for _, row := range r.Rows {
						if row.P50US <= 0 || row.MinUS <= 0 || row.CheckedBytes == 0 || row.MoE.CopyRatio != 0 || row.MoE.Clock != "device" {
							t.Errorf("%s: %+v", row.Label, row)
						}
					}
				})
			}
		}
	}
}
