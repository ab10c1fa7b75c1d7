// SPDX-License-Identifier: Apache-2.0

package compiler

import (
	"fmt"
	"go/constant"
	"go/types"
	"strconv"
	"strings"

	"golang.org/x/tools/go/ssa"
)

// instr writes one instruction of the function.
func (e *emitter) instr(in ssa.Instruction) {
	if v, ok := in.(ssa.Value); ok && messageOnly(v) {
		return // part of a panic's text, which is taken from the source
	}
	switch in := in.(type) {
	case *ssa.DebugRef, *ssa.RunDefers: // a defer itself is refused
	case *ssa.Alloc:
		e.alloc(in)
	case *ssa.Phi:
		e.names[in] = "%" + in.Name()
		e.phis[len(e.lines)] = in
		e.lines = append(e.lines, "")
	case *ssa.BinOp:
		e.names[in] = e.binop(in)
	case *ssa.UnOp:
		e.names[in] = e.unop(in)
	case *ssa.Convert:
		e.names[in] = e.convert(e.value(in.X), in.X.Type(), in.Type())
	case *ssa.ChangeType:
		if c := e.function(in.X); c != nil {
			e.funcs[in] = c
			return
		}
		e.names[in] = e.value(in.X)
	case *ssa.Call:
		if v := e.call(in); v != "" {
			e.names[in] = v
		}
	case *ssa.Extract:
		t := e.typeOf(in.Tuple.Type(), in.Pos())
		e.names[in] = e.ins("extractvalue %s %s, %d", t, e.value(in.Tuple), in.Index)
	case *ssa.Field:
		e.names[in] = e.field(in)
	case *ssa.FieldAddr:
		s := in.X.Type().Underlying().(*types.Pointer).Elem().Underlying().(*types.Struct)
		e.names[in] = e.gep(e.pointer(in.X), fieldOffset(s, in.Field))
	case *ssa.IndexAddr:
		e.names[in] = e.indexAddr(in)
	case *ssa.Index:
		e.names[in] = e.index(in)
	case *ssa.Slice:
		e.names[in] = e.reslice(in)
	case *ssa.SliceToArrayPointer:
		s := e.value(in.X)
		if n := in.Type().Underlying().(*types.Pointer).Elem().Underlying().(*types.Array).Len(); e.opt.Checks {
			e.require(e.ins("icmp uge i64 %s, %d", e.slicePart(s, 1), n), "slice is shorter than the array")
		}
		e.names[in] = e.slicePart(s, 0)
	case *ssa.Store:
		e.storeTo(in)
	case *ssa.MakeClosure:
		e.closure(in)
	default:
		e.control(in)
	}
}

// control writes jumps, and refuses what is left.
func (e *emitter) control(in ssa.Instruction) {
	succ := func(i int) string { return blockName(in.Block().Succs[i]) }
	switch in := in.(type) {
	case *ssa.Jump:
		e.line("br label %%%s%s", succ(0), e.back[in.Block()])
	case *ssa.If:
		for i := range 2 {
			if !takes(in.Block(), in.Block().Succs[i]) {
				e.line("br label %%%s%s", succ(1-i), e.back[in.Block()])
				return
			}
		}
		e.line("br i1 %s, label %%%s, label %%%s%s", e.value(in.Cond), succ(0), succ(1), e.back[in.Block()])
	case *ssa.Return:
		e.ret(in)
	case *ssa.Panic:
		e.abort(panicText(in.X))
	default:
		e.refuse(in)
	}
}

// alloc is a variable whose address is taken. It is cleared where it is declared, each time.
func (e *emitter) alloc(in *ssa.Alloc) {
	t := in.Type().Underlying().(*types.Pointer).Elem()
	e.memOf(t)
	if why, pos := escapes(in); why != "" {
		name := in.Comment
		if name == "" || name == "complit" || name == "new" {
			name = "a value"
		}
		e.errorf(in.Pos(), "%s would have to live on a heap, which device code has none of: %s at %s; return or pass the value itself", name, why, e.position(pos))
	}
	n := e.alloca(sizes.Sizeof(t), max(alignOf(t), 8))
	e.names[in] = n
	e.clear(n, sizes.Sizeof(t), max(alignOf(t), 8))
}

