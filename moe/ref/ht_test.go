// SPDX-License-Identifier: Apache-2.0

package ref

import (
	"reflect"
	"strings"
	"testing"

	"github.com/doorbell-net/doorbell/internal/num"
)

func TestHTDispatchGolden(t *testing.T) {
	p := tiny()
	got, err := HTDispatch(p)
	if err != nil {
		t.Fatal(err)
	}
	want := [][]HTRow{
		{{0, 0, []int32{-1, 0}, []float32{0, 2}, row(8, 1)}, {0, 2, []int32{1, 1}, []float32{1, 0.25}, row(8, -50)}},
		{{0, 0, []int32{0, -1}, []float32{0.5, 0}, row(8, 1)}, {1, 0, []int32{-1, 0}, []float32{0, 3}, row(8, 100)}},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	for r, counts := range [][]int{{4, 4}, {4}} {
		if got := HTExpertRows(p, r, 4); !reflect.DeepEqual(got, counts) {
			t.Errorf("rank %d: experts have %v rows, must have %v", r, got, counts)
		}
	}
	p.Weights = nil
	if got, err = HTDispatch(p); err != nil || got[1][1].Weights[1] != 0 {
		t.Errorf("no weights: %v, %v", got, err)
	}
	p.Hidden = 9
	if _, err := HTDispatch(p); err == nil {
		t.Error("hidden 9 accepted")
	}
}

// spread4 is one token of rank 0 that goes to some of four ranks.
func spread4(to ...int32) *Problem {
	idx := []int32{-1, -1, -1, -1}
	copy(idx, to)
	return &Problem{Ranks: 4, Experts: 4, TopK: 4, Hidden: 8, X: [][]uint16{row(8, 0), nil, nil, nil}, Idx: [][]int32{idx, nil, nil, nil}}
}

// Cases in which another order, or a rounding that is missing or too much, shows in the result.
func TestHTCombineGolden(t *testing.T) {
	for _, c := range []struct {
		name    string
		to      []int32
		y       [4]float32 // by rank
		perNode int
		bias    []float32
		want    float32
	}{
		{"one node: float32 to the end", []int32{0, 1, 2}, [4]float32{256, 1, 1}, 4, nil, 258},
		{"a node's sum is rounded", []int32{0, 1, 2}, [4]float32{256, 1, 1}, 2, nil, 256}, // 257 ties to 256; +1 ties again
		{"nodes are added in float32", []int32{0, 2, 3}, [4]float32{256, 0, 1, 1}, 2, nil, 258},
		{"nodes of one rank are never rounded", []int32{0, 1, 2}, [4]float32{256, 1, 1}, 1, nil, 258},
		{"ranks ascend", []int32{2, 1, 0}, [4]float32{1 << 30, -(1 << 30), 1}, 4, nil, 1},
		{"ranks ascend, absorbed", []int32{2, 1, 0}, [4]float32{1, 1 << 30, -(1 << 30)}, 4, nil, 0},
		{"biases come last", []int32{0, 3}, [4]float32{1, 0, 0, 1 << 30}, 2, []float32{-(1 << 30), 3}, 3},
		{"nothing but a bias", nil, [4]float32{}, 2, []float32{5}, 5},
		{"nothing", nil, [4]float32{}, 2, nil, 0},
	} {
		p := spread4(c.to...)
		rows, err := HTDispatch(p)
		if err != nil {
			t.Fatal(err)
		}
		out := make([][]HTOutput, 4)
		for r := range rows {
			for range rows[r] {
				o := HTOutput{Y: make([]uint16, 8), Weights: make([]float32, 4)}
				o.Y[0], o.Weights[1] = num.F32ToBF16(c.y[r]), c.y[r]
				out[r] = append(out[r], o)
			}
		}
		var biases [][][]uint16
		sum := float32(0)
		for _, b := range c.bias {
			biases = append(biases, [][]uint16{row(8, b), nil, nil, nil})
			sum += b
		}
		y, w, err := HTCombine(p, c.perNode, out, biases...)
		if err != nil {
			t.Fatal(err)
		}
		if got := num.BF16ToF32(y[0][0]); got != c.want {
			t.Errorf("%s: got %g, want %g", c.name, got, c.want)
		}
		if got := w[0][1]; c.bias == nil && c.name != "a node's sum is rounded" && got != c.want {
			t.Errorf("%s: weight %g, want %g", c.name, got, c.want)
		}
	}
	p := spread4(0)
	if _, _, err := HTCombine(p, 4, make([][]HTOutput, 4)); err == nil || !strings.Contains(err.Error(), "rank 0: 0 outputs, wanted 1") {
		t.Errorf("outputs that are not there: %v", err)
	}
}
