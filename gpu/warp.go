// SPDX-License-Identifier: Apache-2.0

package gpu

// ShflXor is v of the lane whose number differs from this one's by the bits of mask, below WarpSize on a GPU. All lanes
// of the warp call it.
func ShflXor[T Word](t Thread, v T, mask int32) T { return fromLane(t, "ShflXor", v, t.Lane()^mask) }

// ShflIdx is v of the lane given. All lanes of the warp call it.
func ShflIdx[T Word](t Thread, v T, lane int32) T { return fromLane(t, "ShflIdx", v, lane) }

// Ballot has bit i set where lane i passed true. All lanes of the warp call it.
func Ballot(t Thread, pred bool) uint32 { return ballot(t, pred) }

// Any says whether a lane of the warp passed true; All whether each did. All lanes of the warp call them.
func Any(t Thread, pred bool) bool { return Ballot(t, pred) != 0 }

// All says whether each lane of the warp passed true.
func All(t Thread, pred bool) bool { return Ballot(t, pred) == 1<<WarpSize-1 }

// Match has bit i set where lane i passed the value that this one passed. All lanes of the warp call it.
func Match[T Int](t Thread, v T) uint32 { return match(t, uint64(v)) }

// Elect is true in one lane of the warp: the one that does what is done once. All lanes of the warp call it.
func Elect(t Thread) bool { return elect(t) }
