// SPDX-License-Identifier: Apache-2.0

package gpu

import (
	"math"

	"github.com/doorbell-net/doorbell/internal/num"
)

// BF16Lo is the float32 of the bf16 in the low half of w.
func BF16Lo(w uint32) float32 { return math.Float32frombits(w << 16) }

// BF16Hi is the float32 of the bf16 in the high half of w.
func BF16Hi(w uint32) float32 { return math.Float32frombits(w &^ 0xffff) }

// BF16x2 rounds two float32 to bf16, to the nearest and ties to even, lo into the low half. Any NaN becomes 0x7fff. It is an
// instruction since sm_80.
func BF16x2(lo, hi float32) uint32 { return bf16(lo) | bf16(hi)<<16 }

func bf16(f float32) uint32 {
	b := math.Float32bits(f)
	if b&0x7fffffff > 0x7f800000 {
		return 0x7fff // the one NaN that the conversion instruction gives
	}
	return (b + 0x7fff + b>>16&1) >> 16
}

// E4M3x2 rounds two float32 to fp8 e4m3, to the nearest and ties to even, lo into the low byte. What is larger than 448 becomes
// that, of its sign, and any NaN 0x7f. It is an instruction since sm_89.
func E4M3x2(lo, hi float32) uint32 { return num.E4M3(lo) | num.E4M3(hi)<<8 }

// Mul is a*b rounded to float32, never fused into a following addition: so CPU and GPU agree to the bit.
func Mul(a, b float32) float32 { return float32(a * b) }

// Add is a+b rounded to float32.
func Add(a, b float32) float32 { return float32(a + b) }
