// SPDX-License-Identifier: Apache-2.0

package num

import (
	"math/rand/v2"
	"testing"
)

// pairs draws pairs of bf16, of which many are special: zeros, subnormals, infinities, NaN.
func pairs(r *rand.Rand, n int) []uint32 {
	special := []uint32{0, 0x8000, 1, 0x7f, 0x80, 0x7f7f, 0x7f80, 0xff80, 0x7f81, 0xffff, 0x3f80, 0xc2fe}
	half := func() uint32 {
		if r.IntN(3) == 0 {
			return special[r.IntN(len(special))]
		}
		return r.Uint32() & 0xffff
	}
	v := make([]uint32, n)
	for i := range v {
		v[i] = half() | half()<<16
	}
	return v
}

func halfOf(v []uint32, i int) uint16 { return uint16(v[i/2] >> (16 * (i % 2))) }

// Whatever the vector units do is what one after another gives, at each length, and nothing is written behind.
func TestQuantiserOfPairs(t *testing.T) {
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 1))
	for n := range 70 {
		for range 50 {
			v := pairs(r, n)
			top := uint32(0)
			for i := range 2 * n {
				if m := uint32(halfOf(v, i) & 0x7fff); m < 0x7f80 {
					top = max(top, m)
				}
			}
			if got := TopOfPairs(v); got != top {
				t.Fatalf("seed %d: the largest of %#x is %#x, must be %#x", seed, v, got, top)
			}
			by := []float32{1, 1. / 64, 0x1p-120, r.Float32() * 1000}[r.IntN(4)]
			q := make([]uint32, n/2+1)
			E4M3OfPairs(q[:n/2], v, by)
			for i := range n / 2 * 4 {
				if got, want := uint8(q[i/4]>>(8*(i%4))), F32ToE4M3Sat(BF16ToF32(halfOf(v, i))*by); got != want {
					t.Fatalf("seed %d: %#x times %g is %#x, must be %#x", seed, halfOf(v, i), by, got, want)
				}
			}
			if q[n/2] != 0 {
				t.Fatalf("seed %d: wrote past %d words", seed, n/2)
			}
		}
	}
}

// Each bf16, by vectors and, with a word less, by the plain loop.
func TestE4M3OfEachPair(t *testing.T) {
	v := make([]uint32, 1<<15)
	for i := range v {
		v[i] = uint32(2*i) | uint32(2*i+1)<<16
	}
	for _, by := range []float32{1, 0.9990234, 1.0009766, 1. / 448, 448, 0x1p-133} {
		for _, step := range []int{1 << 14, 3} {
			for from := 0; from < 1<<14; from += step {
				q := make([]uint32, min(step, 1<<14-from))
				E4M3OfPairs(q, v[2*from:], by)
				for i := range 4 * len(q) {
					x := uint16(4*from + i)
					if got, want := uint8(q[i/4]>>(8*(i%4))), F32ToE4M3Sat(BF16ToF32(x)*by); got != want {
						t.Fatalf("%#x times %g, %d at once, is %#x, must be %#x", x, by, len(q), got, want)
					}
				}
			}
		}
	}
}

func BenchmarkQuantiser(b *testing.B) {
	v, q := make([]uint32, 3584), make([]uint32, 1792) // a row of 7,168
	for i := range v {
		v[i] = uint32(i)*0x01010101&0x3fff3fff | 0x3c003c00
	}
	b.Run("top", func(b *testing.B) {
		b.SetBytes(4 * 3584)
		for b.Loop() {
			TopOfPairs(v)
		}
	})
	b.Run("e4m3", func(b *testing.B) {
		b.SetBytes(4 * 3584)
		for b.Loop() {
			E4M3OfPairs(q, v, 0.5)
		}
	})
}
