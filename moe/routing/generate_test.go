// SPDX-License-Identifier: Apache-2.0

package routing

import (
	"fmt"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/doorbell-net/doorbell/moe/ref"
	"pgregory.net/rapid"
)

// drawOptions draws valid options of small size.
func drawOptions(t *rapid.T) Options {
	o := Options{
		Seed:           rapid.Uint64().Draw(t, "seed"),
		Ranks:          rapid.IntRange(1, 9).Draw(t, "ranks"),
		Experts:        rapid.IntRange(1, 40).Draw(t, "experts"),
		Tokens:         rapid.IntRange(0, 33).Draw(t, "tokens"),
		Uneven:         rapid.Bool().Draw(t, "uneven"),
		IntegerWeights: rapid.Bool().Draw(t, "integer weights"),
		DropEntries:    rapid.SampledFrom([]float64{0, 0.1, 0.5, 1}).Draw(t, "drop entries"),
		DropTokens:     rapid.SampledFrom([]float64{0, 0.2, 1}).Draw(t, "drop tokens"),
		Duplicates:     rapid.SampledFrom([]float64{0, 0, 0.3, 1}).Draw(t, "duplicates"),
	}
	o.EmptyRanks = rapid.IntRange(0, o.Ranks).Draw(t, "empty ranks")
	o.TopK = rapid.IntRange(1, MaxTopK).Draw(t, "topk")
	if o.Duplicates == 0 {
		o.TopK = min(o.TopK, o.Experts)
	}
	o.Pattern.Kind = rapid.SampledFrom([]Kind{Uniform, Zipf, HotExpert, HotRank, GroupLimited}).Draw(t, "kind")
	switch o.Pattern.Kind {
	case Zipf:
		o.Pattern.S = rapid.Float64Range(0, 16).Draw(t, "s")
	case HotExpert:
		o.Pattern.Hot = rapid.IntRange(0, o.Experts-1).Draw(t, "hot")
	case HotRank:
		o.Pattern.Hot = rapid.IntRange(0, min(o.Ranks, o.Experts)-1).Draw(t, "hot")
	case GroupLimited:
		o.Pattern.Groups = rapid.IntRange(1, 8).Draw(t, "groups")
		o.Pattern.Keep = rapid.IntRange(1, o.Pattern.Groups).Draw(t, "keep")
		o.Experts *= o.Pattern.Groups
		if o.Duplicates == 0 {
			o.TopK = min(o.TopK, o.Pattern.Keep*(o.Experts/o.Pattern.Groups))
		}
	}
	if o.Pattern.Kind == HotExpert || o.Pattern.Kind == HotRank {
		o.Pattern.Share = rapid.SampledFrom([]float64{0, 0.5, 1}).Draw(t, "share")
	}
	return o
}

func TestGenerateProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		o := drawOptions(t)
		g, err := Generate(o)
		if err != nil {
			t.Fatalf("%v: %v", o, err)
		}
		if err := g.Validate(); err != nil {
			t.Fatalf("%v: %v", o, err)
		}
		again, _ := Generate(o)
		if !reflect.DeepEqual(g, again) {
			t.Fatalf("%v: two runs differ", o)
		}
		empty := 0
		for r := range g.Idx {
			n := g.Tokens(r)
			if n == 0 {
				empty++
			}
			if n > o.Tokens || n > g.MaxTokens() || (!o.Uneven && n != 0 && n != o.Tokens) {
				t.Fatalf("%v: rank %d has %d tokens", o, r, n)
			}
			for i := 0; i < len(g.Idx[r]); i += o.TopK {
				checkToken(t, o, g.Idx[r][i:i+o.TopK], g.Weights[r][i:i+o.TopK])
			}
		}
		if empty < o.EmptyRanks || (!o.Uneven && o.Tokens > 0 && empty != o.EmptyRanks) {
			t.Fatalf("%v: %d empty ranks", o, empty)
		}
	})
}

