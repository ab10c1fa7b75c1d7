// SPDX-License-Identifier: Apache-2.0

package bootstrap

import "math/bits"

// rankSet is a set of ranks, one bit each. All sets of a group have the same length.
type rankSet []uint64

func newRankSet(size int) rankSet { return make(rankSet, (size+63)/64) }

func fullRankSet(size int) rankSet {
	s := newRankSet(size)
	for r := range size {
		s.add(r)
	}
	return s
}

func (s rankSet) add(r int)      { s[r/64] |= 1 << (r % 64) }
func (s rankSet) remove(r int)   { s[r/64] &^= 1 << (r % 64) }
func (s rankSet) has(r int) bool { return s[r/64]>>(r%64)&1 != 0 }

func (s rankSet) clone() rankSet { return append(rankSet(nil), s...) }

// or, and, less return new sets.
func (s rankSet) or(t rankSet) rankSet {
	out := s.clone()
	for i := range t {
		out[i] |= t[i]
	}
	return out
}

func (s rankSet) and(t rankSet) rankSet {
	out := s.clone()
	for i := range t {
		out[i] &= t[i]
	}
	return out
}

func (s rankSet) less(t rankSet) rankSet {
	out := s.clone()
	for i := range t {
		out[i] &^= t[i]
	}
	return out
}

func (s rankSet) equal(t rankSet) bool {
	for i := range s {
		if s[i] != t[i] {
			return false
		}
	}
	return true
}

// within reports whether every rank of s is in t.
func (s rankSet) within(t rankSet) bool {
	for i := range s {
		if s[i]&^t[i] != 0 {
			return false
		}
	}
	return true
}

func (s rankSet) count() (n int) {
	for _, w := range s {
		n += bits.OnesCount64(w)
	}
	return n
}

func (s rankSet) empty() bool { return s.count() == 0 }

// list is in rising order.
func (s rankSet) list() []int {
	var out []int
	for i, w := range s {
		for ; w != 0; w &= w - 1 {
			out = append(out, i*64+bits.TrailingZeros64(w))
		}
	}
	return out
}

// major reports whether part can decide for whole: it has more than half of it, or half with its lowest rank. Two such
// parts share a rank.
func (part rankSet) major(whole rankSet) bool {
	both := part.and(whole)
	n, all := 2*both.count(), whole.count()
	if n == 0 {
		return false
	}
	return n > all || n == all && both.list()[0] == whole.list()[0]
}
