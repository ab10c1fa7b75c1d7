// SPDX-License-Identifier: Apache-2.0

package ref

import "github.com/doorbell-net/doorbell/internal/num"

// Token computes into out what Combine returns for one token, from its row x, its selections and their weights: for a
// receiver that knows the payloads, and has no need of the other ranks' tokens. All rows have the same length.
func Token(out, x []uint16, idx []int32, w []float32, f Expert) {
	for j, v := range x {
		acc := float32(0)
		for k, e := range idx {
			if e >= 0 {
				p := float32(w[k] * num.BF16ToF32(f(int(e), j, v)))
				acc = float32(acc + p)
			}
		}
		out[j] = num.F32ToBF16(acc)
	}
}
