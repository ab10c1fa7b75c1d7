// SPDX-License-Identifier: Apache-2.0

package doorbell

import "testing"

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
