// SPDX-License-Identifier: Apache-2.0

package moe_test

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/doorbell-net/doorbell"
	"github.com/doorbell-net/doorbell/gpu"
	"github.com/doorbell-net/doorbell/internal/num"
	"github.com/doorbell-net/doorbell/moe"
	"github.com/doorbell-net/doorbell/moe/ref"
	"github.com/doorbell-net/doorbell/moe/routing"
)

// What a selection takes at the paper's size. The published accounting has a header of 16 bytes and no selections; our
// message carries 8 of them, 16 bytes more.
func TestWireBytes(t *testing.T) {
	for _, c := range []struct {
		format               moe.Format
		published, message   int
		hidden, short, scale int // a hidden size whose last group is short: bytes of elements and of scales
	}{
		{moe.BF16, 14336 + 16, 14336 + 32, 2888, 5776, 0},
		{moe.FP8, 7168 + 224 + 16, 7168 + 224 + 32, 2888, 2896, 96},
		{moe.FP8Pow2, 7168 + 224 + 16, 7168 + 224 + 32, 2888, 2896, 96},
		{moe.FP8UE8M0, 7168 + 224 + 16, 7168 + 64 + 32, 2888, 2896, 32},
	} {
		o := moe.Options{MaxTokens: 128, Hidden: 7168, TopK: 8, Experts: 256, Format: c.format}
		if got := ref.MessageBytes(c.format, 7168); got != int64(c.published) {
			t.Errorf("%v: a selection is %d bytes as published figures count, want %d", c.format, got, c.published)
		}
		if got := o.MessageBytes(); got != c.message {
			t.Errorf("%v: a message is %d bytes, want %d", c.format, got, c.message)
		}
		if got := o.AnswerBytes(); got != 14336 {
			t.Errorf("%v: an answer is %d bytes, want 14336", c.format, got)
		}
		if v, s := c.format.ValueBytes(c.hidden), c.format.ScaleBytes(c.hidden); v != c.short || s != c.scale {
			t.Errorf("%v: hidden %d: %d and %d bytes, want %d and %d", c.format, c.hidden, v, s, c.short, c.scale)
		}
	}
}

func TestFormatNames(t *testing.T) {
	for i, name := range moe.Formats() {
		if f, ok := moe.ParseFormat(name); !ok || f != moe.Format(i) || f.String() != name {
			t.Errorf("%q is format %d, %v: want %d", name, f, ok, i)
		}
	}
	if _, ok := moe.ParseFormat("fp4"); ok || moe.Format(4).String() != "unknown" {
		t.Error("fp4 is no format")
	}
}

// Rows of any bits arrive as the reference encodes them: zeros of both signs, subnormals, infinities, NaN, groups
// whose largest element is at an edge of a scale.
func TestAnyBits(t *testing.T) {
	edges := []uint16{0, 0x8000, 1, 0x8001, 0x7f7f, 0xff7f, 0x7f80, 0xff80, 0x7fc0, 0x7f81, 0xffff, 0x3f80, 0x43e0, 0xc3e0, 0x38d1, 0x38d2, 0x4380}
	element := rapid.OneOf(rapid.SampledFrom(edges), rapid.Uint16(), rapid.Uint16Range(0x3c00, 0x4400))
	for f := moe.BF16; f <= moe.FP8UE8M0; f++ {
		t.Run(f.String(), func(t *testing.T) {
			const hidden, tokens = 264, 3 // two groups and 8 elements
			w := newWorld(t, 1, 1, moe.Options{MaxTokens: tokens, Hidden: hidden, TopK: 1, Experts: 1, Format: f}, doorbell.Grid{Blocks: 1, Warps: 2})
			defer w.close()
			rapid.Check(t, func(rt *rapid.T) {
				g := &routing.Routing{Ranks: 1, Experts: 1, TopK: 1, Idx: [][]int32{{0, 0, 0}}, Weights: [][]float32{{1, 2, 3}}}
				p := problem(g, hidden, 1, 1)
				p.X[0] = rapid.SliceOfN(element, hidden*tokens, hidden*tokens).Draw(rt, "elements")
				if err := w.check(p, ref.Identity); err != nil {
					rt.Fatal(err)
				}
			})
		})
	}
}

