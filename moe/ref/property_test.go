// SPDX-License-Identifier: Apache-2.0

package ref_test

import (
	"math"
	"testing"

	"github.com/doorbell-net/doorbell/internal/num"
	"github.com/doorbell-net/doorbell/moe/ref"
	"github.com/doorbell-net/doorbell/moe/routing"
	"pgregory.net/rapid"
)

// drawProblem draws a routed problem with tagged payloads: element j of a row is what routing.Element says.
func drawProblem(t *rapid.T, integerWeights bool) (*ref.Problem, uint64) {
	o := routing.Options{
		Seed:           rapid.Uint64().Draw(t, "seed"),
		Ranks:          rapid.IntRange(1, 6).Draw(t, "ranks"),
		Experts:        rapid.IntRange(1, 20).Draw(t, "experts"),
		TopK:           rapid.IntRange(1, 11).Draw(t, "topk"),
		Tokens:         rapid.IntRange(0, 6).Draw(t, "tokens"),
		Uneven:         rapid.Bool().Draw(t, "uneven"),
		DropEntries:    rapid.SampledFrom([]float64{0, 0.1, 0.5}).Draw(t, "drop entries"),
		DropTokens:     rapid.SampledFrom([]float64{0, 0.2}).Draw(t, "drop tokens"),
		Duplicates:     rapid.SampledFrom([]float64{0, 0.5}).Draw(t, "duplicates"),
		IntegerWeights: integerWeights,
	}
	if o.TopK > o.Experts {
		o.Duplicates = 0.5
	}
	if rapid.Bool().Draw(t, "skewed") {
		o.Pattern = routing.Pattern{Kind: routing.Zipf, S: 1.2}
	}
	g, err := routing.Generate(o)
	if err != nil {
		t.Fatal(err)
	}
	p := &ref.Problem{Ranks: o.Ranks, Experts: o.Experts, TopK: o.TopK, Idx: g.Idx, Weights: g.Weights,
		Hidden: 8 * rapid.IntRange(1, 3).Draw(t, "hidden/8")}
	for r := range g.Idx {
		x := make([]uint16, g.Tokens(r)*p.Hidden)
		routing.FillTokens(x, o.Seed, 0, r, p.Hidden)
		p.X = append(p.X, x)
	}
	return p, o.Seed
}

func dispatch(t *rapid.T, p *ref.Problem) ref.Rows {
	rows, err := ref.Dispatch(p)
	if err != nil {
		t.Fatal(err)
	}
	return rows
}

// Each selection that is not -1 appears exactly once, at its expert, with its token's payload, in order; nothing else
// appears; and the accounts of all ranks agree with the rows.
func TestDispatchDeliversEachSelectionOnce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p, seed := drawProblem(t, false)
		type sel struct{ s, t, k int }
		seen := map[sel]int32{}
		for r, experts := range dispatch(t, p) {
			received := int64(0)
			for l, block := range experts {
				for i, row := range block {
					at := sel{row.SrcRank, row.SrcToken, row.SrcK}
					if _, twice := seen[at]; twice {
						t.Fatalf("selection %+v delivered twice", at)
					}
					seen[at] = int32(p.FirstExpert(r) + l)
					if j := routing.CheckRow(row.Payload, routing.RowKey(seed, 0, at.s, at.t)); j != -1 || len(row.Payload) != p.Hidden {
						t.Fatalf("selection %+v: payload of %d elements wrong at %d", at, len(row.Payload), j)
					}
					if i > 0 && !inOrder(block[i-1], row) {
						t.Fatalf("rank %d local expert %d: row %d out of order", r, l, i)
					}
				}
				received += int64(len(block))
			}
			if a := ref.AccountOf(p, r); a.Received != received || a.CombinePuts != received {
				t.Fatalf("rank %d: %d rows, account %+v", r, received, a)
			}
		}
		var valid, sent, moved int64
		for s := range p.Idx {
			for i, e := range p.Idx[s] {
				got, ok := seen[sel{s, i / p.TopK, i % p.TopK}]
				if ok != (e >= 0) || ok && got != e {
					t.Fatalf("rank %d entry %d: expert %d, delivered %v to %d", s, i, e, ok, got)
				}
				if ok {
					valid++
				}
			}
			sent += ref.AccountOf(p, s).DispatchPuts
			once := ref.RankTraffic(p)[s]
			for r, n := range ref.Traffic(p)[s] {
				moved += n
				if once[r] > min(n, int64(p.Tokens(s))) || n > once[r]*int64(p.TopK) {
					t.Fatalf("rank %d to %d: %d selections of %d tokens", s, r, n, once[r])
				}
			}
		}
		if valid != sent || valid != moved || valid != int64(len(seen)) {
			t.Fatalf("%d selections, %d puts, %d in the traffic matrix, %d rows", valid, sent, moved, len(seen))
		}
	})
}

