// SPDX-License-Identifier: Apache-2.0

package ref

import (
	"strings"
	"testing"

	"github.com/doorbell-net/doorbell/internal/num"
	"github.com/doorbell-net/doorbell/moe"
)

// Every expert has exactly one owner, ranges are contiguous, and no rank owns two more than another.
func TestOwnerCoversAllExpertsOnce(t *testing.T) {
	for experts := 1; experts <= 33; experts++ {
		for ranks := 1; ranks <= 17; ranks++ {
			p := &Problem{Experts: experts, Ranks: ranks}
			next := 0
			for r := 0; r < ranks; r++ {
				if p.FirstExpert(r) != next {
					t.Fatalf("experts %d ranks %d: rank %d begins at %d, want %d", experts, ranks, r, p.FirstExpert(r), next)
				}
				n := p.LocalExperts(r)
				if more := n - experts/ranks; more != 0 && more != 1 || (r > 0 && n > p.LocalExperts(r-1)) {
					t.Fatalf("experts %d ranks %d: rank %d owns %d", experts, ranks, r, n)
				}
				for e := next; e < next+n; e++ {
					if p.Owner(e) != r {
						t.Fatalf("experts %d ranks %d: owner of %d is %d, want %d", experts, ranks, e, p.Owner(e), r)
					}
				}
				next += n
			}
			if next != experts {
				t.Fatalf("experts %d ranks %d: %d owned", experts, ranks, next)
			}
		}
	}
}

func TestOwnerPanicsOutside(t *testing.T) {
	for _, e := range []int{-1, 5} {
		func() {
			defer func() {
				if v := recover(); v == nil || !strings.Contains(v.(string), "accepted 0..4") {
					t.Errorf("expert %d: panic value %v", e, v)
				}
			}()
			(&Problem{Experts: 5, Ranks: 2}).Owner(e)
		}()
	}
}

// row returns hidden BF16 elements base, base+1, ...
func row(hidden int, base float32) []uint16 {
	x := make([]uint16, hidden)
	for j := range x {
		x[j] = num.F32ToBF16(base + float32(j))
	}
	return x
}

// tiny is worked by hand: rank 0 owns experts 0 and 1, rank 1 owns expert 2.
func tiny() *Problem {
	return &Problem{
		Ranks: 2, Experts: 3, TopK: 2, Hidden: 8,
		X: [][]uint16{append(append(row(8, 1), row(8, 20)...), row(8, -50)...), row(8, 100)},
		Idx: [][]int32{
			{2, 0, // token 0: one copy to each rank
				-1, -1, // token 1: nowhere
				1, 1}, // token 2: expert 1 twice
			{-1, 2},
		},
		Weights: [][]float32{{0.5, 2, 7, 7, 1, 0.25}, {9, 3}},
	}
}

func TestDispatchGolden(t *testing.T) {
	rows, err := Dispatch(tiny())
	if err != nil {
		t.Fatal(err)
	}
	want := Rows{
		{ // rank 0
			{{0, 0, 1, row(8, 1)}},                           // expert 0
			{{0, 2, 0, row(8, -50)}, {0, 2, 1, row(8, -50)}}, // expert 1
		},
		{ // rank 1
			{{0, 0, 0, row(8, 1)}, {1, 0, 1, row(8, 100)}}, // expert 2
		},
	}
	diffAll(t, want, rows)
}

func diffAll(t *testing.T, want, got Rows) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%d ranks, want %d", len(got), len(want))
	}
	for r := range want {
		if len(got[r]) != len(want[r]) {
			t.Fatalf("rank %d: %d experts, want %d", r, len(got[r]), len(want[r]))
		}
		for l := range want[r] {
			if err := DiffRows(want[r][l], got[r][l]); err != nil {
				t.Errorf("rank %d local expert %d: %v", r, l, err)
			}
		}
	}
}

