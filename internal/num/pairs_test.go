// SPDX-License-Identifier: Apache-2.0

package num

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

// bits draws float32 of which many are special: zeros, denormals, infinities, NaN, ties between two bf16.
func bits(r *rand.Rand) uint32 {
	b := r.Uint32()
	switch r.IntN(4) {
	case 0:
		b &= 0x807fffff | r.Uint32()&1<<23
	case 1:
		b |= 0x7f800000
	case 2:
		b = b&0xffff0000 | 0x8000
	}
	return b
}

// Whatever the vector units do is what the plain loop does, at each length and place.
func TestPairs(t *testing.T) {
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 1))
	for n := range 70 {
		for range 50 {
			lo, hi, v, out := make([]float32, n+1), make([]float32, n+1), make([]uint32, n), make([]uint32, n)
			for j := range v {
				lo[j], hi[j] = math.Float32frombits(bits(r)), math.Float32frombits(bits(r))
				v[j] = bits(r)&0xffff0000 | bits(r)>>16
			}
			w := math.Float32frombits(bits(r))
			var want []uint32
			for j, x := range v {
				l := lo[j] + float32(w*BF16ToF32(uint16(x)))
				h := hi[j] + float32(w*BF16ToF32(uint16(x>>16)))
				want = append(want, uint32(F32ToBF16(l))|uint32(F32ToBF16(h))<<16)
			}
			AddPairs(lo, hi, v, w)
			RoundPairs(out, lo, hi)
			for j := range want {
				if out[j] != want[j] {
					t.Fatalf("seed %d: word %d of %d: %#08x, must be %#08x", seed, j, n, out[j], want[j])
				}
			}
			if lo[n] != 0 || hi[n] != 0 {
				t.Fatalf("seed %d: wrote past %d words", seed, n)
			}
		}
	}
}

// SumPairs is AddPairs for each row in turn and RoundPairs, whatever the rows, their places, and how many.
func TestSumPairs(t *testing.T) {
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 1))
	for n := range 70 {
		for rows := range 10 {
			v, w := make([][]uint32, rows), make([]float32, rows)
			lo, hi := make([]float32, n), make([]float32, n)
			for j := range v {
				for range n + r.IntN(3) {
					v[j] = append(v[j], bits(r)&0xffff0000|bits(r)>>16)
				}
				w[j] = math.Float32frombits(bits(r))
				AddPairs(lo, hi, v[j][:n], w[j])
			}
			want, out := make([]uint32, n+1), make([]uint32, n+1)
			RoundPairs(want[:n], lo, hi)
			want[n], out[n] = 7, 7
			SumPairs(out[:n], v, w)
			if !slices.Equal(out, want) {
				t.Fatalf("seed %d: %d words of %d rows: %#08x, must be %#08x", seed, n, rows, out, want)
			}
		}
	}
	for _, n := range []int{0, 15, 16} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("a row was read past its end at %d", n)
				}
			}()
			SumPairs(make([]uint32, 17), [][]uint32{make([]uint32, 17), make([]uint32, n)}, []float32{1, 1})
		}()
	}
}

func BenchmarkPairs(b *testing.B) {
	lo, hi, v := make([]float32, 1024), make([]float32, 1024), make([]uint32, 1024)
	b.Run("add", func(b *testing.B) {
		b.SetBytes(4096)
		for b.Loop() {
			AddPairs(lo, hi, v, 1)
		}
	})
	b.Run("round", func(b *testing.B) {
		b.SetBytes(4096)
		for b.Loop() {
			RoundPairs(v, lo, hi)
		}
	})
}
