// SPDX-License-Identifier: Apache-2.0

package moe

// spread is experts over ranks: ranges in the ranks' order, of which the first ones have one more where they do not divide.
type spread struct{ experts, ranks int32 }

// first is the first expert of a rank.
func (s spread) first(rank int32) int32 {
	return rank*(s.experts/s.ranks) + min(rank, s.experts%s.ranks)
}

// owner is the rank that an expert lives on.
func (s spread) owner(e int32) int32 {
	each, more := s.experts/s.ranks, s.experts%s.ranks
	if e < more*(each+1) {
		return e / (each + 1)
	}
	return more + (e-more*(each+1))/each
}