func checkToken(t *rapid.T, o Options, idx []int32, w []float32) {
	sum, used := 0.0, map[int32]bool{}
	for k, e := range idx {
		if e >= 0 && used[e] && o.Duplicates == 0 {
			t.Fatalf("%v: expert %d twice in %v", o, e, idx)
		}
		used[e] = true
		if e >= 0 && (o.DropEntries == 1 || o.DropTokens == 1) {
			t.Fatalf("%v: expert %d left in %v", o, e, idx)
		}
		if !(w[k] > 0) {
			t.Fatalf("%v: weight %g, accepted positive values", o, w[k])
		}
		if o.IntegerWeights && (w[k] != float32(int(w[k])) || w[k] > 8) {
			t.Fatalf("%v: weight %g, accepted 1..8", o, w[k])
		}
		sum += float64(w[k])
	}
	if !o.IntegerWeights && math.Abs(sum-1) > 1e-5 {
		t.Fatalf("%v: weights %v sum to %g, wanted 1", o, w, sum)
	}
	if o.Pattern.Kind == GroupLimited {
		groups := map[int]bool{}
		for _, e := range idx {
			if e >= 0 {
				groups[int(e)/(o.Experts/o.Pattern.Groups)] = true
			}
		}
		if len(groups) > o.Pattern.Keep {
			t.Fatalf("%v: %v is in %d groups, accepted up to %d", o, idx, len(groups), o.Pattern.Keep)
		}
	}
	if o.Duplicates == 1 && o.DropEntries == 0 && o.DropTokens == 0 && len(used) != 1 {
		t.Fatalf("%v: %v names %d experts, wanted one repeated", o, idx, len(used))
	}
	if o.Pattern.Kind == HotExpert && o.Pattern.Share == 1 && o.DropEntries == 0 && o.DropTokens == 0 && !used[int32(o.Pattern.Hot)] {
		t.Fatalf("%v: %v lacks the hot expert", o, idx)
	}
}

// A rank's routing stays the same when other ranks get more tokens or fewer.
func TestGenerateRanksAreIndependent(t *testing.T) {
	o := Options{Seed: 3, Ranks: 3, Experts: 16, TopK: 4, TokensPerRank: []int{5, 6, 7}}
	a, err := Generate(o)
	if err != nil {
		t.Fatal(err)
	}
	o.TokensPerRank = []int{0, 6, 9}
	b, err := Generate(o)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(a.Idx[1], b.Idx[1]) || !slices.Equal(a.Weights[1], b.Weights[1]) {
		t.Error("rank 1 changed with the tokens of ranks 0 and 2")
	}
	if !slices.Equal(a.Idx[2], b.Idx[2][:7*4]) {
		t.Error("the first tokens of rank 2 changed with their number")
	}
	if slices.Equal(a.Idx[1][:20], a.Idx[0]) {
		t.Error("ranks 0 and 1 have the same routing")
	}
	o.Seed = 4
	if c, _ := Generate(o); slices.Equal(b.Idx[1], c.Idx[1]) {
		t.Error("seeds 3 and 4 give the same routing")
	}
}

// histogram counts selections by expert.
func histogram(t *testing.T, o Options) (n []int, total int) {
	t.Helper()
	g, err := Generate(o)
	if err != nil {
		t.Fatal(err)
	}
	n = make([]int, o.Experts)
	for _, idx := range g.Idx {
		for _, e := range idx {
			if e >= 0 {
				n[e]++
				total++
			}
		}
	}
	return n, total
}

// near fails unless n is within five standard deviations of a binomial with total draws of probability p. The seeds
// are fixed, so the outcome is too.
func near(t *testing.T, what string, n, total int, p float64) {
	t.Helper()
	mean := float64(total) * p
	if dev := 5*math.Sqrt(mean*(1-p)) + 1e-9; math.Abs(float64(n)-mean) > dev {
		t.Errorf("%s: %d of %d, wanted %.0f with at most %.0f off", what, n, total, mean, dev)
	}
}

