// SPDX-License-Identifier: Apache-2.0

package main

import (
	"math"

	"github.com/doorbell-net/doorbell/gpu"
)

// RouterArgs of the router.
type RouterArgs struct {
	Count   gpu.Ptr[uint32]  // how many tokens there are
	X       gpu.Ptr[uint32]  // [token][hidden] bf16, two a word
	Weights gpu.Ptr[float32] // [expert][hidden]
	Chosen  gpu.Ptr[int32]   // [token][topK]
	Scores  gpu.Ptr[float32] // [token][topK]
}

// logits are those of the token that each warp of a block is at.
var logits gpu.Shared[[warps][experts]float32]

// Router chooses for each token the topK experts with the largest logits, of equal ones the first, and scores them by the
// softmax over those that are chosen. A warp for each token.
//
//gpu:kernel
func Router(t gpu.Thread, a RouterArgs) {
	l := &logits.Of(t)[t.Warp()]
	for token := t.Block()*t.Warps() + t.Warp(); token < int32(a.Count.Load()); token += t.Blocks() * t.Warps() {
		for e := t.Lane(); e < experts; e += gpu.WarpSize {
			l[e] = dot(a.X.At(int(token)*hidden/2), a.Weights.At(int(e)*hidden))
		}
		if t.SyncWarp(); t.Lane() == 0 {
			choose(l, a.Chosen.At(int(token)*topK), a.Scores.At(int(token)*topK))
		}
		t.SyncWarp()
	}
}

// choose takes the largest logit topK times.
func choose(l *[experts]float32, chosen gpu.Ptr[int32], scores gpu.Ptr[float32]) {
	largest, sum := float32(0), float32(0)
	for k := range topK {
		best := int32(0)
		for e := range int32(experts) {
			if l[e] > l[best] {
				best = e
			}
		}
		if k == 0 {
			largest = l[best]
		}
		p := exp(gpu.Add(l[best], -largest))
		sum = gpu.Add(sum, p)
		chosen.At(k).Store(best)
		scores.At(k).Store(p)
		l[best] = -math.MaxFloat32
	}
	for k := range topK {
		scores.At(k).Store(scores.At(k).Load() / sum)
	}
}

// exp is e to the power of x, for x of 0 and less, to 6 digits: 2^n times a polynomial for the rest.
func exp(x float32) float32 {
	n := int32(gpu.Mul(x, math.Log2E) - 0.5)
	if n < -126 {
		return 0
	}
	r := gpu.Add(x, gpu.Mul(float32(n), -math.Ln2))
	p := float32(1)
	for i := float32(7); i > 0; i-- {
		p = gpu.Add(1, gpu.Mul(gpu.Mul(p, r), 1/i))
	}
	return gpu.Mul(p, math.Float32frombits(uint32(127+n)<<23))
}

// dot is the product of a token and a row of weights.
func dot(x gpu.Ptr[uint32], w gpu.Ptr[float32]) (sum float32) {
	for i := range hidden / 2 {
		v := x.At(i).Load()
		sum = gpu.Add(sum, gpu.Mul(gpu.BF16Lo(v), w.At(2*i).Load()))
		sum = gpu.Add(sum, gpu.Mul(gpu.BF16Hi(v), w.At(2*i+1).Load()))
	}
	return sum
}

// ExpertsArgs of the experts: what dispatch brought, where combine takes it from, and the weights of this rank's experts.
type ExpertsArgs struct {
	Rows             gpu.Ptr[uint32]  // [local expert][capacity][hidden] bf16, two a word
	Counts           gpu.Ptr[uint32]  // [local expert] rows that are there
	Outputs          gpu.Ptr[uint32]  // as Rows
	Up               gpu.Ptr[float32] // [local expert][inner][hidden]
	Down             gpu.Ptr[float32] // [local expert][hidden][inner]
	Locals, Capacity int32
}

// inside is what is between the two layers of an expert, of the row that each warp of a block is at.
var inside gpu.Shared[[warps][inner]float32]

// Experts is a perceptron with one hidden layer for each row: Down * relu(Up * row). A warp for each row.
//
//gpu:kernel
func Experts(t gpu.Thread, a ExpertsArgs) {
	in := &inside.Of(t)[t.Warp()]
	for e := range a.Locals {
		up, down := a.Up.At(int(e)*inner*hidden), a.Down.At(int(e)*hidden*inner)
		for i := t.Block()*t.Warps() + t.Warp(); i < int32(a.Counts.At(int(e)).Load()); i += t.Blocks() * t.Warps() {
			at := int(e*a.Capacity+i) * hidden / 2
			for f := t.Lane(); f < inner; f += gpu.WarpSize {
				in[f] = max(dot(a.Rows.At(at), up.At(int(f)*hidden)), 0)
			}
			t.SyncWarp()
			for j := t.Lane(); j < hidden/2; j += gpu.WarpSize {
				a.Outputs.At(at + int(j)).Store(gpu.BF16x2(weigh(in, down.At(int(2*j)*inner)), weigh(in, down.At(int(2*j+1)*inner))))
			}
			t.SyncWarp() // the next row's comes after this one was read
		}
	}
}

// weigh is the product of what is inside and a row of weights.
func weigh(in *[inner]float32, w gpu.Ptr[float32]) (sum float32) {
	for f := range in {
		sum = gpu.Add(sum, gpu.Mul(in[f], w.At(f).Load()))
	}
	return sum
}
