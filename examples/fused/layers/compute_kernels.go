// SPDX-License-Identifier: Apache-2.0

package layers

import (
	"math"

	"github.com/doorbell-net/doorbell/gpu"
)

// norm scales a row to a root mean square of 1, and multiplies it by the gains.
func (a *Args) norm(t gpu.Thread, tile int32) {
	x, y := a.In.At(int(tile*a.Width)), a.tile(a.DC.Rank, tile)
	mean := float64(dot(t, x, x, a.Width)) / float64(a.Width)
	scale := float32(1 / math.Sqrt(mean+Epsilon))
	for i := t.Lane(); i < a.Width; i += gpu.WarpSize {
		y.At(int(i)).Store(gpu.Mul(gpu.Mul(x.At(int(i)).Load(), scale), a.Weights.At(int(i)).Load()))
	}
}

// Epsilon keeps a row of zeros from a division by 0.
const Epsilon = 1e-6

// multiply makes a tile of this rank's part of matrix times vector.
func (a *Args) multiply(t gpu.Thread, tile int32) {
	y := a.tile(a.DC.Rank, tile)
	for r := range a.Width {
		row := a.Weights.At((int(tile)*int(a.Width) + int(r)) * int(a.Depth))
		if v := dot(t, row, a.In, a.Depth); r%gpu.WarpSize == t.Lane() {
			y.At(int(r)).Store(v)
		}
	}
}

// reduce adds up a tile of all ranks in the order of their numbers, so that all come to the same bits.
func (a *Args) reduce(t gpu.Thread, tile int32) {
	for i := t.Lane(); i < a.Width; i += gpu.WarpSize {
		sum := float32(0)
		for r := range a.DC.Ranks {
			sum = gpu.Add(sum, a.tile(r, tile).At(int(i)).Load())
		}
		a.Sum.At(int(tile*a.Width + i)).Store(sum)
	}
}

// Stripes is how many partial sums a dot product has: as many as a GPU's warp has lanes.
const Stripes = 32

// stripes are the partial sums of each warp of a block.
var stripes gpu.Shared[[32][Stripes]float32]

// dot is the sum of x[i]*y[i], to all lanes. Its order is the same whatever a warp's width, so that devices agree to the
// bit: partial sum s has each product i with i%Stripes == s, and these are added in turn.
func dot(t gpu.Thread, x, y gpu.Ptr[float32], n int32) float32 {
	parts := &stripes.Of(t)[t.Warp()]
	for s := t.Lane(); s < Stripes; s += gpu.WarpSize {
		part := float32(0)
		for i := s; i < n; i += Stripes {
			part = gpu.Add(part, gpu.Mul(x.At(int(i)).Load(), y.At(int(i)).Load()))
		}
		parts[s] = part
	}
	t.SyncWarp()
	sum := float32(0)
	for s := range parts {
		sum = gpu.Add(sum, parts[s])
	}
	t.SyncWarp() // the next row's parts come after this one was read
	return sum
}
