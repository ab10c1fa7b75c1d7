// SPDX-License-Identifier: Apache-2.0

package moe

import (
	"context"
	"slices"

	"github.com/doorbell-net/doorbell"
	"github.com/doorbell-net/doorbell/gpu"
)

// Signals are the values of a buffer's signals.
type Signals struct {
	Dispatch [][]uint64 // by set: [local expert*ranks + source], or [source] of PerRank, the sum of what it sent + 1 each time
	Combine  [][]uint64 // by set: [expert], the number of its answers
	Ops      [][2]int   // by set: dispatches and combines so far
}

// Signals reads the buffer's signals when its operations are done: each must be what the routing says.
func (b *Buffer) Signals(ctx context.Context, st *doorbell.Stream) (s Signals, err error) {
	if b.dc == nil {
		return s, closed(b.comm, "signals")
	}
	n, sets, experts := b.lay.boxes*b.lay.ranks, b.lay.sets, b.opt.Experts
	mem, err := b.comm.AllocHost(8 * sets * (n + experts + 1))
	if err != nil {
		return s, err
	}
	defer mem.Free()
	a := LLSignalsArgs{A: b.args(&Received{b: b}), Values: gpu.Cast[uint64](mem.Ptr())}
	if err := doorbell.Launch(st, LLSignalsKernel, doorbell.Grid{Blocks: 1, Warps: 1}, a); err != nil {
		return s, err
	}
	if err := st.Wait(ctx); err != nil {
		return s, err
	}
	v := slices.Clone(gpu.Slice(a.Values, sets*(n+experts+1)))
	for i := range sets {
		s.Dispatch = append(s.Dispatch, v[i*n:(i+1)*n])
		s.Combine = append(s.Combine, v[sets*n+i*experts:sets*n+(i+1)*experts])
		s.Ops = append(s.Ops, [2]int{(int(b.queued.dispatches) + sets - 1 - i) / sets, int(v[sets*(n+experts)+i])})
	}
	return s, nil
}
