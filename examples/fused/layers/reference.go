// SPDX-License-Identifier: Apache-2.0

package layers

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
)

// ErrWrong is what Check's error wraps when a value is wrong.
var ErrWrong = errors.New("wrong")

// weight in the place of an iteration has the values of the weights.
const weight = ^uint64(0)

// value is element i of what a rank has in an iteration, from -1 to 1: a hash, so that each rank computes what the others
// have (finaliser of splitmix64).
func value(seed uint64, rank int, iter uint64, i int) float32 {
	x := seed + uint64(rank)*0x9e3779b97f4a7c15 + iter*0xd1342543de82ef95 + uint64(i)*0xa0761d6478bd642f
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return float32(int32(x>>32)>>8) / (1 << 23)
}

func values(to []float32, seed uint64, rank int, iter uint64, first int) []float32 {
	for i := range to {
		to[i] = value(seed, rank, iter, first+i)
	}
	return to
}

// Fill writes what this rank computes from. iter is any number but the largest; other numbers give other values.
func (l *Layer) Fill(iter uint64) error {
	l.iter = iter
	in := values(make([]float32, l.o.Tiles*l.o.Width), l.o.Seed, l.comm.Rank(), iter, 0)
	return l.in.Write(0, bytesOf(in))
}

func (l *Layer) writeWeights() error {
	row := make([]float32, l.o.Width)
	for at := 0; at < l.weights.Len(); at += 4 * len(row) {
		if err := l.weights.Write(at, bytesOf(values(row, l.o.Seed, l.comm.Rank(), weight, at/4))); err != nil {
			return err
		}
	}
	return nil
}

// Check compares all that the last round left on this rank with what plain loops over all ranks' values give, bit by bit.
// It returns how many bytes that were. The round was of work w, and all ranks called Fill with the same number before it.
func (l *Layer) Check(w Work) (checked int64, err error) {
	elements := l.o.Tiles * l.o.Width
	want, sum := make([]float32, elements), make([]float32, elements)
	got := make([]byte, 4*elements)
	for r := range l.comm.Size() {
		if err := l.out.Buffer().Read(l.half()+r*len(got), got); err != nil {
			return checked, err
		}
		l.part(want, w, r)
		if err := differ(want, got); err != nil {
			return checked, fmt.Errorf("%v from rank %d: %w", w, r, err)
		}
		checked += int64(len(got))
		for i, v := range want {
			sum[i] = float32(sum[i] + v)
		}
	}
	if w != GEMVAllReduce {
		return checked, nil
	}
	if err := l.sum.Read(0, got); err != nil {
		return checked, err
	}
	if err := differ(sum, got); err != nil {
		return checked, fmt.Errorf("%v, the sum: %w", w, err)
	}
	return checked + int64(len(got)), nil
}

// part is what a rank computes by itself.
func (l *Layer) part(want []float32, w Work, rank int) {
	n := l.o.Depth
	if w == RMSNormAllGather {
		n = len(want)
	}
	in := values(make([]float32, n), l.o.Seed, rank, l.iter, 0)
	switch w {
	case RMSNormAllGather:
		width := l.o.Width
		gains := values(make([]float32, width), l.o.Seed, rank, weight, 0)
		for row := 0; row < len(want); row += width {
			x := in[row : row+width]
			mean := float64(inOrder(x, x)) / float64(width)
			scale := float32(1 / math.Sqrt(mean+Epsilon))
			for i, v := range x {
				want[row+i] = float32(float32(v*scale) * gains[i])
			}
		}
	case GEMVAllReduce:
		row := make([]float32, n)
		for r := range want {
			want[r] = inOrder(values(row, l.o.Seed, rank, weight, r*n), in)
		}
	}
}

// inOrder is a dot product with the order of dot.
func inOrder(x, y []float32) (sum float32) {
	var parts [Stripes]float32
	for i := range x {
		parts[i%Stripes] = float32(parts[i%Stripes] + float32(x[i]*y[i]))
	}
	for _, p := range parts {
		sum = float32(sum + p)
	}
	return sum
}

func differ(want []float32, got []byte) error {
	bad, first := 0, 0
	for i, v := range want {
		if binary.NativeEndian.Uint32(got[4*i:]) != math.Float32bits(v) {
			if bad++; bad == 1 {
				first = i
			}
		}
	}
	if bad == 0 {
		return nil
	}
	g := math.Float32frombits(binary.NativeEndian.Uint32(got[4*first:]))
	return fmt.Errorf("%d of %d values %w, the first is number %d: %v, must be %v", bad, len(want), ErrWrong, first, g, want[first])
}

func bytesOf(x []float32) []byte {
	b := make([]byte, 0, 4*len(x))
	for _, v := range x {
		b = binary.NativeEndian.AppendUint32(b, math.Float32bits(v))
	}
	return b
}
