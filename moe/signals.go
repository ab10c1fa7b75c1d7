// SPDX-License-Identifier: Apache-2.0

package moe

import (
	"context"

	"github.com/doorbell-net/doorbell"
	"github.com/doorbell-net/doorbell/gpu"
)

// Signals are the values of a buffer's signals.
type Signals struct {
	Dispatch [2][]uint64 // by half: [local expert*ranks + source], the sum of what it sent + 1 each time
	Combine  [2][]uint64 // by half: [expert], the number of its answers
	Ops      [2][2]int   // by half: dispatches and combines so far
}

// Signals reads the buffer's signals when its operations are done: each must be what the routing says.
func (b *Buffer) Signals(ctx context.Context, st *doorbell.Stream) (s Signals, err error) {
	n := b.lay.locals * b.lay.ranks
	mem, err := b.comm.Alloc(8 * (2*n + 2*b.opt.Experts))
	if err != nil {
		return s, err
	}
	defer mem.Free()
	a := LLSignalsArgs{A: b.args(Tokens{}, 0), Values: gpu.Cast[uint64](mem.Ptr())}
	if err := doorbell.Launch(st, LLSignalsKernel, doorbell.Grid{Blocks: 1, Warps: 1}, a); err != nil {
		return s, err
	}
	if err := st.Wait(ctx); err != nil {
		return s, err
	}
	v := append([]uint64(nil), gpu.Slice(a.Values, 2*n+2*b.opt.Experts)...)
	for half := range 2 {
		s.Dispatch[half] = v[half*n : (half+1)*n]
		s.Combine[half] = v[2*n+half*b.opt.Experts : 2*n+(half+1)*b.opt.Experts]
		s.Ops[half] = [2]int{int(b.dispatches+1-uint64(half)) / 2, int(b.combines+1-uint64(half)) / 2}
	}
	return s, nil
}
