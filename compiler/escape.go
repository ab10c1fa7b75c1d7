// SPDX-License-Identifier: Apache-2.0

package compiler

import (
	"go/token"

	"golang.org/x/tools/go/ssa"
)

// escape follows the address of a local variable, or of a block's shared memory. A value of level 0 holds the address itself, one of level n is
// behind n pointers. Whatever might keep the address longer than the variable lives is an escape: device code has
// nowhere to put such a variable.
type escape struct {
	home     ssa.Instruction
	loops    map[*ssa.BasicBlock][]*ssa.BasicBlock // of home's function: blocks of the loop with that header
	seen     map[leveled]bool
	returned map[returnKey]bool
	why      string
	pos      token.Pos
}

type leveled struct {
	v     ssa.Value
	level int
}

type returnKey struct {
	f     *ssa.Function
	level int
}

// maxLevel is how many pointers deep an address is followed.
const maxLevel = 3

// escapes says how the address that a makes could outlive it, and where; "" when it cannot.
func escapes(a interface {
	ssa.Value
	ssa.Instruction
}) (string, token.Pos) {
	x := &escape{home: a, loops: loopsOf(a.Parent()), seen: map[leveled]bool{}, returned: map[returnKey]bool{}}
	x.flow(a, 0)
	return x.why, x.pos
}

func (x *escape) fail(why string, pos token.Pos) {
	if x.why == "" {
		x.why, x.pos = why, pos
	}
}

// flow follows all uses of v.
func (x *escape) flow(v ssa.Value, level int) {
	k := leveled{v, level}
	if x.seen[k] || x.why != "" || v.Referrers() == nil {
		return
	}
	x.seen[k] = true
	if level > maxLevel {
		x.fail("its address is kept behind more pointers than are followed", v.Pos())
		return
	}
	for _, r := range *v.Referrers() {
		x.use(v, level, r)
	}
}

func (x *escape) use(v ssa.Value, level int, r ssa.Instruction) {
	switch r := r.(type) {
	case *ssa.Store:
		if r.Val == v && hasPointer(v.Type()) {
			x.kept(r, level)
		}
	case *ssa.UnOp:
		if r.Op == token.MUL && level > 0 && hasPointer(r.Type()) {
			x.flow(r, level-1)
		}
	case *ssa.Phi:
		if level == 0 && x.carried(r) {
			x.fail("its address is kept from one round of a loop to the next", r.Pos())
			return
		}
		x.flow(r, level)
	case *ssa.FieldAddr, *ssa.IndexAddr, *ssa.ChangeType, *ssa.Convert, *ssa.Slice, *ssa.SliceToArrayPointer:
		x.flow(r.(ssa.Value), level)
	case *ssa.Field, *ssa.Index, *ssa.Extract:
		if hasPointer(r.(ssa.Value).Type()) {
			x.flow(r.(ssa.Value), level)
		}
	case *ssa.Return:
		if r.Parent() == x.home.Parent() || r.Parent().Parent() != nil { // a closure may be called from anywhere
			x.fail("its address is returned", r.Pos())
		} else {
			x.returned[returnKey{r.Parent(), level}] = true
		}
	case *ssa.MakeClosure:
		for i, b := range r.Bindings {
			if b == v {
				x.flow(r.Fn.(*ssa.Function).FreeVars[i], level)
			}
		}
	case *ssa.Call:
		x.call(v, level, r)
	}
}

// kept is a store of an address.
func (x *escape) kept(r *ssa.Store, level int) {
	holder, ok := root(r.Addr).(*ssa.Alloc)
	switch {
	case !ok:
		x.fail("its address is stored", r.Pos())
	case holder.Parent() == x.home.Parent() && level == 0 && x.outlives(holder):
		x.fail("its address is kept from one round of a loop to the next", r.Pos())
	default:
		x.flow(holder, level+1)
	}
}

// call follows an argument into the callee, and what comes back.
func (x *escape) call(v ssa.Value, level int, r *ssa.Call) {
	c := r.Common()
	callee := c.StaticCallee()
	if callee == nil {
		if b, ok := c.Value.(*ssa.Builtin); ok && (b.Name() == "Add" || b.Name() == "Slice" || b.Name() == "SliceData" || b.Name() == "ssa:wrapnilchk") {
			x.flow(r, level)
		} else if !ok && c.Value != v {
			x.fail("its address is passed to a function that is a parameter", r.Pos())
		}
		return
	}
	if name := intrinsicName(callee); name != "" {
		switch {
		case name == "Ptr.Store" && len(c.Args) > 1 && c.Args[1] == v && hasPointer(v.Type()):
			x.fail("its address is stored", r.Pos())
		case name == "Ptr.Load":
			if level > 0 && hasPointer(r.Type()) {
				x.flow(r, level-1)
			}
		case hasPointer(r.Type()):
			x.flow(r, level)
		}
		return
	}
	for i, a := range c.Args {
		if a != v || i >= len(callee.Params) {
			continue
		}
		x.flow(callee.Params[i], level)
	}
	for l := range maxLevel + 1 {
		if x.returned[returnKey{callee, l}] && hasPointer(r.Type()) {
			x.flow(r, l)
		}
	}
}

// root is the variable that an address lies in.
func root(v ssa.Value) ssa.Value {
	switch x := v.(type) {
	case *ssa.FieldAddr:
		return root(x.X)
	case *ssa.IndexAddr:
		return root(x.X)
	}
	return v
}

// carried says whether a phi may hold the address of an earlier round's variable.
func (x *escape) carried(p *ssa.Phi) bool {
	if p.Parent() != x.home.Parent() {
		return false
	}
	for _, body := range x.loops {
		if contains(body, x.home.Block()) && contains(body, p.Block()) && x.header(p.Block()) {
			return true
		}
	}
	return false
}

func (x *escape) header(b *ssa.BasicBlock) bool { return x.loops[b] != nil }

// outlives says whether holder is declared outside of a loop that the variable is declared in.
func (x *escape) outlives(holder *ssa.Alloc) bool {
	for _, body := range x.loops {
		if contains(body, x.home.Block()) && !contains(body, holder.Block()) {
			return true
		}
	}
	return false
}

func contains(blocks []*ssa.BasicBlock, b *ssa.BasicBlock) bool {
	for _, x := range blocks {
		if x == b {
			return true
		}
	}
	return false
}

// loopsOf is the natural loops of a function, by header.
func loopsOf(f *ssa.Function) map[*ssa.BasicBlock][]*ssa.BasicBlock {
	loops := map[*ssa.BasicBlock][]*ssa.BasicBlock{}
	for _, b := range f.Blocks {
		for _, h := range b.Succs {
			if !h.Dominates(b) {
				continue
			}
			body := append(loops[h], h)
			for work := []*ssa.BasicBlock{b}; len(work) > 0; {
				x := work[len(work)-1]
				work = work[:len(work)-1]
				if !contains(body, x) {
					body = append(body, x)
					work = append(work, x.Preds...)
				}
			}
			loops[h] = body
		}
	}
	return loops
}
