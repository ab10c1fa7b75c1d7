// SPDX-License-Identifier: Apache-2.0

package num

// TopPairs is the largest magnitude of the bf16 in the halves of v, in its bits: what orders them is what orders integers.
// Infinities and NaN do not count.
func TopPairs(v []uint32) uint32 {
	n, top := topVectors(v)
	for _, w := range v[n:] {
		for _, m := range [2]uint32{w & 0x7fff, w >> 16 & 0x7fff} {
			if m < 0x7f80 {
				top = max(top, m)
			}
		}
	}
	return top
}

// E4M3Pairs multiplies the bf16 in the halves of v by a number, in float32, and writes their e4m3 codes in their order, low
// halves first, as F32ToE4M3Sat gives them. q is half as long as v: two words become one; v has an even number.
func E4M3Pairs(q, v []uint32, by float32) {
	n := e4m3Vectors(q, v, by)
	for i := n; i < len(v); i += 2 {
		var w uint32
		for j, x := range v[i : i+2] {
			w |= uint32(F32ToE4M3Sat(float32(BF16ToF32(uint16(x))*by)))<<(16*j) | uint32(F32ToE4M3Sat(float32(BF16ToF32(uint16(x>>16))*by)))<<(16*j+8)
		}
		q[i/2] = w
	}
}
