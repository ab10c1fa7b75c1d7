// SPDX-License-Identifier: Apache-2.0

package compiler

import (
	"encoding/binary"
	"fmt"
	"go/constant"
	"go/token"
	"go/types"
	"math"
	"strings"

	"golang.org/x/tools/go/ssa"
	"golang.org/x/tools/go/ssa/ssautil"
)

// A package variable that nothing writes, whose elements are constants, is a table: device code has a copy of it in
// constant memory. Lanes that read one element are served at once, others one after another.

// maxTables is the constant memory of a module.
const maxTables = 64 << 10

// table is a package variable's copy, as a generic address.
func (e *emitter) table(g *ssa.Global) string {
	if n := e.tables[g]; n != "" {
		return n
	}
	name := g.RelString(e.f.Package().Pkg)
	bytes, why, pos := e.content(g)
	n := "null"
	if why != "" {
		e.minorf(e.pos, "package variable %s in device code, which is no table of constants: %s at %s; use a constant, an argument, or a gpu.Shared", name, why, e.position(pos))
	} else {
		n = `@"` + strings.ReplaceAll(g.String(), `"`, "") + `"`
		fmt.Fprintf(&e.globals, "%s = internal unnamed_addr addrspace(4) constant [%d x i8] c\"%s\", align 16\n", n, len(bytes), quoted(bytes))
		n = fmt.Sprintf("addrspacecast (ptr addrspace(4) %s to ptr)", n)
		if e.tablesN += (int64(len(bytes)) + 15) &^ 15; e.tablesN > maxTables {
			e.errorf(e.pos, "package variables of the kernels take %d bytes with %s: constant memory has %d", e.tablesN, name, maxTables)
		}
	}
	e.tables[g] = n
	return n
}

// content is what a package variable holds, or why that may change, and where.
func (e *emitter) content(g *ssa.Global) (bytes []byte, why string, pos token.Pos) {
	t := g.Type().Underlying().(*types.Pointer).Elem()
	if !plain(t) {
		return nil, fmt.Sprintf("it is a %s, and integers, floats, bools, and arrays and structs of them are accepted", t), g.Pos()
	}
	if g.Object() == nil || g.Object().Exported() {
		return nil, "it is exported, so another package may write it", g.Pos()
	}
	x := &content{bytes: make([]byte, sizes.Sizeof(t)), init: g.Pkg.Func("init")}
	for f := range ssautil.AllFunctions(g.Pkg.Prog) {
		for _, b := range f.Blocks {
			for _, in := range b.Instrs {
				for _, op := range in.Operands(nil) {
					if *op == g {
						x.use(g, 0, in)
					}
				}
			}
		}
	}
	return x.bytes, x.why, x.pos
}

// content is a package variable's, as its package's init leaves it.
type content struct {
	bytes []byte
	init  *ssa.Function
	why   string
	pos   token.Pos
}

const nowhere = -1 << 40 // an offset that is not known, also with one inside added

// use looks at what an instruction does with the address v of the byte off.
func (x *content) use(v ssa.Value, off int64, in ssa.Instruction) {
	switch in := in.(type) {
	case *ssa.DebugRef:
	case *ssa.UnOp: // a load
	case *ssa.FieldAddr:
		x.inside(in, off+fieldOffset(in.X.Type().Underlying().(*types.Pointer).Elem().Underlying().(*types.Struct), in.Field))
	case *ssa.IndexAddr:
		i, fixed := in.Index.(*ssa.Const)
		if !fixed || in.Parent() != x.init {
			x.inside(in, nowhere) // where, matters to writers alone
			return
		}
		n, _ := constant.Int64Val(i.Value)
		x.inside(in, off+n*sizes.Sizeof(in.Type().Underlying().(*types.Pointer).Elem()))
	case *ssa.Store:
		switch {
		case in.Val == v:
			x.fail("its address is kept", in.Pos())
		case in.Parent() != x.init:
			x.fail("it is written", in.Pos())
		default:
			x.store(off, in)
		}
	default:
		x.fail("its address is taken", in.Pos())
	}
}

func (x *content) inside(v ssa.Value, off int64) {
	for _, r := range *v.Referrers() {
		x.use(v, off, r)
	}
}

// store is one of init's: of a constant, or of a literal, which is made in a variable of its own.
func (x *content) store(off int64, in *ssa.Store) {
	if c, ok := in.Val.(*ssa.Const); ok && off >= 0 {
		x.set(off, c)
		return
	}
	if l, ok := in.Val.(*ssa.UnOp); ok && l.Op == token.MUL && off >= 0 {
		if literal, ok := l.X.(*ssa.Alloc); ok {
			x.inside(literal, off)
			return
		}
	}
	x.fail("it is made of more than constants", in.Pos())
}

// fail keeps the first reason in the order of the source, whatever order functions come in.
func (x *content) fail(why string, pos token.Pos) {
	if x.why == "" || pos.IsValid() && (pos < x.pos || !x.pos.IsValid()) {
		x.why, x.pos = why, pos
	}
}

// set stores a constant, as it lies in memory.
func (x *content) set(off int64, c *ssa.Const) {
	if c.Value == nil {
		return // zero
	}
	b, _ := c.Type().Underlying().(*types.Basic)
	bits := uint64(0)
	switch {
	case c.Value.Kind() == constant.Bool:
		if constant.BoolVal(c.Value) {
			bits = 1
		}
	case b.Kind() == types.Float32:
		f, _ := constant.Float32Val(c.Value)
		bits = uint64(math.Float32bits(f))
	case b.Kind() == types.Float64:
		f, _ := constant.Float64Val(c.Value)
		bits = math.Float64bits(f)
	case b.Info()&types.IsUnsigned != 0:
		bits, _ = constant.Uint64Val(constant.ToInt(c.Value))
	default:
		n, _ := constant.Int64Val(constant.ToInt(c.Value))
		bits = uint64(n)
	}
	word := binary.LittleEndian.AppendUint64(nil, bits)
	copy(x.bytes[off:off+sizes.Sizeof(b)], word)
}

// plain says whether a type is of numbers and bools alone.
func plain(t types.Type) bool {
	switch u := t.Underlying().(type) {
	case *types.Basic:
		return basicType(u) != "" && u.Info()&(types.IsNumeric|types.IsBoolean) != 0
	case *types.Array:
		return plain(u.Elem())
	case *types.Struct:
		for f := range u.Fields() {
			if !plain(f.Type()) {
				return false
			}
		}
		return true
	}
	return false
}
