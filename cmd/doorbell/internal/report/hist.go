// SPDX-License-Identifier: Apache-2.0

package report

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
)

const (
	histBits    = 7                                          // sub-buckets of each power of two, as a power of two
	histSub     = 1 << histBits                              // values below it have a bucket each
	histBuckets = (64 - histBits + 1) * histSub              // every uint64 has a bucket
	histVersion = 1                                          // of the encoding
	histMaxWire = 64 + histBuckets*(2+binary.MaxVarintLen64) // bytes
)

// Hist is a histogram of latencies in nanoseconds (or any unsigned numbers): exact below 128, and above with buckets
// that are at most 1/128 of their value wide. The zero value is empty and ready. Record allocates nothing.
// It is not safe for concurrent use: give each recorder its own and Merge them.
type Hist struct {
	count, min, max uint64
	buckets         [histBuckets]uint64
}

// bucketOf maps a value to its bucket: the top histBits+1 bits select it.
func bucketOf(v uint64) int {
	if v < histSub {
		return int(v)
	}
	shift := bits.Len64(v) - histBits - 1
	return (shift+1)<<histBits + int(v>>shift) - histSub
}

// bucketEnd is the largest value of a bucket.
func bucketEnd(b int) uint64 {
	if b < histSub {
		return uint64(b)
	}
	shift := b>>histBits - 1
	low := uint64(histSub+b&(histSub-1)) << shift
	return low + (1<<shift - 1)
}

// Record adds one value.
func (h *Hist) Record(v uint64) {
	if h.count == 0 || v < h.min {
		h.min = v
	}
	h.max = max(h.max, v)
	h.count++
	h.buckets[bucketOf(v)]++
}

// Merge adds all values of o.
func (h *Hist) Merge(o *Hist) {
	if o.count == 0 {
		return
	}
	if h.count == 0 || o.min < h.min {
		h.min = o.min
	}
	h.max = max(h.max, o.max)
	h.count += o.count
	for i, n := range o.buckets {
		h.buckets[i] += n
	}
}

// Reset empties the histogram.
func (h *Hist) Reset() { *h = Hist{} }

// Count returns how many values were recorded.
func (h *Hist) Count() uint64 { return h.count }

// Min returns the smallest value, exactly; 0 if there is none.
func (h *Hist) Min() uint64 { return h.min }

// Max returns the largest value, exactly; 0 if there is none.
func (h *Hist) Max() uint64 { return h.max }

// Quantile returns the value of rank ceil(q*count) in sorted order, rounded up within its bucket but never above Max:
// the result r of a true value v satisfies v <= r <= v + v/128. q is clamped to 0..1; an empty histogram gives 0.
func (h *Hist) Quantile(q float64) uint64 {
	if h.count == 0 {
		return 0
	}
	rank := quantileRank(q, h.count)
	if rank == 1 {
		return h.min
	}
	var seen uint64
	for i, n := range h.buckets {
		if seen += n; seen >= rank {
			return min(bucketEnd(i), h.max)
		}
	}
	return h.max
}

// quantileRank is ceil(q*n) in 1..n.
func quantileRank(q float64, n uint64) uint64 {
	if !(q > 0) { // also for NaN
		return 1
	}
	if q >= 1 {
		return n
	}
	f := q * float64(n)
	r := uint64(f)
	if float64(r) < f {
		r++
	}
	return min(max(r, 1), n)
}

// Micros returns median, 99th percentile and minimum of values in nanoseconds, as microseconds: a Row's three figures.
func (h *Hist) Micros() (p50, p99, low float64) {
	return float64(h.Quantile(0.50)) / 1e3, float64(h.Quantile(0.99)) / 1e3, float64(h.min) / 1e3
}

// AppendBinary appends an encoding that UnmarshalBinary of another process reads, so that rank 0 can merge all ranks'.
func (h *Hist) AppendBinary(b []byte) ([]byte, error) {
	b = append(b, histVersion)
	b = binary.AppendUvarint(b, h.min)
	b = binary.AppendUvarint(b, h.max)
	last := 0
	for i, n := range h.buckets {
		if n > 0 {
			b = binary.AppendUvarint(b, uint64(i-last))
			b = binary.AppendUvarint(b, n)
			last = i
		}
	}
	return b, nil
}

var errHist = errors.New("decode histogram: bytes end inside a number, or a number is too large")

// UnmarshalBinary replaces h by the histogram encoded in b. It refuses what no Hist can hold; h is then empty.
func (h *Hist) UnmarshalBinary(b []byte) error {
	err := h.decode(b)
	if err != nil {
		h.Reset()
	}
	return err
}

func (h *Hist) decode(b []byte) error {
	h.Reset()
	if len(b) == 0 || len(b) > histMaxWire || b[0] != histVersion {
		return fmt.Errorf("decode histogram: %d bytes, not version %d", len(b), histVersion)
	}
	b = b[1:]
	next := func() (uint64, bool) {
		v, n := binary.Uvarint(b)
		if n <= 0 {
			return 0, false
		}
		b = b[n:]
		return v, true
	}
	low, ok1 := next()
	high, ok2 := next()
	if !ok1 || !ok2 {
		return errHist
	}
	at, first := uint64(0), true
	lowest, highest := 0, 0
	for len(b) > 0 {
		step, ok1 := next()
		n, ok2 := next()
		if !ok1 || !ok2 {
			return errHist
		}
		at += step
		if step >= histBuckets || at >= histBuckets || (step == 0 && !first) || n == 0 || h.count+n < n {
			return fmt.Errorf("decode histogram: bucket %d (+%d) with count %d", at, step, n)
		}
		if first {
			lowest = int(at)
		}
		first, highest = false, int(at)
		h.buckets[at] = n
		h.count += n
	}
	if h.count == 0 && (low != 0 || high != 0) || h.count > 0 && (bucketOf(low) != lowest || bucketOf(high) != highest || low > high) {
		return fmt.Errorf("decode histogram: minimum %d and maximum %d are not in its buckets", low, high)
	}
	h.min, h.max = low, high
	return nil
}
