// SPDX-License-Identifier: Apache-2.0

package gin

import (
	"math/big"
	"testing"

	"pgregory.net/rapid"
)

// bigLE is rollingLE by its definition: (b-a) mod 2^bits < 2^(bits-1).
func bigLE(a, b uint64, bits int32) bool {
	d := new(big.Int).Sub(new(big.Int).SetUint64(b), new(big.Int).SetUint64(a))
	d.Mod(d, new(big.Int).Lsh(big.NewInt(1), uint(bits))) // Euclidean: never negative
	return d.Cmp(new(big.Int).Lsh(big.NewInt(1), uint(bits-1))) < 0
}

func TestRollingModel(t *testing.T) {
	for bits := int32(1); bits <= 64; bits++ {
		half := uint64(1) << (bits - 1)
		for _, a := range []uint64{0, 1, half - 1, half, 2*half - 1, ^uint64(0)} {
			for _, d := range []uint64{0, 1, half - 1, half, half + 1, 2*half - 1, 2 * half} {
				if got, want := rollingLE(a, a+d, bits), bigLE(a, a+d, bits); got != want {
					t.Errorf("rollingLE(%#x, %#x, %d) is %v, want %v", a, a+d, bits, got, want)
				}
			}
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		bits := rapid.Int32Range(1, 64).Draw(t, "bits")
		a := rapid.Uint64().Draw(t, "a")
		b := rapid.Uint64().Draw(t, "b")
		if rapid.Bool().Draw(t, "near") { // around the place where the answer changes
			b = a + uint64(1)<<(bits-1) + b%5 - 2
		}
		if got, want := rollingLE(a, b, bits), bigLE(a, b, bits); got != want {
			t.Fatalf("rollingLE(%#x, %#x, %d) is %v, want %v", a, b, bits, got, want)
		}
		// What is above the bits does not count.
		if high := rapid.Uint64().Draw(t, "high"); bits < 64 && rollingLE(a+high<<bits, b, bits) != rollingLE(a, b, bits) {
			t.Fatalf("bits above %d of %#x count", bits, a+high<<bits)
		}
	})
}
