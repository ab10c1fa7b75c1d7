// SPDX-License-Identifier: Apache-2.0

package num

import (
	"math"
	"sort"
	"testing"

	"pgregory.net/rapid"
)

// format describes a narrow format as the standards do, and what the package makes of it. The reference below reads only
// man, bias, finite and over; it knows nothing of how the package works.
type format struct {
	name   string
	bits   uint
	man    uint
	bias   int
	finite uint32 // largest code of a finite positive value
	inf    uint32 // code of +infinity, 0 if there is none
	over   uint32 // code of what lies past the largest finite value
	nan    uint32 // code that every NaN becomes
	wide   func(uint32) float32
	narrow func(float32) uint32
}

var formats = []format{
	{"bf16", 16, 7, 127, 0x7f7f, 0x7f80, 0x7f80, 0x7fff,
		func(c uint32) float32 { return BF16ToF32(uint16(c)) }, func(f float32) uint32 { return uint32(F32ToBF16(f)) }},
	{"f16", 16, 10, 15, 0x7bff, 0x7c00, 0x7c00, 0x7fff,
		func(c uint32) float32 { return F16ToF32(uint16(c)) }, func(f float32) uint32 { return uint32(F32ToF16(f)) }},
	{"e4m3", 8, 3, 7, 0x7e, 0, 0x7e, 0x7f,
		func(c uint32) float32 { return E4M3ToF32(uint8(c)) }, func(f float32) uint32 { return uint32(F32ToE4M3Sat(f)) }},
	{"e5m2", 8, 2, 15, 0x7b, 0x7c, 0x7b, 0x7f,
		func(c uint32) float32 { return E5M2ToF32(uint8(c)) }, func(f float32) uint32 { return uint32(F32ToE5M2Sat(f)) }},
}

func (f *format) sign() uint32 { return 1 << (f.bits - 1) }

// value is the dumb reference of widening: a finite, non-negative code's value by the definition of the format.
func (f *format) value(code uint32) float64 {
	e, m := int(code>>f.man), float64(code&(1<<f.man-1))
	if e == 0 {
		return math.Ldexp(m, 1-f.bias-int(f.man))
	}
	return math.Ldexp(1+math.Ldexp(m, -int(f.man)), e-f.bias)
}

// values lists the values of the codes 0..finite+1; the last one is where the next code would stand if it were finite,
// which is what IEEE rounding compares with at the upper end.
func (f *format) values() []float64 {
	v := make([]float64, f.finite+2)
	for c := range v {
		v[c] = f.value(uint32(c))
	}
	return v
}

// nearest is the dumb reference of narrowing: search all values, measure both distances exactly, prefer the even code.
func (f *format) nearest(v []float64, x float32) uint32 {
	if x != x {
		return f.nan
	}
	var sign uint32
	a := float64(x)
	if math.Signbit(a) {
		sign, a = f.sign(), -a
	}
	i := sort.SearchFloat64s(v, a) // first code whose value is >= a
	if i == len(v) {
		return sign | f.over
	}
	code := uint32(i)
	if v[i] != a {
		// Exact in float64: both distances are multiples of a's last bit and span fewer than 53 of them.
		switch below, above := a-v[i-1], v[i]-a; {
		case below < above:
			code = uint32(i - 1)
		case below == above:
			code = uint32(i-1) + uint32(i-1)&1
		}
	}
	if code > f.finite {
		code = f.over
	}
	return sign | code
}

func TestWidenEveryCode(t *testing.T) {
	for _, f := range formats {
		for c := range f.sign() << 1 {
			got, abs, neg := f.wide(c), c&^f.sign(), c&f.sign() != 0
			switch {
			case abs <= f.finite:
				want := f.value(abs)
				if neg {
					want = -want
				}
				if math.Float64bits(float64(got)) != math.Float64bits(want) {
					t.Fatalf("%s: code %#x is %v (want %v)", f.name, c, got, want)
				}
			case f.inf != 0 && abs == f.inf:
				if !math.IsInf(float64(got), 1) && !neg || !math.IsInf(float64(got), -1) && neg {
					t.Fatalf("%s: code %#x is %v (want an infinity of its sign)", f.name, c, got)
				}
			default:
				if got == got || math.Signbit(float64(got)) != neg {
					t.Fatalf("%s: code %#x is %v, bits %#x (want a NaN of its sign)", f.name, c, got, math.Float32bits(got))
				}
			}
		}
	}
}

