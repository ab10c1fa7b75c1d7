// SPDX-License-Identifier: Apache-2.0

package routing

import (
	"fmt"
	"strconv"
	"strings"
)

// Kind is how experts are drawn.
type Kind int

const (
	Uniform   Kind = iota // every expert is equally likely
	Zipf                  // the i-th most popular expert has probability proportional to 1/i^S
	HotExpert             // a token selects expert Hot with probability Share; its other selections are uniform
	HotRank               // a selection names an expert of rank Hot with probability Share, else one of another rank
	// GroupLimited is the gating of DeepSeek-V3 (arXiv 2412.19437, 2.1.2) over random scores: of Groups groups of experts
	// a token takes the Keep whose two best scores have the largest sums, and of their experts the best.
	GroupLimited
)

// Pattern is how experts are drawn, with its parameters.
type Pattern struct {
	Kind  Kind
	S     float64 // Zipf: exponent, 0..16; which expert is how popular follows from the seed
	Hot   int     // HotExpert: global expert id; HotRank: rank
	Share float64 // HotExpert, HotRank: 0..1

	Groups, Keep int // GroupLimited: groups of equal size, one after the other; how many a token may go to
}

// String returns the form that ParsePattern reads.
func (p Pattern) String() string {
	switch p.Kind {
	case Uniform:
		return "uniform"
	case Zipf:
		return fmt.Sprintf("zipf:%g", p.S)
	case HotExpert:
		return fmt.Sprintf("hot-expert:%d:%g", p.Hot, p.Share)
	case HotRank:
		return fmt.Sprintf("hot-rank:%d:%g", p.Hot, p.Share)
	case GroupLimited:
		return fmt.Sprintf("groups:%d:%d", p.Groups, p.Keep)
	}
	return fmt.Sprintf("kind(%d)", int(p.Kind))
}

// Patterns are the forms that ParsePattern reads.
const Patterns = "uniform, zipf:S, groups:GROUPS:KEEP, hot-expert:EXPERT:SHARE, hot-rank:RANK:SHARE"

// ParsePattern reads one of Patterns.
func ParsePattern(s string) (Pattern, error) {
	f := strings.Split(s, ":")
	var p Pattern
	var err error
	switch {
	case f[0] == "uniform" && len(f) == 1:
		return p, nil
	case f[0] == "zipf" && len(f) == 2:
		p.Kind = Zipf
		p.S, err = strconv.ParseFloat(f[1], 64)
	case (f[0] == "hot-expert" || f[0] == "hot-rank") && len(f) == 3:
		p.Kind = HotExpert
		if f[0] == "hot-rank" {
			p.Kind = HotRank
		}
		if p.Hot, err = strconv.Atoi(f[1]); err == nil {
			p.Share, err = strconv.ParseFloat(f[2], 64)
		}
	case f[0] == "groups" && len(f) == 3:
		p.Kind = GroupLimited
		if p.Groups, err = strconv.Atoi(f[1]); err == nil {
			p.Keep, err = strconv.Atoi(f[2])
		}
	default:
		return Pattern{}, fmt.Errorf("parse pattern: %q, accepted %s", s, Patterns)
	}
	if err != nil {
		return Pattern{}, fmt.Errorf("parse pattern: %q: %w", s, err)
	}
	return p, nil
}

// Options says what to generate. Ranks, Experts and TopK must be given; the zero value of the rest is a uniform routing
// without -1, with no tokens.
type Options struct {
	Seed    uint64
	Ranks   int
	Experts int
	TopK    int
	Pattern Pattern

	Tokens        int   // per rank; with Uneven the most a rank may have
	Uneven        bool  // each rank has a number of tokens drawn from 0..Tokens
	EmptyRanks    int   // this many ranks, drawn from the seed, have no tokens
	TokensPerRank []int // if given: exactly these, and Tokens, Uneven and EmptyRanks are not used

	DropEntries float64 // probability that a selection becomes -1
	DropTokens  float64 // probability that all selections of a token become -1
	Duplicates  float64 // probability that a selection repeats an earlier one of its token; 0: a token names no expert twice

	IntegerWeights bool // weights are integers 1..8; else positive with a sum of about 1 over a token's TopK entries
}

