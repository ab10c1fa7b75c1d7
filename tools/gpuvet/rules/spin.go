// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"go/token"

	"golang.org/x/tools/go/ssa"
)

// quiet are the functions of the vocabulary that write nothing that a loop could wait for.
var quiet = map[string]bool{
	"Ptr.Load": true, "Ptr.At": true, "Ptr.Byte": true, "Ptr.Raw": true, "Ptr.IsNil": true, "Ptr.Addr": true, "PtrTo": true, "Cast": true, "Slice": true,
	"LoadNC": true, "LoadEarly": true, "LoadOnce": true, "Prefetch": true, "SizeOf": true, "Load": true, "Fence": true, "Thread.Clock": true, "Thread.Idle": true, "Thread.Relax": true, "Thread.Lane": true,
	"Thread.Warp": true, "Thread.Index": true,
}

// spins finds loops one of whose ends hangs on plain loads alone, of addresses that do not change, where the loop itself
// writes nothing: only another thread can bring that end.
func (c *checker) spins(f *ssa.Function) {
	for _, body := range loopsOf(f) {
		in := map[*ssa.BasicBlock]bool{}
		for _, b := range body {
			in[b] = true
		}
		changed, far := stored(body)
		if far {
			continue
		}
		for _, b := range body {
			branch, ok := b.Instrs[len(b.Instrs)-1].(*ssa.If)
			if !ok || in[b.Succs[0]] && in[b.Succs[1]] {
				continue
			}
			if load, fixed := plain(branch.Cond, in, changed); fixed && load != nil {
				c.report(load.Pos(), "a loop that waits by a plain load: it may be loaded once and for all, and orders nothing; use gpu.Load with gpu.Acquire")
			}
		}
	}
}

// stored are the local variables that a loop stores to; far, whether it may change other memory, that it may look at.
func stored(body []*ssa.BasicBlock) (changed map[ssa.Value]bool, far bool) {
	changed = map[ssa.Value]bool{}
	for _, b := range body {
		for _, in := range b.Instrs {
			switch in := in.(type) {
			case *ssa.Store:
				to := base(in.Addr)
				changed[to] = true
				if o, _ := step(to); o.kind != local {
					far = true
				}
			case *ssa.Call:
				if !quiet[word(in)] {
					far = true
				}
			}
		}
	}
	return changed, far
}

// base is the variable that an address lies in.
func base(v ssa.Value) ssa.Value {
	switch x := v.(type) {
	case *ssa.FieldAddr:
		return base(x.X)
	case *ssa.IndexAddr:
		return base(x.X)
	}
	return v
}

// plain is a plain load that v hangs on, nil for none; fixed says that v changes with nothing that the loop does. changed are
// the variables that it stores to.
func plain(v ssa.Value, in map[*ssa.BasicBlock]bool, changed map[ssa.Value]bool) (load ssa.Instruction, fixed bool) {
	i, ok := v.(ssa.Instruction)
	if !ok || !in[i.Block()] {
		return nil, true // from before the loop
	}
	switch x := v.(type) {
	case *ssa.Phi:
		return nil, false
	case *ssa.UnOp:
		if x.Op == token.MUL {
			from := base(x.X)
			if changed[from] {
				return nil, false
			}
			if o, _ := step(from); o.kind == local {
				return nil, true
			}
			load = x
		}
	case *ssa.Call:
		switch word(x) {
		case "Ptr.Load", "LoadNC", "LoadEarly", "LoadOnce":
			load = x
		case "Ptr.At", "Ptr.Byte", "Ptr.Raw", "Ptr.IsNil", "Ptr.Addr", "PtrTo", "Cast", "Slice", "SizeOf", "Thread.Lane", "Thread.Warp", "Thread.Index":
		default:
			return nil, false
		}
	}
	for _, op := range i.Operands(nil) {
		if *op == nil {
			continue
		}
		below, ok := plain(*op, in, changed)
		if !ok {
			return nil, false
		}
		if load == nil {
			load = below
		}
	}
	return load, true
}

// loopsOf are the natural loops of a function, by their heads.
func loopsOf(f *ssa.Function) map[*ssa.BasicBlock][]*ssa.BasicBlock {
	loops := map[*ssa.BasicBlock][]*ssa.BasicBlock{}
	for _, b := range f.Blocks {
		for _, head := range b.Succs {
			if !head.Dominates(b) {
				continue
			}
			in := map[*ssa.BasicBlock]bool{head: true}
			for work := []*ssa.BasicBlock{b}; len(work) > 0; {
				x := work[len(work)-1]
				work = work[:len(work)-1]
				if !in[x] {
					in[x] = true
					work = append(work, x.Preds...)
				}
			}
			for x := range in {
				loops[head] = append(loops[head], x)
			}
		}
	}
	return loops
}