func TestPatternsHaveTheirShape(t *testing.T) {
	base := Options{Seed: 11, Ranks: 4, Experts: 18, TopK: 1, Tokens: 4000}

	n, total := histogram(t, base)
	for e := range n {
		near(t, "uniform", n[e], total, 1.0/18)
	}

	z := base
	z.Pattern = Pattern{Kind: Zipf, S: 1.2}
	n, total = histogram(t, z)
	if slices.IsSortedFunc(n, func(a, b int) int { return b - a }) {
		t.Error("zipf: popularity falls with the expert's id, wanted a permutation of it")
	}
	slices.Sort(n)
	slices.Reverse(n)
	norm := 0.0
	for i := range n {
		norm += math.Pow(float64(i+1), -1.2)
	}
	near(t, "zipf: most popular", n[0], total, 1/norm)
	near(t, "zipf: second", n[1], total, math.Pow(2, -1.2)/norm)
	near(t, "zipf: fifth", n[4], total, math.Pow(5, -1.2)/norm)

	h := base
	h.TopK = 3
	h.Pattern = Pattern{Kind: HotExpert, Hot: 17, Share: 0.7}
	n, total = histogram(t, h)
	near(t, "hot expert", n[17], total/3, 0.7)
	near(t, "hot expert: another", n[0], total, (1-0.7/3)/17)

	r := base
	r.Pattern = Pattern{Kind: HotRank, Hot: 1, Share: 0.5} // experts 5..9 of ranges 5, 5, 4, 4
	n, total = histogram(t, r)
	near(t, "hot rank", n[5]+n[6]+n[7]+n[8]+n[9], total, 0.5)
	near(t, "hot rank: one expert", n[9], total, 0.1)
	near(t, "hot rank: expert elsewhere", n[10], total, 0.5/13)

	l := base
	l.Experts, l.TopK = 16, 2
	l.Pattern = Pattern{Kind: GroupLimited, Groups: 4, Keep: 1}
	n, total = histogram(t, l)
	near(t, "groups: each is as good as another", n[0]+n[1]+n[2]+n[3], total, 0.25)
	near(t, "groups: one expert", n[9], total, 1.0/16)

	d := base
	d.TopK, d.DropEntries, d.DropTokens = 4, 0.1, 0.25
	_, total = histogram(t, d)
	if want, sd := 64000*0.9*0.75, 4*math.Sqrt(64000*0.675*0.325); math.Abs(float64(total)-want) > 5*sd {
		t.Errorf("drops: %d selections left, wanted %.0f", total, want)
	}
}

// The groups that a token may go to are those whose two best scores have the largest sums.
func TestGateKeepsTheBestGroups(t *testing.T) {
	o := Options{Seed: 1, Ranks: 1, Experts: 32, TopK: 8, Pattern: Pattern{Kind: GroupLimited, Groups: 8, Keep: 3}}
	d := newDrawer(o)
	for token := range 200 {
		d.rng = rng{uint64(token)}
		again := d.rng
		d.gate()
		var kept, left []float64
		for g := range 8 {
			scores := []float64{again.float(), again.float(), again.float(), again.float()}
			slices.Sort(scores)
			if sum := scores[2] + scores[3]; d.score[4*g] >= 0 {
				kept = append(kept, sum)
			} else {
				left = append(left, sum)
			}
		}
		if len(kept) != 3 || slices.Min(kept) < slices.Max(left) {
			t.Fatalf("token %d: sums %v are kept, %v are not", token, kept, left)
		}
	}
}

// A hot expert or rank is not tied to one position of the token.
func TestHotPositionVaries(t *testing.T) {
	g, err := Generate(Options{Seed: 1, Ranks: 1, Experts: 8, TopK: 4, Tokens: 100, Pattern: Pattern{Kind: HotExpert, Hot: 2, Share: 1}})
	if err != nil {
		t.Fatal(err)
	}
	var at [4]int
	for i, e := range g.Idx[0] {
		if e == 2 {
			at[i%4]++
		}
	}
	for k, n := range at {
		near(t, fmt.Sprintf("hot expert as selection %d", k), n, 100, 0.25)
	}
}

func TestExpertRangeAgreesWithReference(t *testing.T) {
	for experts := 1; experts <= 20; experts++ {
		for ranks := 1; ranks <= 12; ranks++ {
			p := ref.Problem{Experts: experts, Ranks: ranks}
			for r := 0; r < ranks; r++ {
				lo, hi := expertRange(experts, ranks, r)
				if lo != p.FirstExpert(r) || hi-lo != p.LocalExperts(r) {
					t.Fatalf("experts %d ranks %d: rank %d owns [%d,%d), the reference says %d from %d",
						experts, ranks, r, lo, hi, p.LocalExperts(r), p.FirstExpert(r))
				}
			}
		}
	}
}

func TestPatternStringRoundTrip(t *testing.T) {
	for _, s := range []string{"uniform", "zipf:1.2", "zipf:0", "hot-expert:3:1", "hot-rank:0:0.5", "groups:8:4"} {
		p, err := ParsePattern(s)
		if err != nil || p.String() != s {
			t.Errorf("%q: got %q, error %v", s, p, err)
		}
	}
	for _, s := range []string{"", "zipf", "zipf:x", "uniform:1", "hot-rank:0", "hot-expert:a:1", "hot-expert:1:b", "hot-rank:0:1:2", "groups:8", "groups:x:4", "groups:8:x"} {
		if p, err := ParsePattern(s); err == nil {
			t.Errorf("%q: accepted as %q", s, p)
		}
	}
}