// String returns all that a rerun needs, in one line.
func (o Options) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "seed=%d ranks=%d experts=%d topk=%d pattern=%s", o.Seed, o.Ranks, o.Experts, o.TopK, o.Pattern)
	if o.TokensPerRank != nil {
		fmt.Fprintf(&b, " tokens=%v", o.TokensPerRank)
	} else {
		fmt.Fprintf(&b, " tokens=%d uneven=%v empty=%d", o.Tokens, o.Uneven, o.EmptyRanks)
	}
	fmt.Fprintf(&b, " drop-entries=%g drop-tokens=%g duplicates=%g integer-weights=%v",
		o.DropEntries, o.DropTokens, o.Duplicates, o.IntegerWeights)
	return b.String()
}

// Validate returns nil if o can be generated, else an error that names the value and what is accepted.
func (o Options) Validate() error {
	if err := o.validate(); err != nil {
		return fmt.Errorf("validate routing options: %w", err)
	}
	return nil
}

func (o Options) validate() error {
	if err := checkShape(o.Ranks, o.Experts, o.TopK); err != nil {
		return err
	}
	for _, c := range []struct {
		name  string
		value float64
	}{{"share", o.Pattern.Share}, {"drop entries", o.DropEntries}, {"drop tokens", o.DropTokens}, {"duplicates", o.Duplicates}} {
		if !(c.value >= 0 && c.value <= 1) {
			return fmt.Errorf("%s %g, accepted 0..1", c.name, c.value)
		}
	}
	if o.TopK > o.Experts && o.Duplicates == 0 {
		return fmt.Errorf("topk %d without duplicates, accepted up to the number of experts %d", o.TopK, o.Experts)
	}
	if err := o.validatePattern(); err != nil {
		return err
	}
	return o.validateTokens()
}

func (o Options) validatePattern() error {
	p := o.Pattern
	switch p.Kind {
	case Uniform:
	case Zipf:
		if !(p.S >= 0 && p.S <= 16) {
			return fmt.Errorf("zipf exponent %g, accepted 0..16", p.S)
		}
	case HotExpert:
		if p.Hot < 0 || p.Hot >= o.Experts {
			return fmt.Errorf("hot expert %d, accepted 0..%d", p.Hot, o.Experts-1)
		}
	case HotRank:
		// Ranks from Experts on own nothing.
		if p.Hot < 0 || p.Hot >= min(o.Ranks, o.Experts) {
			return fmt.Errorf("hot rank %d, accepted 0..%d (ranks that own experts)", p.Hot, min(o.Ranks, o.Experts)-1)
		}
	case GroupLimited:
		if p.Groups < 1 || o.Experts%p.Groups != 0 {
			return fmt.Errorf("%d experts in %d groups, accepted groups of equal size", o.Experts, p.Groups)
		}
		if p.Keep < 1 || p.Keep > p.Groups {
			return fmt.Errorf("%d groups for a token, accepted 1..%d", p.Keep, p.Groups)
		}
		if most := p.Keep * (o.Experts / p.Groups); o.TopK > most && o.Duplicates == 0 {
			return fmt.Errorf("topk %d without duplicates, accepted up to the %d experts of %d groups", o.TopK, most, p.Keep)
		}
	default:
		return fmt.Errorf("pattern kind %d, accepted %d..%d", int(p.Kind), int(Uniform), int(GroupLimited))
	}
	return nil
}

func (o Options) validateTokens() error {
	if o.TokensPerRank != nil {
		if len(o.TokensPerRank) != o.Ranks {
			return fmt.Errorf("tokens of %d ranks given, wanted %d", len(o.TokensPerRank), o.Ranks)
		}
		for r, n := range o.TokensPerRank {
			if n < 0 || n > MaxTokens {
				return fmt.Errorf("rank %d: tokens %d, accepted 0..%d", r, n, MaxTokens)
			}
		}
		return nil
	}
	if o.Tokens < 0 || o.Tokens > MaxTokens {
		return fmt.Errorf("tokens %d, accepted 0..%d", o.Tokens, MaxTokens)
	}
	if o.EmptyRanks < 0 || o.EmptyRanks > o.Ranks {
		return fmt.Errorf("empty ranks %d, accepted 0..%d", o.EmptyRanks, o.Ranks)
	}
	return nil
}