func (e *emitter) storeTo(in *ssa.Store) {
	t := in.Val.Type()
	if e.function(in.Val) != nil {
		e.errorf(in.Pos(), "a function value kept in a variable, in device code: call it, or pass it to a function that is called directly")
		return
	}
	if in.Val == e.byval && e.byval != nil { // the arguments' own variable
		e.storeArgs(e.value(in.Addr), t)
		return
	}
	e.store(e.pointer(in.Addr), e.value(in.Val), t, e.alignOfAddr(t))
}

// alignOfAddr is what may be assumed of a t behind a Go pointer: Go's own alignment.
func (e *emitter) alignOfAddr(t types.Type) int64 { return max(sizes.Alignof(t), 1) }

func (e *emitter) field(in *ssa.Field) string {
	if in.X == e.byval && e.byval != nil {
		s := in.X.Type().Underlying().(*types.Struct)
		return e.loadArgs(fieldOffset(s, in.Field), in.Type())
	}
	return e.fromMem(e.ins("extractvalue %s %s, %d", e.memOf(in.X.Type()), e.value(in.X), in.Field), in.Type())
}

// index64 is an index as 64 bits.
func (e *emitter) index64(v ssa.Value) string {
	t := e.typeOf(v.Type(), v.Pos())
	if _, ok := v.(*ssa.Const); ok || t == "i64" {
		return e.value(v)
	}
	return e.ins("%s %s %s to i64", extension(v.Type()), t, e.value(v))
}

func (e *emitter) indexAddr(in *ssa.IndexAddr) string {
	i := e.index64(in.Index)
	switch u := in.X.Type().Underlying().(type) {
	case *types.Slice:
		s := e.value(in.X)
		e.bound(i, e.slicePart(s, 1))
		return e.elem(e.slicePart(s, 0), i, u.Elem())
	case *types.Pointer:
		a := u.Elem().Underlying().(*types.Array)
		if _, ok := in.Index.(*ssa.Const); !ok {
			e.bound(i, strconv.FormatInt(a.Len(), 10))
		}
		return e.elem(e.pointer(in.X), i, a.Elem())
	}
	e.errorf(in.Pos(), "indexing a %s in device code%s", in.X.Type(), insteadOfType(in.X.Type()))
	return "null"
}

// index is an element of an array that is a value.
func (e *emitter) index(in *ssa.Index) string {
	a, ok := in.X.Type().Underlying().(*types.Array)
	if !ok {
		e.errorf(in.Pos(), "indexing a %s in device code%s", in.X.Type(), insteadOfType(in.X.Type()))
		return "zeroinitializer"
	}
	if c, ok := in.Index.(*ssa.Const); ok {
		return e.fromMem(e.ins("extractvalue %s %s, %s", e.memOf(a), e.value(in.X), e.constant(c)), in.Type())
	}
	p := e.alloca(sizes.Sizeof(a), 16)
	e.store(p, e.value(in.X), a, 16)
	i := e.index64(in.Index)
	e.bound(i, strconv.FormatInt(a.Len(), 10))
	return e.load(e.elem(p, i, a.Elem()), in.Type(), alignOf(in.Type()))
}

func (e *emitter) reslice(in *ssa.Slice) string {
	var p, n, c string
	var elem types.Type
	switch u := in.X.Type().Underlying().(type) {
	case *types.Pointer:
		a := u.Elem().Underlying().(*types.Array)
		elem, p, n = a.Elem(), e.pointer(in.X), strconv.FormatInt(a.Len(), 10)
		c = n
	case *types.Slice:
		s := e.value(in.X)
		elem, p, n, c = u.Elem(), e.slicePart(s, 0), e.slicePart(s, 1), e.slicePart(s, 2)
	default:
		e.errorf(in.Pos(), "slicing a %s in device code%s", in.X.Type(), insteadOfType(in.X.Type()))
		return "zeroinitializer"
	}
	lo := "0"
	if in.Low != nil {
		lo = e.index64(in.Low)
	}
	if in.High != nil {
		n = e.index64(in.High)
	}
	if in.Max != nil {
		c = e.index64(in.Max)
	}
	if e.opt.Checks {
		a, b := e.ins("icmp ule i64 %s, %s", lo, n), e.ins("icmp ule i64 %s, %s", n, c)
		e.require(e.ins("and i1 %s, %s", a, b), "slice bounds out of range")
	}
	return e.slice(e.elem(p, lo, elem), e.ins("sub i64 %s, %s", n, lo), e.ins("sub i64 %s, %s", c, lo))
}

