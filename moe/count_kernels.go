// SPDX-License-Identifier: Apache-2.0

package moe

import "github.com/doorbell-net/doorbell/gpu"

// lookedAt is how many loads of a lane are on their way while selections are counted.
const lookedAt = 8

// count counts how many messages go into each box: a warp those into its share of the boxes, of all tokens, for each lane one at
// least. The last blocks come first, which may have no token.
func (a *llOp) count(t gpu.Thread) {
	far := a.farBoxes()
	end := far
	if a.PerRank != 0 {
		end += a.Experts // no more than Cap selections name one, as if it had a box
	}
	all := t.Blocks() * t.Warps()
	share := max((end+all-1)/all, gpu.WarpSize)
	from := share * ((t.Blocks()-1-t.Block())*t.Warps() + t.Warps() - 1 - t.Warp())
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
	t.SyncWarp()                             // each lane has what all have counted
	for ; from < end; from += gpu.WarpSize { // the same to all lanes
		a.counts(t, from+t.Lane(), end)
	}
}

// counts ends the count of a lane's box, if it is before the end. All lanes of a warp call it.
func (a *llOp) counts(t gpu.Thread, box, end int32) {
	n, far := uint32(0), a.farBoxes()
	if box < min(end, far) {
		if rank, _ := a.place(box); a.first(rank) < a.first(rank+1) && !a.missing(rank) {
			n = a.gone(box, allCounted, a.partsOf(t))
		}
	} else if box < end {
		a.named(box, box-far)
	}
	a.sendCounts(t, box, n)
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
