// SPDX-License-Identifier: Apache-2.0

package moe

import "github.com/doorbell-net/doorbell/gpu"

// lookedAt is how many loads of a lane are on their way while selections are counted.
const lookedAt = 8

// count counts how many messages go into each box: a warp those into its share of the boxes, of all tokens. The last warps of
// each block come first, which have the fewest messages to send themselves, and of those the last blocks', which may have no
// token.
func (a *llOp) count(t gpu.Thread) {
	far := a.farBoxes()
	end := far
	if a.PerRank != 0 {
		end += a.Experts // no more than Cap selections name one, as if it had a box
	}
	share := (end + t.Blocks()*t.Warps() - 1) / (t.Blocks() * t.Warps())
	from := share * ((t.Warps()-1-t.Warp())*t.Blocks() + t.Blocks() - 1 - t.Block())
	if end = min(from+share, end); from >= end {
		return
	}
	a.countExperts(t, from, end)
	if a.PerRank != 0 && from < far {
		for i := t.Lane(); i < a.now.Tokens*a.TopK; i += gpu.WarpSize {
			if box := a.goes(i); box >= from && box < end {
				a.counted(box)
			}
		}
	}
	t.SyncWarp() // lane 0 has what each lane has counted
	for box := from; box < end; box++ {
		if box < far {
			if rank, _ := a.place(box); a.first(rank) < a.first(rank+1) && !a.missing(rank) {
				a.gone(t, box, allCounted)
			}
		} else if t.Lane() == 0 {
			a.named(box, box-far)
		}
	}
}

// countExperts counts the selections of each expert whose place in the table of boxes is one of those.
func (a *llOp) countExperts(t gpu.Thread, from, end int32) {
	first := int32(0) // expert's
	if a.PerRank != 0 {
		first = a.DC.Ranks
	}
	n := a.now.Tokens * a.TopK
	for i := t.Lane(); i < n; i += lookedAt * gpu.WarpSize {
		var e [lookedAt]int32
		//gpu:unroll 8
		for j := range e {
			e[j] = -1
			if at := i + int32(j)*gpu.WarpSize; at < n {
				e[j] = a.Idx.At(int(at)).Load()
			}
		}
		//gpu:unroll 8
		for j := range e {
			if e[j] >= 0 && first+e[j] >= from && first+e[j] < end && !a.nowhere(e[j]) {
				a.counted(first + e[j])
			}
		}
	}
}

func (a *llOp) counted(box int32) {
	gpu.AtomicAdd(gpu.PtrTo(&a.Far.At(int(box)).Raw().Gone), oneCounted, gpu.Relaxed, gpu.ScopeGPU)
}

// named checks how often an expert is named where boxes are the ranks', and clears the count.
func (a *llOp) named(box, e int32) {
	b := a.Far.At(int(box)).Raw()
	if n := uint32(b.Gone / oneCounted); n > uint32(a.Cap) {
		a.refuse(FaultCopies, int64(n), int64(e))
	}
	b.Gone = 0
}