func TestCombineGolden(t *testing.T) {
	p := tiny()
	rows, err := Dispatch(p)
	if err != nil {
		t.Fatal(err)
	}
	// Expert e adds 10*e.
	out := Apply(p, rows, func(e, _ int, v uint16) uint16 { return num.F32ToBF16(num.BF16ToF32(v) + float32(10*e)) })
	got, err := Combine(p, out)
	if err != nil {
		t.Fatal(err)
	}
	want := [][]float32{
		{ // rank 0
			// 0.5*(x+20) + 2*x with x = 1..8
			12.5, 15, 17.5, 20, 22.5, 25, 27.5, 30,
			0, 0, 0, 0, 0, 0, 0, 0,
			// 1*(x+10) + 0.25*(x+10) with x = -50..-43
			-50, -48.75, -47.5, -46.25, -45, -43.75, -42.5, -41.25,
		},
		// 3*(x+20) with x = 100..107 is 360, 363, 366, ... 381; BF16 has even integers there, and an odd one lies
		// halfway between two of them: the one that divides by 4 is taken
		{360, 364, 366, 368, 372, 376, 378, 380},
	}
	for r := range want {
		for j, w := range want[r] {
			if g := num.BF16ToF32(got[r][j]); g != w {
				t.Errorf("rank %d element %d: got %g, want %g", r, j, g, w)
			}
		}
	}
}

func TestEmptyRank(t *testing.T) {
	p := &Problem{Ranks: 2, Experts: 1, TopK: 1, Hidden: 8, X: [][]uint16{nil, row(8, 3)},
		Idx: [][]int32{nil, {0}}, Weights: [][]float32{nil, {2}}}
	rows, err := Dispatch(p)
	if err != nil {
		t.Fatal(err)
	}
	diffAll(t, Rows{{{{1, 0, 0, row(8, 3)}}}, {}}, rows) // rank 1 has tokens and no expert, rank 0 the reverse
	got, err := Combine(p, Apply(p, rows, Identity))
	if err != nil {
		t.Fatal(err)
	}
	if len(got[0]) != 0 || len(got[1]) != 8 || got[1][0] != num.F32ToBF16(6) {
		t.Errorf("combined %v", got)
	}
}

// oneToken returns the combination of the values y with the weights w, all at one expert.
func oneToken(t *testing.T, y, w []float32) uint16 {
	t.Helper()
	k := len(y)
	p := &Problem{Ranks: 1, Experts: 1, TopK: k, Hidden: 8, X: [][]uint16{make([]uint16, 8)},
		Idx: [][]int32{make([]int32, k)}, Weights: [][]float32{w}}
	rows, err := Dispatch(p)
	if err != nil {
		t.Fatal(err)
	}
	out := Apply(p, rows, Identity)
	for i := range y {
		out[0][0][i][0] = num.F32ToBF16(y[i])
	}
	got, err := Combine(p, out)
	if err != nil {
		t.Fatal(err)
	}
	return got[0][0]
}

// Cases in which a wrong order, a fused multiply-add or a missing rounding shows in the result.
func TestCombineRounding(t *testing.T) {
	const ulp = 1.0 / (1 << 23)
	for _, c := range []struct {
		name string
		y, w []float32
		want float32
	}{
		// (1+2^-7)(1+2^-23) = 1+2^-7+2^-23+2^-30; FP32 drops 2^-30. Minus 1+2^-7+2^-23 leaves 0; fused would leave 2^-30.
		{"no fused multiply-add", []float32{-1, 1 + 1.0/128}, []float32{1 + 1.0/128 + ulp, 1 + ulp}, 0},
		// 2^30 + 1 is 2^30 in FP32, so only the order k = 0, 1, 2 gives 1.
		{"k ascends", []float32{1 << 30, -(1 << 30), 1}, []float32{1, 1, 1}, 1},
		{"k ascends, absorbed", []float32{1, 1 << 30, -(1 << 30)}, []float32{1, 1, 1}, 0},
		// The sum is kept in FP32: in BF16 256 + 1 would stay 256.
		{"sum in FP32", []float32{256, 1, 1, -256}, []float32{1, 1, 1, 1}, 2},
		{"ties to even, down", []float32{256, 1}, []float32{1, 1}, 256},
		{"ties to even, up", []float32{256, 3}, []float32{1, 1}, 260},
	} {
		if got := oneToken(t, c.y, c.w); got != num.F32ToBF16(c.want) {
			t.Errorf("%s: got %g, want %g", c.name, num.BF16ToF32(got), c.want)
		}
	}
	// The sum begins with +0, so a product of -0 does not show.
	if got := oneToken(t, []float32{0}, []float32{-1}); got != 0 {
		t.Errorf("sum of -0: got %#04x, want +0", got)
	}
}

