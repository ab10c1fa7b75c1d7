// SPDX-License-Identifier: Apache-2.0

package fault

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"

	"github.com/doorbell-net/doorbell/netplugin"
)

// kind is a fault that has a rate, or at least numbers of its own.
type kind int

const (
	reorders kind = iota
	delays
	splits
	agains
	stalls
	cuts
	duplicates
	rated // how many have a rate
	kills = rated
	// injects is where something is injected.
	injects = rated + 1
)

// rates are the words that take a percentage, and the usual one.
var rates = [rated]struct {
	word  string
	usual int
}{{"reorder", 50}, {"delay", 20}, {"split", 20}, {"again", 30}, {"stall", 2}, {"cut", 1}, {"duplicate", 20}}

const (
	usualSeed = 1
	nobody    = -1
	maxRank   = 1 << 20
)

// plan is what a text asks for.
type plan struct {
	seed      uint64
	rate      [rated]int
	unordered bool
	kill      int // a rank, or nobody
	inject    string
}

var harms = []string{netplugin.InjectBitFlip, netplugin.InjectLostPut, netplugin.InjectDoubleSignal}

// accepted lists the words that there are.
func accepted() string {
	words := []string{"seed=N"}
	for _, r := range rates {
		words = append(words, r.word+"[=0..100]")
	}
	return strings.Join(append(append(words, "all", "unordered", "kill=RANK"), harms...), ", ")
}

// parse reads a text of faults; the empty one asks for none. Of a word that comes twice the last one counts.
func parse(text string) (plan, error) {
	p := plan{seed: usualSeed, kill: nobody}
	if text == "" {
		return p, nil
	}
	for _, word := range strings.Split(text, ",") {
		if !p.add(strings.TrimSpace(word)) {
			return plan{}, fmt.Errorf("faults %q: %q; accepted are %s, with commas between", text, word, accepted())
		}
	}
	return p, nil
}

// add reads one word; false if there is none like it.
func (p *plan) add(word string) bool {
	name, value, valued := strings.Cut(word, "=")
	for k, r := range rates {
		if name == r.word {
			n, err := strconv.ParseUint(value, 10, 8)
			if !valued {
				n, err = uint64(r.usual), nil
			}
			p.rate[k] = int(n)
			return err == nil && n <= 100
		}
	}
	var err error
	switch {
	case name == "seed":
		p.seed, err = strconv.ParseUint(value, 0, 64)
		return err == nil
	case name == "kill":
		p.kill, err = strconv.Atoi(value)
		return err == nil && p.kill >= 0 && p.kill < maxRank
	case word == "all":
		for k, r := range rates[:duplicates] {
			p.rate[k] = r.usual
		}
	case word == "unordered":
		p.unordered = true
	case slices.Contains(harms, word):
		p.inject = word
	default:
		return false
	}
	return true
}

// String is a text that asks for the same.
func (p plan) String() string {
	words := []string{fmt.Sprint("seed=", p.seed)}
	for k, r := range rates {
		if p.rate[k] > 0 {
			words = append(words, fmt.Sprint(r.word, "=", p.rate[k]))
		}
	}
	if p.unordered {
		words = append(words, "unordered")
	}
	if p.kill != nobody {
		words = append(words, fmt.Sprint("kill=", p.kill))
	}
	if p.inject != "" {
		words = append(words, p.inject)
	}
	return strings.Join(words, ",")
}

// unruly says whether operations go other ways than straight on.
func (p plan) unruly() bool { return p.rate != [rated]int{} || p.unordered || p.kill != nobody }

// chance is a rate and a fault's own numbers, so that no fault changes what another one does.
type chance struct {
	percent int
	rng     *rand.Rand
}

func (p plan) chance(k kind, rank int) chance {
	c := chance{rng: rand.New(rand.NewPCG(p.seed, uint64(rank)<<8|uint64(k)))}
	if k < rated {
		c.percent = p.rate[k]
	}
	return c
}

// hit says whether it happens now.
func (c chance) hit() bool { return c.percent > 0 && c.rng.IntN(100) < c.percent }

// below is a number from 0 to n-1.
func (c chance) below(n int) int { return c.rng.IntN(n) }

// steps is a time, in calls of Post and Poll: 1 to n.
func (c chance) steps(n int) uint64 { return 1 + uint64(c.rng.IntN(n)) }