func TestOptionsRefused(t *testing.T) {
	good := Options{Seed: 1, Ranks: 3, Experts: 2, TopK: 2, Tokens: 4}
	if err := good.Validate(); err != nil {
		t.Fatal(err)
	}
	for want, change := range map[string]func(*Options){
		"ranks 0":               func(o *Options) { o.Ranks = 0 },
		"experts 0":             func(o *Options) { o.Experts = 0 },
		"topk 33":               func(o *Options) { o.TopK, o.Duplicates = 33, 1 },
		"topk 3 without":        func(o *Options) { o.TopK = 3 },
		"tokens -1":             func(o *Options) { o.Tokens = -1 },
		"empty ranks 4":         func(o *Options) { o.EmptyRanks = 4 },
		"tokens of 2 ranks":     func(o *Options) { o.TokensPerRank = []int{1, 2} },
		"rank 1: tokens -2":     func(o *Options) { o.TokensPerRank = []int{1, -2, 0} },
		"drop entries 1.5":      func(o *Options) { o.DropEntries = 1.5 },
		"drop tokens NaN":       func(o *Options) { o.DropTokens = math.NaN() },
		"duplicates -1":         func(o *Options) { o.Duplicates = -1 },
		"share 2":               func(o *Options) { o.Pattern = Pattern{Kind: HotRank, Share: 2} },
		"hot rank 2":            func(o *Options) { o.Pattern = Pattern{Kind: HotRank, Hot: 2} }, // owns nothing
		"hot expert 2":          func(o *Options) { o.Pattern = Pattern{Kind: HotExpert, Hot: 2} },
		"zipf exponent +Inf":    func(o *Options) { o.Pattern = Pattern{Kind: Zipf, S: math.Inf(1)} },
		"2 experts in 3 groups": func(o *Options) { o.Pattern = Pattern{Kind: GroupLimited, Groups: 3, Keep: 1} },
		"2 experts in 0 groups": func(o *Options) { o.Pattern = Pattern{Kind: GroupLimited} },
		"3 groups for a token":  func(o *Options) { o.Pattern = Pattern{Kind: GroupLimited, Groups: 2, Keep: 3} },
		"the 1 experts of 1 groups": func(o *Options) {
			o.Pattern = Pattern{Kind: GroupLimited, Groups: 2, Keep: 1}
		},
		"pattern kind 9": func(o *Options) { o.Pattern.Kind = 9 },
	} {
		o := good
		change(&o)
		if _, err := Generate(o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("wanted an error with %q, got %v", want, err)
		}
	}
}

func BenchmarkGeneratePaperLL(b *testing.B) {
	for i := 0; b.Loop(); i++ {
		if _, err := Generate(Options{Seed: uint64(i), Ranks: 8, Experts: 256, TopK: 8, Tokens: 128}); err != nil {
			b.Fatal(err)
		}
	}
}

// Golden values: a rerun from a printed seed must give the same routing in a later build.
func TestGenerateGolden(t *testing.T) {
	for _, c := range []struct {
		pattern string
		want    []int32
	}{
		{"uniform", []int32{0, 4, 6, 5, -1, 4, -1, 3, 5}},
		{"zipf:1.2", []int32{1, 5, 6, 5, -1, 3, -1, 5, 4}},
		{"hot-expert:3:1", []int32{0, -1, 5, 1, 3, -1, 3, 0, -1}},
		{"hot-rank:1:0.5", []int32{6, 0, 5, -1, 1, 4, 6, 4, 5}},
		{"groups:7:4", []int32{-1, 1, 6, 3, -1, 0, -1, 6, 5}},
	} {
		p, err := ParsePattern(c.pattern)
		if err != nil {
			t.Fatal(err)
		}
		g, err := Generate(Options{Seed: 1, Ranks: 2, Experts: 7, TopK: 3, Pattern: p, TokensPerRank: []int{1, 2}, DropEntries: 0.2})
		if err != nil {
			t.Fatal(err)
		}
		if got := slices.Concat(g.Idx...); !slices.Equal(got, c.want) {
			t.Errorf("%s: got %v, want %v", c.pattern, got, c.want)
		}
	}
}