func inOrder(a, b ref.Row) bool {
	switch {
	case a.SrcRank != b.SrcRank:
		return a.SrcRank < b.SrcRank
	case a.SrcToken != b.SrcToken:
		return a.SrcToken < b.SrcToken
	}
	return a.SrcK < b.SrcK
}

// With identity experts and integers, combine is exactly x times the sum of the valid weights.
func TestCombineOfIdentityIsWeightedInput(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p, _ := drawProblem(t, true)
		got, err := ref.Combine(p, ref.Apply(p, dispatch(t, p), ref.Identity))
		if err != nil {
			t.Fatal(err)
		}
		for s := range p.X {
			for i, x := range p.X[s] {
				sum := 0
				tok := i / p.Hidden
				for k := 0; k < p.TopK; k++ {
					if p.Idx[s][tok*p.TopK+k] >= 0 {
						sum += int(p.Weights[s][tok*p.TopK+k])
					}
				}
				want := num.F32ToBF16(float32(int(num.BF16ToF32(x)) * sum))
				if got[s][i] != want {
					t.Fatalf("rank %d token %d: %#04x, want %g*%d = %#04x", s, tok, got[s][i], num.BF16ToF32(x), sum, want)
				}
			}
		}
	})
}

// However the rows of an expert arrive, sorting them gives the reference's order and so the same combination.
func TestOrderOfArrivalDoesNotMatter(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p, _ := drawProblem(t, false)
		rows := dispatch(t, p)
		want, err := ref.Combine(p, ref.Apply(p, rows, ref.ExpertFn))
		if err != nil {
			t.Fatal(err)
		}
		for r := range rows {
			for l, block := range rows[r] {
				if len(block) > 1 {
					rows[r][l] = rapid.Permutation(block).Draw(t, "arrival")
				}
				ref.SortRows(rows[r][l])
				if err := ref.DiffRows(block, rows[r][l]); err != nil {
					t.Fatal(err)
				}
			}
		}
		got, err := ref.Combine(p, ref.Apply(p, rows, ref.ExpertFn))
		if err != nil {
			t.Fatal(err)
		}
		for s := range want {
			if err := ref.DiffBits(want[s], got[s]); err != nil {
				t.Fatalf("rank %d: %v", s, err)
			}
		}
	})
}

// FP64 and the bit-exact FP32 rule agree but for rounding to BF16.
func TestCombineAgreesWithFP64(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p, _ := drawProblem(t, false)
		out := ref.Apply(p, dispatch(t, p), ref.ExpertFn)
		got, err := ref.Combine(p, out)
		if err != nil {
			t.Fatal(err)
		}
		exact, err := ref.CombineF64(p, out)
		if err != nil {
			t.Fatal(err)
		}
		for s := range got {
			if d := ref.CalcDiff(got[s], exact[s]); !(d < 1e-5) {
				t.Fatalf("rank %d: calc diff %g, accepted below 1e-5", s, d)
			}
		}
	})
}

func TestCalcDiff(t *testing.T) {
	one, two := num.F32ToBF16(1), num.F32ToBF16(2)
	for _, c := range []struct {
		a    []uint16
		b    []float64
		want float64
	}{
		{nil, nil, 0},
		{[]uint16{one, two}, []float64{1, 2}, 0},
		// a' = 2, b' = 3: 1 - 2*6/(4+9)
		{[]uint16{one}, []float64{2}, 1.0 / 13},
		{[]uint16{num.F32ToBF16(-1)}, []float64{-1}, 0},
	} {
		if got := ref.CalcDiff(c.a, c.b); math.Abs(got-c.want) > 1e-15 {
			t.Errorf("%v and %v: got %g, want %g", c.a, c.b, got, c.want)
		}
	}
	if got := ref.CalcDiff([]uint16{0x7fc0}, []float64{1}); !math.IsNaN(got) {
		t.Errorf("NaN: got %g", got)
	}
	defer func() {
		if recover() == nil {
			t.Error("lengths 1 and 0: no panic")
		}
	}()
	ref.CalcDiff([]uint16{0}, nil)
}

