// SPDX-License-Identifier: Apache-2.0

package netplugin

import (
	"math"
	"testing"

	"github.com/doorbell-net/doorbell/internal/testenv"
)

// TestImports holds the table against a map, over random additions and removals.
func TestImports(t *testing.T) {
	rng := testenv.Random(t)
	var table Imports[int]
	want := map[Region]int{}
	for i := range 10_000 {
		if rng.IntN(3) > 0 {
			r := table.Add(i)
			if _, taken := want[r]; taken || r <= 0 {
				t.Fatalf("step %d: number %d was given twice, or is none", i, r)
			}
			want[r] = i
		}
		r := Region(rng.IntN(40))
		_, had := want[r]
		if got := table.Remove(r); got != had {
			t.Fatalf("step %d: remove %d: %v, want %v", i, r, got, had)
		}
		delete(want, r)
		for _, r := range []Region{r, Region(rng.IntN(len(want) + 60)), 0, -1, math.MaxInt32} {
			w, ok := want[r]
			if got, here := table.Get(r); got != w || here != ok {
				t.Fatalf("step %d: number %d is %d, %v, want %d, %v", i, r, got, here, w, ok)
			}
		}
	}
	if most := len(table.all); most != len(want)+len(table.spare) {
		t.Errorf("%d numbers for %d, and %d to give again", most, len(want), len(table.spare))
	}
}
