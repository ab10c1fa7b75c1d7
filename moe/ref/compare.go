// SPDX-License-Identifier: Apache-2.0

package ref

import (
	"fmt"
	"sort"

	"github.com/doorbell-net/doorbell/internal/num"
)

// SortRows puts the rows of one expert into the order of Rows: by source rank, then token, then selection.
func SortRows(rows []Row) {
	sort.SliceStable(rows, func(i, j int) bool { return before(rows[i], rows[j]) })
}

func before(a, b Row) bool {
	if a.SrcRank != b.SrcRank {
		return a.SrcRank < b.SrcRank
	}
	if a.SrcToken != b.SrcToken {
		return a.SrcToken < b.SrcToken
	}
	return a.SrcK < b.SrcK
}

// DiffRows returns nil if got, sorted by SortRows, equals want bit for bit; else an error that names the first
// difference. It compares one expert's block.
func DiffRows(want, got []Row) error {
	for i := 0; i < len(want) && i < len(got); i++ {
		w, g := want[i], got[i]
		if w.SrcRank != g.SrcRank || w.SrcToken != g.SrcToken || w.SrcK != g.SrcK {
			return fmt.Errorf("compare rows: row %d: got (rank %d, token %d, selection %d), want (rank %d, token %d, selection %d)",
				i, g.SrcRank, g.SrcToken, g.SrcK, w.SrcRank, w.SrcToken, w.SrcK)
		}
		if err := DiffBits(w.Payload, g.Payload); err != nil {
			return fmt.Errorf("compare rows: row %d (rank %d, token %d, selection %d): %w", i, w.SrcRank, w.SrcToken, w.SrcK, err)
		}
	}
	if len(want) != len(got) {
		return fmt.Errorf("compare rows: got %d rows, want %d", len(got), len(want))
	}
	return nil
}

// DiffBits returns nil if got equals want bit for bit, else an error that names the first difference.
func DiffBits(want, got []uint16) error {
	if len(want) != len(got) {
		return fmt.Errorf("got %d elements, want %d", len(got), len(want))
	}
	for j := range want {
		if want[j] != got[j] {
			return fmt.Errorf("element %d: got %#04x (%g), want %#04x (%g)", j, got[j], num.BF16ToF32(got[j]), want[j], num.BF16ToF32(want[j]))
		}
	}
	return nil
}

// CalcDiff returns how far a is from b, in FP64: with a' = a+1 and b' = b+1, 1 - 2*sum(a'b')/sum(a'^2 + b'^2). Equal
// inputs give 0 up to rounding; BF16 rounding alone stays below 1e-5. It is the measure of DeepEP's tests. Empty inputs
// give 0, a NaN anywhere gives NaN, and a' and b' all 0 give 0. It panics if the lengths differ.
func CalcDiff(a []uint16, b []float64) float64 {
	if len(a) != len(b) {
		panic(fmt.Sprintf("calc diff: lengths %d and %d differ", len(a), len(b)))
	}
	var dot, norm float64
	for i := range a {
		x, y := float64(num.BF16ToF32(a[i]))+1, b[i]+1
		dot += x * y
		norm += x*x + y*y
	}
	if norm == 0 {
		return 0
	}
	return 1 - 2*dot/norm
}