// ExpertFn tells experts and columns apart, and is the same with a fused multiply-add.
func TestExpertFn(t *testing.T) {
	for e := 0; e < 300; e++ {
		for j := 0; j < 70; j++ {
			v := num.F32ToBF16(float32((e*7+j*13)%256 - 128))
			got := ref.ExpertFn(e, j, v)
			a, b := 1+float64(e%16)/16, float64((e*37+j*11)%61-30)
			if want := num.F32ToBF16(float32(math.FMA(float64(num.BF16ToF32(v)), a, b))); got != want {
				t.Fatalf("expert %d element %d: got %#04x, want %#04x", e, j, got, want)
			}
			if e%16 > 0 && got == ref.ExpertFn(e-1, j, v) {
				t.Fatalf("expert %d element %d: like the expert before", e, j)
			}
			if j > 0 && got == ref.ExpertFn(e, j-1, v) {
				t.Fatalf("expert %d element %d: like the element before", e, j)
			}
		}
	}
}

func TestDiffNamesTheFirstDifference(t *testing.T) {
	a := []ref.Row{{SrcRank: 1, SrcToken: 2, SrcK: 3, Payload: []uint16{0, 0x3f80}}}
	for want, b := range map[string][]ref.Row{
		"compare rows: got 0 rows, want 1": {},
		"compare rows: row 0: got (rank 1, token 2, selection 4), want (rank 1, token 2, selection 3)": {{1, 2, 4, []uint16{0, 0x3f80}}},
		"compare rows: row 0 (rank 1, token 2, selection 3): element 1: got 0x4000 (2), want 0x3f80 (1)": {
			{1, 2, 3, []uint16{0, 0x4000}}},
		"compare rows: row 0 (rank 1, token 2, selection 3): got 1 elements, want 2": {{1, 2, 3, []uint16{0}}},
	} {
		if err := ref.DiffRows(a, b); err == nil || err.Error() != want {
			t.Errorf("got %v, want %s", err, want)
		}
	}
	if err := ref.DiffRows(a, a); err != nil {
		t.Error(err)
	}
}

// The shape of `bench ll -n 4`: how long a check round's reference takes.
func BenchmarkReferenceLL(b *testing.B) {
	g, err := routing.Generate(routing.Options{Seed: 1, Ranks: 4, Experts: 32, TopK: 8, Tokens: 64})
	if err != nil {
		b.Fatal(err)
	}
	p := &ref.Problem{Ranks: 4, Experts: 32, TopK: 8, Hidden: 7168, Idx: g.Idx, Weights: g.Weights}
	for r := range g.Idx {
		x := make([]uint16, g.Tokens(r)*p.Hidden)
		routing.FillTokens(x, 1, 0, r, p.Hidden)
		p.X = append(p.X, x)
	}
	for b.Loop() {
		rows, err := ref.Dispatch(p)
		if err != nil {
			b.Fatal(err)
		}
		if _, err := ref.Combine(p, ref.Apply(p, rows, ref.ExpertFn)); err != nil {
			b.Fatal(err)
		}
	}
}

// Each token comes once to each rank that it selects, in order; and what comes back of it unchanged is as many times itself,
// which is exact for small integers in either number of levels.
func TestHTDeliversEachRankOnce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p, _ := drawProblem(t, true)
		rows, err := ref.HTDispatch(p)
		if err != nil {
			t.Fatal(err)
		}
		visits := make(map[[2]int]int)
		outs := make([][]ref.HTOutput, p.Ranks)
		for r := range rows {
			for i, row := range rows[r] {
				at := [2]int{row.SrcRank, row.SrcToken}
				if i > 0 && !(rows[r][i-1].SrcRank < at[0] || rows[r][i-1].SrcRank == at[0] && rows[r][i-1].SrcToken < at[1]) {
					t.Fatalf("rank %d: row %d is out of order, or there twice", r, i)
				}
				visits[at]++
				outs[r] = append(outs[r], ref.HTOutput{Y: row.Payload, Weights: row.Weights})
			}
		}
		for _, perNode := range []int{1, p.Ranks} {
			y, w, err := ref.HTCombine(p, perNode, outs)
			if err != nil {
				t.Fatal(err)
			}
			for s := range p.X {
				for i, x := range p.X[s] {
					n := visits[[2]int{s, i / p.Hidden}]
					if want := num.F32ToBF16(num.BF16ToF32(x)*float32(n) + 0); y[s][i] != want {
						t.Fatalf("rank %d: element %d is %#04x, must be %d times %#04x", s, i, y[s][i], n, x)
					}
				}
				for i, e := range p.Idx[s] {
					if want := map[bool]float32{true: p.Weights[s][i]}[e >= 0]; w[s][i] != want {
						t.Fatalf("rank %d: weight %d is %g, must be %g", s, i, w[s][i], want)
					}
				}
			}
		}
	})
}
