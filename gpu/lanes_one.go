// SPDX-License-Identifier: Apache-2.0

//go:build !lockstep

package gpu

// A warp of one lane: what its lanes do together, it does alone.

const checked = false

type lanes struct{}

func (*lanes) reset(int32)      {}
func (*lanes) end()             {}
func (*lanes) leave(int32) bool { return true }

func syncWarp(Thread) {}

func syncWarps(t Thread, barrier, warps int32) {
	if b := t.at.block; warps > 1 {
		b.barrier[barrier].wait(b, warps)
	}
}

func fromLane[T Word](_ Thread, _ string, v T, _ int32) T { return v }

func ballot(_ Thread, pred bool) uint32 {
	if pred {
		return 1
	}
	return 0
}

func match(Thread, uint64) uint32 { return 1 }

func elect(Thread) bool { return true }

func (p Ptr[T]) checkAligned() {}
func (p Ptr[T]) checkOwner()   {}
