// SPDX-License-Identifier: Apache-2.0

package compiler

import (
	"fmt"
	"go/token"

	"golang.org/x/tools/go/ssa"
)

// spins refuses loops that wait by plain loads: a round changes nothing that the next one sees (no loop variable, store
// or call), so that only another thread could end it, and LLVM may read once and spin for ever. That is so of no other
// loop. Those that also do something are not looked into.
func (e *emitter) spins() {
	for _, body := range loopsOf(e.f) {
		var load ssa.Instruction
		plain := true
		for _, b := range body {
			for _, in := range b.Instrs {
				switch in := in.(type) {
				case *ssa.UnOp:
					if _, local := root(in.X).(*ssa.Alloc); in.Op == token.MUL && !local && load == nil {
						load = in
					}
				case *ssa.Call:
					switch name := callee(in); name {
					case "Ptr.Load":
						if load == nil {
							load = in
						}
					case "Ptr.At", "Ptr.Byte", "Ptr.Raw", "Ptr.IsNil", "Ptr.Addr", "PtrTo", "Cast", "Slice":
					default:
						plain = false
					}
				case *ssa.Phi, *ssa.Store:
					plain = false
				}
			}
		}
		if plain && load != nil && e.live[load.Block()] {
			e.errorf(load.Pos(), "a loop that waits by a plain load, which may be read once and for all: use gpu.Load with an order")
		}
	}
}

// callee is the name of the vocabulary's function that is called, "" for another.
func callee(in *ssa.Call) string {
	if f := in.Common().StaticCallee(); f != nil {
		return intrinsicName(f)
	}
	return ""
}

// unrolled is what the branches back to some loops carry: those with a comment, and those that look at memory again and
// again. Such a loop is as fast as the memory: copies of it do no round sooner, and 64 of them, wherever a wait is inlined,
// fill the instruction cache and the driver's compile time (a module of 7 kernels that wait: 3.9 s and 1.2 s without them).
func (e *emitter) unrolled() map[*ssa.BasicBlock]string {
	rounds := e.asked()
	for head, body := range loopsOf(e.f) {
		if rounds[head] == 0 && looks(body) {
			rounds[head] = 1
		}
	}
	back := map[*ssa.BasicBlock]string{}
	nodes := map[*ssa.BasicBlock]string{} // one a loop, on all its branches back, or LLVM takes it from none
	for _, b := range e.f.Blocks {        // in their order: the text is the same each time
		for _, head := range b.Succs {
			n := rounds[head]
			if n == 0 || !e.live[b] || !head.Dominates(b) {
				continue
			}
			if nodes[head] == "" {
				how := `!{!"llvm.loop.unroll.disable"}`
				if n > 1 {
					how = fmt.Sprintf(`!{!"llvm.loop.unroll.count", i32 %d}`, n)
				}
				nodes[head] = fmt.Sprintf("!%d", len(e.meta))
				e.md("distinct !{%s, !%d}", nodes[head], len(e.meta)+1)
				e.md("%s", how)
			}
			back[b] = ", !llvm.loop " + nodes[head]
		}
	}
	return back
}

// looks says whether a loop has an ordered load, or looks at a barrier.
func looks(body []*ssa.BasicBlock) bool {
	for _, b := range body {
		for _, in := range b.Instrs {
			if c, ok := in.(*ssa.Call); ok && (callee(c) == "Load" || callee(c) == "Mbarrier.TryWait") {
				return true
			}
		}
	}
	return false
}