func TestAccountGolden(t *testing.T) {
	p := tiny()
	want := []Account{
		{Valid: 4, Received: 3, DispatchMessageBytes: 4 * 32, DispatchPayloadBytes: 4 * 16, CombineBytes: 4 * 16,
			DispatchPuts: 4, DispatchSignals: 3, CombinePuts: 3, CombineSignals: 4},
		{Valid: 1, Received: 2, DispatchMessageBytes: 32, DispatchPayloadBytes: 16, CombineBytes: 16,
			DispatchPuts: 1, DispatchSignals: 3, CombinePuts: 2, CombineSignals: 2},
	}
	for r, w := range want {
		if got := AccountOf(p, r); got != w {
			t.Errorf("rank %d: got %+v, want %+v", r, got, w)
		}
	}
	if MessageBytes(moe.BF16, 7168) != 14352 || PayloadBytes(7168) != 14336 {
		t.Errorf("hidden 7168: message %d and payload %d bytes, want 14352 and 14336", MessageBytes(moe.BF16, 7168), PayloadBytes(7168))
	}
}

// A node of ranks 0 and 1, and one of 2 and 3.
func TestPathsGolden(t *testing.T) {
	traffic := [][]int64{{1, 2, 4, 8}, {16, 32, 64, 128}, {256, 512, 1024, 2048}, {0, 0, 4096, 8192}}
	want := Paths{Own: 1 + 32 + 1024 + 8192, LSA: 2 + 16 + 2048 + 4096, Network: 4 + 8 + 64 + 128 + 256 + 512}
	if got := PathsOf(traffic, 2); got != want || got.Total() != 16383 {
		t.Errorf("got %+v, %d in all, want %+v", got, got.Total(), want)
	}
	if got := PathsOf(traffic, 1); got.LSA != 0 || got.Network != want.LSA+want.Network || got.Own != want.Own {
		t.Errorf("nobody stores: %+v", got)
	}
	if got := (Paths{1, 2, 3}).Times(10).Plus(Paths{1, 1, 1}); got != (Paths{11, 21, 31}) {
		t.Errorf("got %+v", got)
	}
	p := tiny()
	p.Idx[0] = []int32{0, 0, 2, -1, 0, 2}
	if got := RankTraffic(p); got[0][0]+got[0][1] != 4 {
		t.Errorf("3 tokens that go to 1, 1 and 2 ranks: %v", got)
	}
}

// Two nodes of two ranks, an expert each. Rank 0's tokens go to ranks 1, 2 and 3, and to nobody; rank 3's to 3 alone.
func TestHTTrafficGolden(t *testing.T) {
	p := &Problem{Ranks: 4, Experts: 4, TopK: 3, Hidden: 8, Idx: [][]int32{{2, 1, 3, -1, -1, -1}, {}, {}, {3, -1, 3}}}
	want := []HTTraffic{
		{Nodes: 2, Stored: 1, Put: 1},
		{Rows: 1},
		{Rows: 1, Stored: 2, Own: 1, Came: 1},
		{Nodes: 1, Rows: 2, Stored: 1, Own: 1},
	}
	var sum HTTraffic
	for r, got := range HTTrafficOf(p, 2) {
		if got != want[r] {
			t.Errorf("rank %d: %+v, want %+v", r, got, want[r])
		}
		sum = sum.Plus(got)
	}
	if whole := (HTTraffic{Nodes: 3, Rows: 4, Stored: 4, Own: 2, Put: 1, Came: 1}); sum != whole {
		t.Errorf("all ranks: %+v, want %+v", sum, whole)
	}
	// Each rank a node: nobody stores for another.
	for r, got := range HTTrafficOf(p, 1) {
		if got.Stored != got.Own || got.Rows != got.Own || got.Nodes != []int64{3, 0, 0, 1}[r] || got.Put != []int64{3, 0, 0, 0}[r] {
			t.Errorf("rank %d alone: %+v", r, got)
		}
	}
}

