// SPDX-License-Identifier: Apache-2.0

package doorbell

import (
	"slices"
	"testing"

	"github.com/doorbell-net/doorbell/internal/device/cuda"
)

// TestLocalRank: where no launcher says it, a rank's number on its host is how many lower ones are of it, and ranks of a host
// need not be neighbours.
func TestLocalRank(t *testing.T) {
	hosts := []string{"b", "a", "b", "c", "a", "b"}
	for rank, want := range []int{0, 0, 1, 0, 1, 2} {
		if got := localRank(rank, func(r int) bool { return hosts[r] == hosts[rank] }); got != want {
			t.Errorf("rank %d of %v is number %d on its host, want %d", rank, hosts, got, want)
		}
	}
}

// TestDeal: neighbours come to the same GPU, each GPU gets as many as any other or one less, and each rank knows with how many it
// shares.
func TestDeal(t *testing.T) {
	for ranks := 1; ranks <= 17; ranks++ {
		for gpus := 1; gpus <= ranks; gpus++ {
			on, n := make([]int, ranks), make([]int, gpus)
			for r := range ranks {
				c, _ := place{ranks: ranks}.deal(r, gpus)
				on[r] = -1
				for g := range gpus {
					if c == cuda.Index(g) {
						on[r] = g
						n[g]++
					}
				}
			}
			if !slices.IsSorted(on) || slices.Max(n)-slices.Min(n) > 1 {
				t.Errorf("%d ranks come to GPUs %v", ranks, on)
			}
			for r := range ranks {
				if _, share := (place{ranks: ranks}).deal(r, gpus); share != n[on[r]] {
					t.Errorf("%d ranks on GPUs %v: rank %d knows of %d", ranks, on, r, share)
				}
			}
		}
	}
}
