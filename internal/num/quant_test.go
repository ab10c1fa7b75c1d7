// SPDX-License-Identifier: Apache-2.0

package num

import (
	"math/rand/v2"
	"testing"
)

// Each bf16 that there is, multiplied by numbers that bring it anywhere, at each place of a word.
func TestE4M3Pairs(t *testing.T) {
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 1))
	v, q := make([]uint32, 1<<16), make([]uint32, 1<<15)
	for i := range v {
		v[i] = uint32(i) | uint32(uint16(i*40503))<<16
	}
	by := []float32{0, 1, 1 << 14, 1.0 / (1 << 20), 448, 3.5}
	for range 20 {
		by = append(by, float32(r.ExpFloat64()))
	}
	for _, b := range by {
		E4M3Pairs(q, v, b)
		for i, x := range v {
			want := uint32(F32ToE4M3Sat(float32(BF16ToF32(uint16(x))*b))) | uint32(F32ToE4M3Sat(float32(BF16ToF32(uint16(x>>16))*b)))<<8
			if got := q[i/2] >> (i % 2 * 16) & 0xffff; got != want {
				t.Fatalf("seed %d: %#08x times %g: codes %#04x, must be %#04x", seed, x, b, got, want)
			}
		}
	}
}

// At each length, beside what is not to be touched.
func TestQuantLengths(t *testing.T) {
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 1))
	for n := 0; n < 80; n += 2 {
		for range 50 {
			v, q := make([]uint32, n), make([]uint32, n/2+1)
			top := uint32(0)
			for i := range v {
				v[i] = bits(r)&0xffff0000 | bits(r)>>16
				for _, m := range []uint32{v[i] & 0x7fff, v[i] >> 16 & 0x7fff} {
					if m < 0x7f80 && m > top {
						top = m
					}
				}
			}
			if got := TopPairs(v); got != top {
				t.Fatalf("seed %d: top of %#08x is %#04x, must be %#04x", seed, v, got, top)
			}
			E4M3Pairs(q[:n/2], v, 2)
			for i, x := range v {
				want := uint32(F32ToE4M3Sat(2*BF16ToF32(uint16(x)))) | uint32(F32ToE4M3Sat(2*BF16ToF32(uint16(x>>16))))<<8
				if got := q[i/2] >> (i % 2 * 16) & 0xffff; got != want {
					t.Fatalf("seed %d: %#08x: codes %#04x, must be %#04x", seed, x, got, want)
				}
			}
			if q[n/2] != 0 {
				t.Fatalf("seed %d: wrote past %d words", seed, n)
			}
		}
	}
}

func BenchmarkE4M3Pairs(b *testing.B) {
	v, q := make([]uint32, 1024), make([]uint32, 512)
	b.SetBytes(4096)
	for b.Loop() {
		E4M3Pairs(q, v, float32(TopPairs(v)))
	}
}
