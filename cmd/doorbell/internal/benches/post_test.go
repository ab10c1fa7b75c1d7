// SPDX-License-Identifier: Apache-2.0

package benches

import (
	"strings"
	"testing"

	"github.com/doorbell-net/doorbell"
	"github.com/doorbell-net/doorbell/cmd/doorbell/internal/report"
	"github.com/doorbell-net/doorbell/gpu"
)

// TestPostCounts: what post says of a put over a NIC: a doorbell, one for 16 that are aggregated, one for all lanes of a warp; a
// WQE, and another for its signal. Over the proxy it says nothing of that kind.
func TestPostCounts(t *testing.T) {
	for backend, rows := range map[string]int{"proxy": 4, "gdaki": 8 + 2*min(gpu.WarpSize-1, 1)} {
		r, err := runAll(t, "post", 2, doorbell.Options{Backend: backend}, Config{Sizes: []int64{8}, Iters: 1, Seed: 7})
		if err != nil || !r.Verified || len(r.Rows) != rows {
			t.Fatalf("%s: verified %v, %d rows, want %d: %q %v", backend, r.Verified, len(r.Rows), rows, r.Error, err)
		}
		for _, row := range r.Rows {
			want := report.PerPut{Doorbells: 1, WQEBytes: 64}
			switch {
			case strings.Contains(row.Label, "16 a doorbell"):
				want.Doorbells = 1. / 16
			case strings.HasPrefix(row.Label, "lanes"):
				want.Doorbells = 1 / float64(gpu.WarpSize)
			}
			if strings.HasSuffix(row.Label, "signal") {
				want.WQEBytes *= 2
			}
			want.Stores = want.WQEBytes/8 + 2*want.Doorbells
			if got := row.PerPut; backend == "proxy" && got != nil || backend == "gdaki" && (got == nil || *got != want) {
				t.Errorf("%s, %s: %+v of a put, want %+v", backend, row.Label, got, want)
			}
		}
	}
}
