// SPDX-License-Identifier: Apache-2.0

package gpu_test

import (
	"math"
	"testing"

	"pgregory.net/rapid"

	"github.com/doorbell-net/doorbell/gpu"
	"github.com/doorbell-net/doorbell/internal/num"
)

// TestBF16Codes goes through every code, in both halves of a word.
func TestBF16Codes(t *testing.T) {
	for code := range uint32(1 << 16) {
		want := math.Float32bits(num.BF16ToF32(uint16(code)))
		other := ^code & 0xffff
		if lo, hi := math.Float32bits(gpu.BF16Lo(other<<16|code)), math.Float32bits(gpu.BF16Hi(code<<16|other)); lo != want || hi != want {
			t.Fatalf("code %#x is %#x in the low half, %#x in the high, want %#x", code, lo, hi, want)
		}
		f, g := math.Float32frombits(want), num.BF16ToF32(uint16(other))
		if got, want := gpu.BF16x2(f, g), uint32(num.F32ToBF16(f))|uint32(num.F32ToBF16(g))<<16; got != want {
			t.Fatalf("codes %#x and %#x round to %#x, want %#x", code, other, got, want)
		}
		if f == f && gpu.BF16x2(f, 0) != code {
			t.Fatalf("code %#x does not come back: %#x", code, gpu.BF16x2(f, 0))
		}
	}
}

// nearest rounds by looking at both neighbours.
func nearest(f float32) uint32 {
	bits := math.Float32bits(f)
	if f != f {
		return 0x7fff
	}
	down := bits >> 16 // towards zero
	if math.IsInf(float64(f), 0) {
		return down
	}
	value := func(code uint32) float64 {
		if code&0x7fff == 0x7f80 { // the step after the largest one, if the exponent went on
			return math.Copysign(math.Ldexp(1, 128), float64(f))
		}
		return float64(math.Float32frombits(code << 16))
	}
	below, above := math.Abs(float64(f)-value(down)), math.Abs(value(down+1)-float64(f))
	if above < below || above == below && down&1 == 1 {
		return down + 1
	}
	return down
}

func TestBF16Rounding(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		for range 200 {
			bits := rapid.Uint32().Draw(r, "bits")
			for _, b := range []uint32{bits, bits&^0xffff | 0x8000, bits&^0xffff | 0x7fff, bits&^0xffff | 0x8001} {
				f := math.Float32frombits(b)
				want := nearest(f)
				if uint32(num.F32ToBF16(f)) != want || gpu.BF16x2(f, 1) != want|0x3f80<<16 || gpu.BF16x2(-2, f) != 0xc000|want<<16 {
					r.Fatalf("%#x (%v) rounds to %#x and %#x, want %#x; num says %#x", b, f, gpu.BF16x2(f, 1), gpu.BF16x2(-2, f), want, num.F32ToBF16(f))
				}
			}
		}
	})
}

// These are variables, so that the compiler does not do the arithmetic.
var (
	factor = float32(1 + 1.0/(1<<12))
	minus  = float32(-(1 + 1.0/(1<<11)))
)

// TestNotFused multiplies and adds where rounding once instead of twice gives another result.
func TestNotFused(t *testing.T) {
	fused := float32(math.FMA(float64(factor), float64(factor), float64(minus)))
	if got := gpu.Add(gpu.Mul(factor, factor), minus); got != 0 || fused == 0 {
		t.Errorf("%v * %v + %v is %v, want 0; fused it is %v", factor, factor, minus, got, fused)
	}
	rapid.Check(t, func(r *rapid.T) {
		a, b, c := rapid.Float32().Draw(r, "a"), rapid.Float32().Draw(r, "b"), rapid.Float32().Draw(r, "c")
		// A product of two float32 is exact in float64; a sum in float64 rounded again is right, since 53 >= 2*24+2.
		p := float32(float64(a) * float64(b))
		want := float32(float64(p) + float64(c))
		if got := gpu.Add(gpu.Mul(a, b), c); got != want && (got == got || want == want) {
			r.Fatalf("%v * %v + %v is %v, want %v", a, b, c, got, want)
		}
	})
}

// TestE4M3x2 goes through numbers of all exponents, in both halves, beside package num's plain way.
func TestE4M3x2(t *testing.T) {
	for high := range uint32(1 << 16) {
		for _, low := range []uint32{0, 1, 0x7fff, 0x8000, 0xffff} {
			f, other := math.Float32frombits(high<<16|low), math.Float32frombits(^high<<16)
			if got, want := gpu.E4M3x2(f, other), uint32(num.F32ToE4M3Sat(f))|uint32(num.F32ToE4M3Sat(other))<<8; got != want {
				t.Fatalf("%#x and %#x: %#04x, want %#04x", math.Float32bits(f), math.Float32bits(other), got, want)
			}
		}
	}
}
