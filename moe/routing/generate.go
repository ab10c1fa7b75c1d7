// SPDX-License-Identifier: Apache-2.0

package routing

import (
	"cmp"
	"math"
	"slices"
)

// Generate returns the routing that o describes, or the error of o.Validate. Equal options give equal routings, in every
// process.
func Generate(o Options) (*Routing, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	g := &Routing{Ranks: o.Ranks, Experts: o.Experts, TopK: o.TopK, Seed: o.Seed}
	d := newDrawer(o)
	for r, tokens := range tokensPerRank(o) {
		// One stream a rank: a rank's routing does not depend on how many tokens the others have.
		d.rng = rng{fold(o.Seed, uint64(r)+1)}
		idx := make([]int32, 0, tokens*o.TopK)
		w := make([]float32, 0, tokens*o.TopK)
		for t := 0; t < tokens; t++ {
			idx = append(idx, d.token()...)
			w = append(w, d.weights()...)
		}
		g.Idx = append(g.Idx, idx)
		g.Weights = append(g.Weights, w)
	}
	return g, nil
}

func tokensPerRank(o Options) []int {
	n := make([]int, o.Ranks)
	if o.TokensPerRank != nil {
		copy(n, o.TokensPerRank)
		return n
	}
	g := rng{fold(o.Seed, 0)}
	for r := range n {
		n[r] = o.Tokens
		if o.Uneven {
			n[r] = int(g.below(uint64(o.Tokens) + 1))
		}
	}
	for _, r := range permutation(&g, o.Ranks)[:o.EmptyRanks] {
		n[r] = 0
	}
	return n
}

func permutation(g *rng, n int) []int {
	p := make([]int, n)
	for i := range p {
		p[i] = i
	}
	for i := n - 1; i > 0; i-- {
		j := g.below(uint64(i) + 1)
		p[i], p[j] = p[j], p[i]
	}
	return p
}

// drawer draws the selections of one token after the other.
type drawer struct {
	o      Options
	rng    rng
	share  []uint64  // relative probability of each expert; integers, so that sums are exact
	lo, hi int       // the hot experts
	score  []float64 // GroupLimited: of this token for each expert, below 0 in groups that it may not go to
	taken  []bool    // experts that this token names already
	row    []int32
	w      []float32
}

func newDrawer(o Options) *drawer {
	d := &drawer{o: o, taken: make([]bool, o.Experts), share: make([]uint64, o.Experts), w: make([]float32, o.TopK)}
	for e := range d.share {
		d.share[e] = 1
	}
	switch o.Pattern.Kind {
	case Zipf:
		g := rng{fold(o.Seed, math.MaxUint64)}
		for i, e := range permutation(&g, o.Experts) {
			// At least 1, so that the tail can always fill a token.
			d.share[e] = max(1, uint64(math.Round((1<<40)*math.Pow(float64(i+1), -o.Pattern.S))))
		}
	case HotExpert:
		d.lo, d.hi = o.Pattern.Hot, o.Pattern.Hot+1
	case HotRank:
		d.lo, d.hi = expertRange(o.Experts, o.Ranks, o.Pattern.Hot)
	case GroupLimited:
		d.score = make([]float64, o.Experts)
	}
	return d
}

// token returns the selections of the next token; they are valid until the next call.
func (d *drawer) token() []int32 {
	d.row = d.row[:0]
	clear(d.taken)
	if d.score != nil {
		d.gate()
	}
	for k := 0; k < d.o.TopK; k++ {
		e := -1
		if k == 0 || d.rng.float() >= d.o.Duplicates {
			e = d.fresh(k)
		}
		if e < 0 {
			e = int(d.row[d.rng.below(uint64(k))])
		}
		d.taken[e] = true
		d.row = append(d.row, int32(e))
	}
	if d.lo < d.hi {
		// A hot expert must not always be selection 0.
		for i := len(d.row) - 1; i > 0; i-- {
			j := d.rng.below(uint64(i) + 1)
			d.row[i], d.row[j] = d.row[j], d.row[i]
		}
	}
	d.drop()
	return d.row
}

// fresh returns an expert that this token does not name yet, or -1 if it names all of them.
func (d *drawer) fresh(k int) int {
	if d.score != nil {
		return d.best()
	}
	hot := false
	switch d.o.Pattern.Kind {
	case HotExpert:
		hot = k == 0 && d.rng.float() < d.o.Pattern.Share
	case HotRank:
		hot = d.rng.float() < d.o.Pattern.Share
	}
	if e := d.pick(hot); e >= 0 {
		return e
	}
	return d.pick(!hot)
}

// pick draws among the experts, hot or not, that this token does not name yet; -1 if none is left.
func (d *drawer) pick(hot bool) int {
	total := uint64(0)
	for e, s := range d.share {
		if !d.taken[e] && (e >= d.lo && e < d.hi) == hot {
			total += s
		}
	}
	if total == 0 {
		return -1
	}
	x := d.rng.below(total)
	for e, s := range d.share {
		if !d.taken[e] && (e >= d.lo && e < d.hi) == hot {
			if x < s {
				return e
			}
			x -= s
		}
	}
	panic("routing: drawn value beyond the total")
}

// gate draws the scores of a token and keeps the groups that it may go to.
func (d *drawer) gate() {
	each := d.o.Experts / d.o.Pattern.Groups
	sums := make([]float64, d.o.Pattern.Groups)
	for g := range sums {
		first, second := 0.0, 0.0
		for e := g * each; e < (g+1)*each; e++ {
			s := d.rng.float()
			d.score[e] = s
			first, second = max(first, s), max(second, min(first, s))
		}
		sums[g] = first + second
	}
	order := make([]int, len(sums))
	for g := range order {
		order[g] = g
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(sums[b], sums[a]) })
	for _, g := range order[d.o.Pattern.Keep:] {
		for e := g * each; e < (g+1)*each; e++ {
			d.score[e] = -1
		}
	}
}

// best is the expert with the best score that this token may go to and does not name yet, -1 if there is none.
func (d *drawer) best() int {
	at := -1
	for e, s := range d.score {
		if s >= 0 && !d.taken[e] && (at < 0 || s > d.score[at]) {
			at = e
		}
	}
	return at
}

func (d *drawer) drop() {
	all := d.rng.float() < d.o.DropTokens
	for k := range d.row {
		if d.rng.float() < d.o.DropEntries || all {
			d.row[k] = -1
		}
	}
}

// weights returns the weights of the next token; they are valid until the next call.
func (d *drawer) weights() []float32 {
	if d.o.IntegerWeights {
		for k := range d.w {
			d.w[k] = float32(1 + d.rng.below(8))
		}
		return d.w
	}
	// Integers between 1 and 2^16 times each other: no weight vanishes beside another.
	var n [MaxTopK]uint64
	total := uint64(0)
	for k := range d.w {
		n[k] = 1 + d.rng.below(1<<16)
		total += n[k]
	}
	for k := range d.w {
		d.w[k] = float32(float64(n[k]) / float64(total))
	}
	return d.w
}
