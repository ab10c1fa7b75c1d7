// SPDX-License-Identifier: Apache-2.0

package report

import (
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// value draws numbers of every magnitude, not mostly huge ones.
func value() *rapid.Generator[uint64] {
	return rapid.Custom(func(t *rapid.T) uint64 {
		return rapid.Uint64().Draw(t, "v") >> rapid.UintRange(0, 63).Draw(t, "shift")
	})
}

// TestHistAgainstSorting: each quantile is the sorted value of that rank, or up to 1/128 above it; parts merge to the
// whole; the encoding keeps everything.
func TestHistAgainstSorting(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		vs := rapid.SliceOfN(value(), 1, 300).Draw(t, "values")
		cut := rapid.IntRange(0, len(vs)).Draw(t, "cut")
		var whole, a, b Hist
		for i, v := range vs {
			whole.Record(v)
			if i < cut {
				a.Record(v)
			} else {
				b.Record(v)
			}
		}
		a.Merge(&b)
		if a != whole {
			t.Fatal("two parts merged are not the whole")
		}
		wire, err := whole.AppendBinary(nil)
		if err != nil {
			t.Fatal(err)
		}
		var back Hist
		if err := back.UnmarshalBinary(wire); err != nil || back != whole {
			t.Fatalf("encoded and decoded it is another: %v", err)
		}
		sorted := slices.Sorted(slices.Values(vs))
		n := len(sorted)
		if whole.Count() != uint64(n) || whole.Min() != sorted[0] || whole.Max() != sorted[n-1] {
			t.Fatalf("count %d min %d max %d, want %d %d %d", whole.Count(), whole.Min(), whole.Max(), n, sorted[0], sorted[n-1])
		}
		// The rank is drawn and q lies in the middle of it, so that no rounding of q*n decides.
		rank := rapid.IntRange(1, n).Draw(t, "rank")
		want, got := sorted[rank-1], whole.Quantile((float64(rank)-0.5)/float64(n))
		if got < want || got-want > want/histSub {
			t.Fatalf("rank %d of %d: %d, want %d or up to 1/%d above", rank, n, got, want, histSub)
		}
		if whole.Quantile(0) != sorted[0] || whole.Quantile(1) != sorted[n-1] || whole.Quantile(-1) != sorted[0] || whole.Quantile(2) != sorted[n-1] {
			t.Fatal("the ends are not minimum and maximum")
		}
	})
}

func TestHistBuckets(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		v := value().Draw(t, "v")
		b := bucketOf(v)
		if b < 0 || b >= histBuckets || bucketEnd(b) < v || (b > 0 && bucketEnd(b-1) >= v) {
			t.Fatalf("%d is in bucket %d, which ends at %d", v, b, bucketEnd(b))
		}
	})
	if bucketOf(1<<64-1) != histBuckets-1 || bucketEnd(histBuckets-1) != 1<<64-1 {
		t.Fatal("the last bucket does not end at 2^64-1")
	}
}

func TestHistEmpty(t *testing.T) {
	var h, o Hist
	h.Merge(&o)
	if h != o || h.Quantile(0.5) != 0 {
		t.Fatal("an empty histogram is not empty")
	}
	h.Record(5)
	h.Reset()
	if h != o {
		t.Fatal("Reset left something")
	}
	if n := testing.AllocsPerRun(100, func() { h.Record(123456) }); n != 0 {
		t.Fatalf("Record allocates %v times", n)
	}
}

func FuzzHist(f *testing.F) {
	var h Hist
	for _, vs := range [][]uint64{nil, {0}, {7}, {1, 130, 1 << 40, 1<<64 - 1}, {5, 5, 5, 300}} {
		for _, v := range vs {
			h.Record(v)
		}
		b, err := h.AppendBinary(nil)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Add([]byte{1, 0, 0, 0, 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		var h Hist
		if err := h.UnmarshalBinary(b); err != nil {
			if h.Count() != 0 {
				t.Fatal("refused, and yet something is left")
			}
			return
		}
		if q := h.Quantile(0.99); q < h.Min() || q > h.Max() {
			t.Fatalf("p99 %d outside of %d..%d", q, h.Min(), h.Max())
		}
		again, err := h.AppendBinary(nil)
		if err != nil {
			t.Fatal(err)
		}
		var back Hist
		if err := back.UnmarshalBinary(again); err != nil || back != h {
			t.Fatalf("not the same after encoding again: %v", err)
		}
	})
}

func BenchmarkHistRecord(b *testing.B) {
	var h Hist
	b.ReportAllocs()
	for i := range b.N {
		h.Record(uint64(i) * 977)
	}
}