// messageOnly says whether v is used for nothing but the text of a panic.
func messageOnly(v ssa.Value) bool { return messageDepth(v, 8) }

func messageDepth(v ssa.Value, depth int) bool {
	_, isInterface := v.(*ssa.MakeInterface)
	text := isInterface || basicInfo(v.Type())&types.IsString != 0
	refs := v.Referrers()
	if !text || refs == nil || len(*refs) == 0 || depth == 0 {
		return false
	}
	for _, r := range *refs {
		switch r := r.(type) {
		case *ssa.Panic, *ssa.DebugRef:
		case *ssa.MakeInterface, *ssa.BinOp, *ssa.ChangeType:
			if !messageDepth(r.(ssa.Value), depth-1) {
				return false
			}
		default:
			return false
		}
	}
	return true
}

// panicText is the constant parts of a panic's text.
func panicText(v ssa.Value) string {
	switch v := v.(type) {
	case *ssa.MakeInterface:
		return panicText(v.X)
	case *ssa.ChangeType:
		return panicText(v.X)
	case *ssa.BinOp:
		return panicText(v.X) + panicText(v.Y)
	case *ssa.Const:
		if v.Value != nil && v.Value.Kind() == constant.String {
			return constant.StringVal(v.Value)
		}
		if v.Value != nil {
			return v.Value.String()
		}
	}
	return "..."
}

// refuse says what is no device code, and what to write instead.
func (e *emitter) refuse(in ssa.Instruction) {
	what := fmt.Sprintf("%s in device code", strings.TrimPrefix(fmt.Sprintf("%T", in), "*ssa."))
	switch in.(type) {
	case *ssa.Go:
		what = "a go statement in device code: launch more warps"
	case *ssa.Defer:
		what = "defer in device code: write the call where the function returns"
	case *ssa.MakeMap, *ssa.MapUpdate, *ssa.Lookup:
		what = "a map in device code: use an array, or memory behind a gpu.Ptr"
	case *ssa.Range, *ssa.Next:
		what = "a range over a map or string in device code: use an array, or memory behind a gpu.Ptr"
	case *ssa.MakeSlice:
		what = "make in device code, which has no heap: use an array, a gpu.Shared, or memory that the host allocated"
	case *ssa.MakeChan, *ssa.Send, *ssa.Select:
		what = "a channel in device code: use gpu.Store and gpu.Load with an order"
	case *ssa.MakeInterface, *ssa.TypeAssert, *ssa.ChangeInterface:
		what = "an interface in device code: use a concrete type or a type parameter"
	case *ssa.MultiConvert:
		what = "a conversion between type parameters in device code: convert to a concrete type"
	}
	pos := in.Pos()
	if v, ok := in.(ssa.Value); ok {
		if !pos.IsValid() && v.Referrers() != nil {
			for _, r := range *v.Referrers() {
				if !pos.IsValid() {
					pos = r.Pos()
				}
			}
		}
		e.names[v] = "zeroinitializer"
	}
	if _, ok := in.(*ssa.MakeInterface); ok {
		e.minorf(pos, "%s", what)
	} else {
		e.errorf(pos, "%s", what)
	}
}

// insteadOfType says what to use for a type that device code cannot hold.
func insteadOfType(t types.Type) string {
	switch u := t.Underlying().(type) {
	case *types.Map:
		return ": use an array, or memory behind a gpu.Ptr"
	case *types.Chan:
		return ": use gpu.Store and gpu.Load with an order"
	case *types.Interface:
		return ": use a concrete type or a type parameter"
	case *types.Signature:
		return ": call functions directly, or pass them to functions that are called directly"
	case *types.Basic:
		if u.Info()&types.IsString != 0 {
			return ": a string is for panics alone; use numbers"
		}
		if u.Info()&types.IsComplex != 0 {
			return ": use two floats"
		}
	case *types.Tuple:
		for v := range u.Variables() {
			if valType(v.Type()) == "" {
				return insteadOfType(v.Type())
			}
		}
	}
	return ": it has no fixed layout"
}