// TestTops: of each BF16 at each of eight places a GPU's lane finds the magnitude that is the largest finite one there.
func TestTops(t *testing.T) {
	for bits := range uint32(1 << 16) {
		for place := range 8 {
			const least = 1 // elsewhere
			v := gpu.U32x4{least<<16 | least, least<<16 | least, least<<16 | least, least<<16 | least}
			at := 16 * (place % 2)
			v[place/2] = v[place/2]&^(0xffff<<at) | bits<<at
			want := uint32(least)
			if m := bits & 0x7fff; m < 0x7f80 {
				want = max(want, m)
			}
			if got := moe.TopOf(v); got != want {
				t.Fatalf("%#x at place %d: the largest is %#x, want %#x", bits, place, got, want)
			}
		}
	}
}

// What comes is near what was sent: 1/16 of it at most for e4m3's normal values, half its smallest step below them, and
// both doubled where the scale was raised. What e4m3 has exactly stays as it is.
func TestQuantiserIsNear(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		f := moe.Format(rapid.IntRange(1, 3).Draw(rt, "format"))
		x := make([]uint16, 8*rapid.IntRange(1, 40).Draw(rt, "hidden/8"))
		size := rapid.Float32Range(1e-3, 1e6).Draw(rt, "size")
		for j := range x {
			x[j] = num.F32ToBF16(size * rapid.Float32Range(-1, 1).Draw(rt, "element"))
		}
		y := ref.Decode(f, ref.Encode(f, x), len(x))
		for j := range x {
			top := 1e-4
			for _, v := range x[j/128*128 : min(j/128*128+128, len(x))] {
				top = max(top, math.Abs(float64(num.BF16ToF32(v))))
			}
			v, was := float64(num.BF16ToF32(y[j])), float64(num.BF16ToF32(x[j]))
			if far := math.Abs(v - was); far > math.Abs(was)*(1./16+1./128)+top/448*2*math.Exp2(-10) {
				rt.Fatalf("%v: element %d: %g became %g, the largest of its group is %g", f, j, was, v, top)
			}
		}
	})
	exact := make([]uint16, 256)
	for q := range exact {
		exact[q] = num.F32ToBF16(num.E4M3ToF32(byte(q)))
	}
	exact[0x7f], exact[0xff] = exact[0x7e], exact[0xfe]
	for _, f := range []moe.Format{moe.FP8, moe.FP8Pow2, moe.FP8UE8M0} {
		if err := ref.DiffBits(exact, ref.Decode(f, ref.Encode(f, exact), 256)); err != nil {
			t.Errorf("%v: %v", f, err)
		}
	}
}

// A short last group, and rows that are no multiple of 16 bytes in e4m3, over both ways.
func TestShortGroups(t *testing.T) {
	for _, hidden := range []int{8, 24, 120, 128, 136, 2888} {
		for _, nolsa := range []bool{false, true} {
			o := moe.Options{MaxTokens: 3, Hidden: hidden, TopK: 2, Experts: 3, NoLSA: nolsa, Format: moe.FP8}
			t.Run(fmt.Sprintf("H%d-%v", hidden, nolsa), func(t *testing.T) {
				w := newWorld(t, 2, 2, o, one)
				defer w.close()
				g, err := routing.Generate(routing.Options{Seed: uint64(hidden), Ranks: 2, Experts: 3, TopK: 2, Tokens: 3})
				if err != nil {
					t.Fatal(err)
				}
				if err := w.check(problem(g, hidden, 5, 1), ref.ExpertFn); err != nil {
					t.Error(err)
				}
			})
		}
	}
}

// A GPU's kernels divide, multiply and add as Go does: each rounded to the nearest, none fused, subnormals kept. So the
// bytes of a row and the bits of a sum are those that the CPU gives.
func TestKernelsRoundAsGoDoes(t *testing.T) {
	ptx := moe.LLDispatchKernel.PTX()
	for _, must := range []string{"div.rn.f32", "mul.rn.f32", "add.rn.f32"} {
		if !strings.Contains(ptx, must) {
			t.Errorf("there is no %s: this looks at something else", must)
		}
	}
	for _, not := range []string{".ftz", "fma.", "mad.rn", "div.approx", "div.full", ".f64"} {
		if strings.Contains(ptx, not) {
			t.Errorf("the kernels have %s", not)
		}
	}
}
