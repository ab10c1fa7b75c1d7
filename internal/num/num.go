// SPDX-License-Identifier: Apache-2.0

// Package num converts between float32 and the narrow floating-point formats that travel in windows: bf16, f16 and the
// two fp8 formats of OCP's "OFP8" (e4m3 without infinities, e5m2 with them).
//
// Every function is pure, allocates nothing and is safe in device code: integer arithmetic only, no tables, so that the
// same source gives the same bits on a CPU and as PTX. Narrowing rounds to nearest, ties to even, subnormals included,
// and turns any NaN into the one positive NaN that NVIDIA's cvt instructions give, so that a compiler may put the
// instruction in the function's place. Widening is exact and keeps a NaN's sign and payload where there is one.
package num

import "math"

const (
	f32Inf   = 0x7f800000 // bits of +infinity
	f32Quiet = 0x7fc00000 // bits of the default quiet NaN
)

// BF16ToF32 returns the value of the bf16 code h. It is exact.
func BF16ToF32(h uint16) float32 {
	return math.Float32frombits(uint32(h) << 16)
}

// F32ToBF16 returns the bf16 code nearest to f, ties to even. What rounds past the largest finite value (3.39e38)
// becomes infinity; NaN becomes 0x7fff.
func F32ToBF16(f float32) uint16 {
	b := math.Float32bits(f)
	if b&0x7fffffff > f32Inf {
		return 0x7fff
	}
	// bf16 shares float32's exponent, so a carry out of the mantissa is already right, up to infinity.
	return uint16((b + 0x7fff + b>>16&1) >> 16)
}

// F16ToF32 returns the value of the IEEE half-precision code h. It is exact.
func F16ToF32(h uint16) float32 {
	return widen(uint32(h&0x8000)<<16, uint32(h&0x7fff), 10, 15, true)
}

// F32ToF16 returns the IEEE half-precision code nearest to f, ties to even. What rounds past 65504 (that is, from 65520
// on) becomes infinity; NaN becomes 0x7fff.
func F32ToF16(f float32) uint16 {
	b := math.Float32bits(f)
	abs := b & 0x7fffffff
	if abs > f32Inf {
		return 0x7fff
	}
	return uint16(b>>16&0x8000 | min(narrow(abs, 10, 15), 0x7c00))
}

// E4M3ToF32 returns the value of the fp8 e4m3 code q. It is exact. The codes 0x7f and 0xff are NaN; e4m3 has no
// infinity.
func E4M3ToF32(q uint8) float32 {
	sign := uint32(q&0x80) << 24
	if q&0x7f == 0x7f {
		return math.Float32frombits(sign | f32Quiet)
	}
	return widen(sign, uint32(q&0x7f), 3, 7, false)
}

// F32ToE4M3Sat returns the fp8 e4m3 code nearest to f, ties to even, and saturates: whatever is larger than 448,
// infinity too, becomes 448 with f's sign (0x7e, 0xfe). NaN becomes 0x7f. This is cvt.rn.satfinite.
func F32ToE4M3Sat(f float32) uint8 {
	b := math.Float32bits(f)
	abs := b & 0x7fffffff
	if abs > f32Inf {
		return 0x7f
	}
	return uint8(b>>24&0x80 | min(narrow(abs, 3, 7), 0x7e))
}

// E5M2ToF32 returns the value of the fp8 e5m2 code q. It is exact.
func E5M2ToF32(q uint8) float32 {
	return widen(uint32(q&0x80)<<24, uint32(q&0x7f), 2, 15, true)
}

// F32ToE5M2Sat returns the fp8 e5m2 code nearest to f, ties to even, and saturates: whatever is larger than 57344,
// infinity too, becomes 57344 with f's sign (0x7b, 0xfb); it never returns e5m2's infinity. NaN becomes 0x7f. This is
// cvt.rn.satfinite.
func F32ToE5M2Sat(f float32) uint8 {
	b := math.Float32bits(f)
	abs := b & 0x7fffffff
	if abs > f32Inf {
		return 0x7f
	}
	return uint8(b>>24&0x80 | min(narrow(abs, 2, 15), 0x7b))
}

// narrow rounds abs, the bits of a non-negative float32 that is no NaN, to a format with man mantissa bits and the given
// exponent bias. The code that it returns has no upper limit: the caller clamps it to its infinity or largest value.
func narrow(abs, man, bias uint32) uint32 {
	e := abs >> 23
	if e+bias >= 128 {
		// Normal in the target: rebias; a carry out of the mantissa steps to the next exponent, as it should.
		return roundShift(abs-(127-bias)<<23, 23-man)
	}
	// Subnormal in the target: count units of 2^(1-bias-man) in the 24-bit significand, which is in units of 2^(e-150).
	s := 151 - bias - man - e
	if s >= 25 {
		return 0 // less than half a unit; float32's own subnormals end here too
	}
	return roundShift(abs&0x7fffff|0x800000, s)
}

// roundShift returns v / 2^s rounded to nearest, ties to even, for s in 1..25 and v below 2^31.
func roundShift(v, s uint32) uint32 {
	return (v + (1<<(s-1) - 1) + v>>s&1) >> s
}

// widen returns the float32 with the given sign bit and the magnitude of code, a format with man mantissa bits and the
// given exponent bias; its top exponent means infinity and NaN where special says so.
func widen(sign, code, man, bias uint32, special bool) float32 {
	b := code << (23 - man)
	switch e := code >> man; {
	case e == 0:
		// Subnormal or zero: an exact product, normal in float32 for every format here.
		unit := math.Float32frombits((128 - bias - man) << 23)
		b = math.Float32bits(float32(code) * unit)
	case special && e == 2*bias+1:
		b |= f32Inf
	default:
		b += (127 - bias) << 23
	}
	return math.Float32frombits(sign | b)
}
