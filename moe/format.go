// SPDX-License-Identifier: Apache-2.0

package moe

// Format is what a token's elements are on their way to the experts. The answers come back in BF16 in any case.
//
// FP8 is e4m3 with a scale for each group of 128 elements, the last of which may be shorter. With a the largest
// magnitude of a group's finite elements, at least 1e-4, an element is float32(x * 448/a) rounded to e4m3, to the
// nearest and ties to even, and the scale is float32(a/448): an element is worth its e4m3 times the scale. An infinity
// becomes 448 with its sign, a NaN stays one; neither changes the rest of its group. (The formulas are DeepEP's, which
// leaves NaN and infinities undefined.)
type Format int32

// Formats.
const (
	BF16     Format = iota
	FP8             // scales are float32
	FP8Pow2         // scales are float32, raised to the next power of two
	FP8UE8M0        // as FP8Pow2; of a scale its exponent alone, 8 bits with bias 127: four to 32 bits, the first lowest
)

var formatNames = [...]string{"bf16", "fp8", "fp8-pow2", "fp8-ue8m0"}

// String is the name of the format.
func (f Format) String() string {
	if f.valid() {
		return formatNames[f]
	}
	return "unknown"
}

// Formats are the names of all of them.
func Formats() []string { return formatNames[:] }

// ParseFormat is the format of a name.
func ParseFormat(name string) (f Format, ok bool) {
	for i, n := range formatNames {
		if n == name {
			return Format(i), true
		}
	}
	return 0, false
}

func (f Format) valid() bool { return f >= 0 && int(f) < len(formatNames) }

// ValueBytes is what the elements of a token take in a row, rounded up to 16; what is beyond them is 0.
func (f Format) ValueBytes(hidden int) int {
	if f == BF16 {
		return 2 * hidden
	}
	return round16(hidden)
}

// ScaleBytes is what the scales of a token take in a row, after its elements, rounded up to 16; what is beyond them is 0.
func (f Format) ScaleBytes(hidden int) int {
	groups := (hidden + groupSize - 1) / groupSize
	switch f {
	case BF16:
		return 0
	case FP8UE8M0:
		return round16(groups)
	default:
		return round16(4 * groups)
	}
}

// RowBytes is the size of a row: elements and scales.
func (f Format) RowBytes(hidden int) int { return f.ValueBytes(hidden) + f.ScaleBytes(hidden) }

func round16(n int) int { return (n + 15) &^ 15 }