func TestValidateRefuses(t *testing.T) {
	var none *Problem
	if err := none.Validate(); err == nil {
		t.Error("nil accepted")
	}
	for want, change := range map[string]func(*Problem){
		"ranks 0":                               func(p *Problem) { p.Ranks = 0 },
		"experts 0":                             func(p *Problem) { p.Experts = 0 },
		"topk 0":                                func(p *Problem) { p.TopK = 0 },
		"topk 33":                               func(p *Problem) { p.TopK = 33 },
		"hidden 0":                              func(p *Problem) { p.Hidden = 0 },
		"hidden 12, accepted":                   func(p *Problem) { p.Hidden = 12 },
		"selections of 1 ranks given, wanted 2": func(p *Problem) { p.Idx = p.Idx[:1] },
		"tokens of 1 ranks given, wanted 2":     func(p *Problem) { p.X = p.X[:1] },
		"weights of 0 ranks given, wanted 2":    func(p *Problem) { p.Weights = [][]float32{} },
		"rank 0: 5 selections":                  func(p *Problem) { p.Idx[0] = p.Idx[0][:5] },
		"rank 1: 7 elements for 1 tokens of hidden 8":           func(p *Problem) { p.X[1] = p.X[1][:7] },
		"rank 1: 1 weights for 2 selections":                    func(p *Problem) { p.Weights[1] = p.Weights[1][:1] },
		"rank 0: token 2 selection 1: expert 3, accepted -1..2": func(p *Problem) { p.Idx[0][5] = 3 },
		"token 0 selection 0: expert -2":                        func(p *Problem) { p.Idx[1][0] = -2 },
	} {
		p := tiny()
		change(p)
		err := p.Validate()
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("wanted an error with %q, got %v", want, err)
		}
		if _, err := Dispatch(p); err == nil {
			t.Errorf("%q: dispatch accepts", want)
		}
	}
}

func TestCombineRefuses(t *testing.T) {
	p := tiny()
	rows, err := Dispatch(p)
	if err != nil {
		t.Fatal(err)
	}
	for want, change := range map[string]func(*Problem, *Outputs){
		"weights are nil":                             func(p *Problem, _ *Outputs) { p.Weights = nil },
		"outputs of 1 ranks, wanted 2":                func(_ *Problem, o *Outputs) { *o = (*o)[:1] },
		"rank 0: outputs of 1 experts":                func(_ *Problem, o *Outputs) { (*o)[0] = (*o)[0][:1] },
		"rank 1 expert 2: 1 output rows, wanted 2":    func(_ *Problem, o *Outputs) { (*o)[1][0] = (*o)[1][0][:1] },
		"rank 0 expert 1 row 1: 4 elements, wanted h": func(_ *Problem, o *Outputs) { (*o)[0][1][1] = (*o)[0][1][1][:4] },
		"expert 3": func(p *Problem, _ *Outputs) { p.Idx[0][0] = 3 },
	} {
		p := tiny()
		out := Apply(p, rows, Identity)
		change(p, &out)
		if _, err := Combine(p, out); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("wanted an error with %q, got %v", want, err)
		}
		if _, err := CombineF64(p, out); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("FP64: wanted an error with %q, got %v", want, err)
		}
	}
}