func TestRoundTripEveryCode(t *testing.T) {
	for _, f := range formats {
		for c := range f.sign() << 1 {
			want := c
			switch abs := c &^ f.sign(); {
			case f.inf != 0 && abs == f.inf:
				want = c&f.sign() | f.over
			case abs > f.finite:
				want = f.nan
			}
			if got := f.narrow(f.wide(c)); got != want {
				t.Fatalf("%s: code %#x came back as %#x (want %#x)", f.name, c, got, want)
			}
		}
	}
}

// TestNarrowBetweenCodes takes every code, the middle to the next, and the neighbours of both in float32: all places
// where a wrong rounding shows.
func TestNarrowBetweenCodes(t *testing.T) {
	for _, f := range formats {
		v := f.values()
		check := func(x float32) {
			t.Helper()
			for _, s := range []float32{x, -x} {
				if got, want := f.narrow(s), f.nearest(v, s); got != want {
					t.Fatalf("%s: %v (bits %#x) became %#x (want %#x)", f.name, s, math.Float32bits(s), got, want)
				}
			}
		}
		for c := range v[:len(v)-1] {
			for _, x := range []float32{float32(v[c]), float32((v[c] + v[c+1]) / 2)} {
				check(x)
				check(math.Nextafter32(x, 0))
				check(math.Nextafter32(x, float32(math.Inf(1))))
			}
		}
	}
}

// TestNarrowSweep walks through all of float32 by a stride that is no power of two, from both ends.
func TestNarrowSweep(t *testing.T) {
	for _, f := range formats {
		v := f.values()
		for b := uint64(0); b < 1<<32; b += 65539 {
			for _, x := range []float32{math.Float32frombits(uint32(b)), math.Float32frombits(^uint32(b))} {
				if got, want := f.narrow(x), f.nearest(v, x); got != want {
					t.Fatalf("%s: %v (bits %#x) became %#x (want %#x)", f.name, x, math.Float32bits(x), got, want)
				}
			}
		}
	}
}

func TestNarrowRandom(t *testing.T) {
	for _, f := range formats {
		v := f.values()
		t.Run(f.name, rapid.MakeCheck(func(t *rapid.T) {
			x := math.Float32frombits(rapid.Uint32().Draw(t, "bits"))
			if got, want := f.narrow(x), f.nearest(v, x); got != want {
				t.Fatalf("%v became %#x (want %#x)", x, got, want)
			}
		}))
	}
}

// TestNarrowByHand holds figures from the standards, so that the reference is itself checked.
func TestNarrowByHand(t *testing.T) {
	inf := float32(math.Inf(1))
	for _, c := range []struct {
		format int
		x      float32
		want   uint32
	}{
		{0, 1, 0x3f80}, {0, -2, 0xc000}, {0, 3.1415927, 0x4049}, {0, math.MaxFloat32, 0x7f80}, {0, inf, 0x7f80},
		{0, math.SmallestNonzeroFloat32, 0}, {0, 0x1p-133, 1},
		{1, 1, 0x3c00}, {1, 65504, 0x7bff}, {1, 65519.996, 0x7bff}, {1, 65520, 0x7c00}, {1, 0x1p-24, 1}, {1, 0x1p-25, 0},
		{1, 0x1.8p-25, 1}, {1, -inf, 0xfc00},
		{2, 1, 0x38}, {2, 448, 0x7e}, {2, 464, 0x7e}, {2, 1e9, 0x7e}, {2, -inf, 0xfe}, {2, 0x1p-9, 1}, {2, 0x1p-10, 0},
		{2, 0x1.8p-9, 2}, {2, 17, 0x58}, {2, 19, 0x5a},
		{3, 1, 0x3c}, {3, 57344, 0x7b}, {3, 61440, 0x7b}, {3, inf, 0x7b}, {3, 0x1p-16, 1}, {3, 0x1p-17, 0},
	} {
		f := &formats[c.format]
		if got := f.narrow(c.x); got != c.want {
			t.Errorf("%s: %v became %#x (want %#x)", f.name, c.x, got, c.want)
		}
		if got := f.nearest(f.values(), c.x); got != c.want {
			t.Errorf("%s: the reference makes %#x of %v (want %#x)", f.name, got, c.x, c.want)
		}
	}
}

func TestAllocatesNothing(t *testing.T) {
	var sink float32
	n := testing.AllocsPerRun(100, func() {
		for _, f := range formats {
			sink += f.wide(f.narrow(sink + 1))
		}
	})
	if n != 0 {
		t.Errorf("conversions allocate %v times a run (want 0)", n)
	}
}
