// SPDX-License-Identifier: Apache-2.0

package gin

import (
	"math"

	"github.com/doorbell-net/doorbell/gpu"
	"github.com/doorbell-net/doorbell/internal/num"
)

// F32 is a float32 that is reduced.
type F32 float32

// F16 is the bits of an IEEE half-precision number.
type F16 uint16

// BF16 is the bits of a bfloat16.
type BF16 uint16

// Float is a type whose numbers are reduced as float32: F32, F16 or BF16. Its methods are of the type, not of the value
// that they are called on, but Float32 and Bits.
type Float[T any] interface {
	F32 | F16 | BF16
	Float32() float32    // exact
	Round(f float32) T   // nearest, ties to even
	Bits() uint64        // above the type's width: 0
	FromBits(b uint64) T // what is above the type's width does not count
}

// Float32 is Float's.
func (x F32) Float32() float32 { return float32(x) }

// Round is Float's.
func (F32) Round(f float32) F32 { return F32(f) }

// Bits is Float's.
func (x F32) Bits() uint64 { return uint64(math.Float32bits(float32(x))) }

// FromBits is Float's.
func (F32) FromBits(b uint64) F32 { return F32(math.Float32frombits(uint32(b))) }

// Float32 is Float's.
func (x F16) Float32() float32 { return num.F16ToF32(uint16(x)) }

// Round is Float's.
func (F16) Round(f float32) F16 { return F16(num.F32ToF16(f)) }

// Bits is Float's.
func (x F16) Bits() uint64 { return uint64(x) }

// FromBits is Float's.
func (F16) FromBits(b uint64) F16 { return F16(b) }

// Float32 is Float's.
func (x BF16) Float32() float32 { return num.BF16ToF32(uint16(x)) }

// Round is Float's.
func (BF16) Round(f float32) BF16 { return BF16(num.F32ToBF16(f)) }

// Bits is Float's.
func (x BF16) Bits() uint64 { return uint64(x) }

// FromBits is Float's.
func (BF16) FromBits(b uint64) BF16 { return BF16(b) }

// Op is how several numbers become one.
type Op int32

// Operations.
const (
	Sum Op = iota // integers wrap; floats are added as float32, one after another, and rounded to their type once
	Min           // of floats: one that is no NaN if there is one, and -0 is below 0
	Max
	And // bits, of integers alone
	Or
)

// ofInts says whether integers are reduced so, ofFloats whether floats are.
func (op Op) ofInts() bool   { return op >= Sum && op <= Or }
func (op Op) ofFloats() bool { return op >= Sum && op <= Max }

func combineInts[T gpu.Int](op Op, a, b T) T {
	switch op {
	case Sum:
		return a + b
	case Min:
		return min(a, b)
	case Max:
		return max(a, b)
	case And:
		return a & b
	}
	return a | b
}

func combineFloats(op Op, a, b float32) float32 {
	switch {
	case op == Sum:
		return gpu.Add(a, b)
	case a != a:
		return b
	case b != b:
		return a
	case op == Min:
		return min(a, b)
	}
	return max(a, b)
}
