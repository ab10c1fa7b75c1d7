// SPDX-License-Identifier: Apache-2.0

package moe

// spread is experts over ranks: ranges in the ranks' order, each of so many, and one more of the first ranks where they do not
// divide.
type spread struct{ each, more int32 }

func spreadOf(experts, ranks int32) spread { return spread{experts / ranks, experts % ranks} }

// first is the first expert of a rank.
func (s spread) first(rank int32) int32 { return rank*s.each + min(rank, s.more) }

// owner is the rank that an expert lives on.
func (s spread) owner(e int32) int32 {
	before, each := int32(0), s.each+1
	if large := s.more * each; e >= large {
		before, each, e = s.more, s.each, e-large
	}
	return before + e/each // a GPU divides by many instructions
}
