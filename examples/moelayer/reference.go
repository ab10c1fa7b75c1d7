// SPDX-License-Identifier: Apache-2.0

package main

import "math"

// draw is a number of -8 to 8 that its coordinates say: each rank knows all tokens and all weights.
func draw(what, i, j, k int) int {
	h := uint64(what)<<48 ^ uint64(i)<<32 ^ uint64(j)<<16 ^ uint64(k)
	h = (h ^ h>>31) * 0x9e3779b97f4a7c15
	h = (h ^ h>>29) * 0xbf58476d1ce4e5b9
	return int((h^h>>32)%17) - 8
}

// Values are multiples of 1/8 and 1/16, so that no order of adding changes a logit and no tie is decided by rounding.
func element(rank, step, token, j int) float32 { return float32(draw(0, rank*16+step, token, j)) / 8 }
func routing(e, j int) float32                 { return float32(draw(1, e, j, 0)) / 16 }
func upward(e, f, j int) float32               { return float32(draw(2, e, f, j)) / 16 }
func downward(e, j, f int) float32             { return float32(draw(3, e, j, f)) / 16 }

// reference is what becomes of a token, in float64 and by nobody's kernel, and how far from it an element may be:
// what an expert made of it is rounded to bf16, and the sum again.
func reference(rank, step, token int) (y, far [hidden]float64) {
	var x [hidden]float64
	for j := range x {
		x[j] = float64(element(rank, step, token, j))
	}
	var logits [experts]float64
	for e := range logits {
		for j := range x {
			logits[e] += x[j] * float64(routing(e, j))
		}
	}
	var chosen [topK]int
	var p [topK]float64
	sum := 0.0
	for k := range chosen {
		for e := range logits {
			if logits[e] > logits[chosen[k]] {
				chosen[k] = e
			}
		}
		p[k] = math.Exp(logits[chosen[k]])
		sum += p[k]
		logits[chosen[k]] = math.Inf(-1)
	}
	for k, e := range chosen {
		for f := range inner {
			in := 0.0
			for j := range x {
				in += x[j] * float64(upward(e, f, j))
			}
			for j := range y {
				v := p[k] / sum * max(in, 0) * float64(downward(e, j, f))
				y[j] += v
				far[j] += math.Abs(v)
			}
		}
	}
	for j := range far {
		far[j] = far[j]/128 + 1e-6
	}
	return y, far
}
