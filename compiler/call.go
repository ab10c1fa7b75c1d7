// SPDX-License-Identifier: Apache-2.0

package compiler

import (
	"fmt"
	"go/types"
	"strings"

	"golang.org/x/tools/go/ssa"
)

// closure is a function value that is known at compile time, with what it captured.
type closure struct {
	fn      *ssa.Function
	env     string // an LLVM struct of it
	envType string
}

// function is the function that v is known to be, nil when it is not known.
func (e *emitter) function(v ssa.Value) *closure {
	if c := e.funcs[v]; c != nil {
		return c
	}
	if f, ok := v.(*ssa.Function); ok {
		return &closure{f, "zeroinitializer", "{}"}
	}
	return nil
}

func (e *emitter) closure(in *ssa.MakeClosure) {
	var ts []string
	for _, b := range in.Bindings {
		if e.function(b) != nil {
			e.errorf(in.Pos(), "a closure that captures a function in device code: pass the function as an argument")
			return
		}
		ts = append(ts, e.typeOf(b.Type(), in.Pos()))
	}
	c := &closure{in.Fn.(*ssa.Function), "poison", group(ts)}
	for i, b := range in.Bindings {
		c.env = e.ins("insertvalue %s %s, %s %s, %d", c.envType, c.env, ts[i], e.value(b), i)
	}
	e.funcs[in] = c
}

// call writes a call; "" when it has no value.
func (e *emitter) call(in *ssa.Call) string {
	c := in.Common()
	if b, ok := c.Value.(*ssa.Builtin); ok {
		return e.builtin(in, b)
	}
	if c.IsInvoke() {
		e.errorf(in.Pos(), "a call of %s through an interface in device code: use a concrete type or a type parameter", c.Method.Name())
		return "zeroinitializer"
	}
	target := e.function(c.Value)
	if target == nil {
		e.errorf(in.Pos(), "a call of a function that is not known at compile time: call it by name, or pass it to a function that is called directly")
		return "zeroinitializer"
	}
	if name := intrinsicName(target.fn); name != "" && !e.lacks(name) {
		return e.intrinsic(in, target.fn, name)
	}
	if e.recursive(target.fn) {
		e.errorf(in.Pos(), "a recursive call of %s in device code: write a loop", target.fn.Name())
		return "zeroinitializer"
	}
	return e.direct(in, target)
}

// recursive says whether fn is on the way to here.
func (e *emitter) recursive(fn *ssa.Function) bool {
	for s := e.s; ; {
		if s.fn == fn {
			return true
		}
		u := e.units[s]
		if u == nil {
			return false
		}
		s = u.caller
	}
}

// direct is a call of a function that is compiled for what is known of its arguments.
func (e *emitter) direct(in *ssa.Call, target *closure) string {
	fn := target.fn
	k := known{map[*ssa.Parameter]*closure{}, map[*ssa.Parameter]*ssa.Const{}}
	var args, keys []string
	for i, a := range in.Common().Args {
		if f := e.function(a); f != nil && i < len(fn.Params) {
			k.funcs[fn.Params[i]] = f
			keys = append(keys, fmt.Sprintf("%d=%p", i, f.fn))
			args = append(args, f.envType+" "+f.env)
			continue
		}
		if c := e.constOf(a); c != nil && i < len(fn.Params) && (isGPU(a.Type(), "Order") || isGPU(a.Type(), "Scope")) {
			k.consts[fn.Params[i]] = c
			keys = append(keys, fmt.Sprintf("%d=%s", i, c.Value))
		}
		args = append(args, e.typeOf(a.Type(), in.Pos())+" "+e.value(a))
	}
	for i, v := range fn.FreeVars {
		args = append(args, e.typeOf(v.Type(), in.Pos())+" "+e.ins("extractvalue %s %s, %d", target.envType, target.env, i))
	}
	name := e.ref(spec{fn, strings.Join(keys, ",")}, k, e.s, in.Pos())
	return e.called(in, fn.Signature, name, args)
}

// constOf is the constant that v is, also by what is known of the arguments.
func (e *emitter) constOf(v ssa.Value) *ssa.Const {
	switch v := v.(type) {
	case *ssa.Const:
		return v
	case *ssa.Parameter:
		return e.known.consts[v]
	}
	return nil
}

func (e *emitter) builtin(in *ssa.Call, b *ssa.Builtin) string {
	a := in.Common().Args
	switch b.Name() {
	case "len", "cap":
		if _, ok := a[0].Type().Underlying().(*types.Slice); ok {
			return e.slicePart(e.value(a[0]), map[string]int{"len": 1, "cap": 2}[b.Name()])
		}
	case "min", "max":
		return e.minmax(in, b.Name())
	case "copy":
		if s, ok := a[1].Type().Underlying().(*types.Slice); ok {
			if hasPointer(s.Elem()) { // the addresses would not be followed (escape.go)
				e.errorf(in.Pos(), "copy of a %s, whose elements hold addresses, in device code: write a loop", s)
			}
			return e.copySlice(a[0], a[1])
		}
	case "Add": // of unsafe
		return e.ins("getelementptr i8, ptr %s, i64 %s", e.value(a[0]), e.index64(a[1]))
	case "Slice":
		n := e.index64(a[1])
		return e.slice(e.value(a[0]), n, n)
	case "SliceData":
		return e.slicePart(e.value(a[0]), 0)
	case "ssa:wrapnilchk":
		return e.value(a[0])
	case "append":
		e.errorf(in.Pos(), "append in device code, which has no heap: use an array and a count")
		return "zeroinitializer"
	case "print", "println":
		e.errorf(in.Pos(), "%s in device code: leave what is to be said in memory for the host", b.Name())
		return ""
	case "clear":
		e.errorf(in.Pos(), "clear in device code: write a loop, or assign an array of zeros")
		return ""
	case "complex", "real", "imag":
		e.errorf(in.Pos(), "complex numbers in device code: use two floats")
		return "zeroinitializer"
	case "recover":
		e.errorf(in.Pos(), "recover in device code: a kernel that panics is over")
		return "zeroinitializer"
	}
	t := in.Type()
	if len(a) > 0 {
		t = a[0].Type()
	}
	e.errorf(in.Pos(), "%s of a %s in device code%s", b.Name(), t, insteadOfType(t))
	return "zeroinitializer"
}

// minmax: NaN wins and -0 is less than 0, as Go's builtins have it.
func (e *emitter) minmax(in *ssa.Call, name string) string {
	t := e.typeOf(in.Type(), in.Pos())
	f := map[bool]string{true: "u", false: "s"}[isUnsigned(in.Type())] + name + "." + t
	switch t {
	case "float":
		f = name + "imum.f32"
	case "double":
		f = name + "imum.f64"
	}
	e.declare("%s @llvm.%s(%s, %s)", t, f, t, t)
	a := in.Common().Args
	x := e.value(a[0])
	for _, y := range a[1:] {
		x = e.ins("call %s @llvm.%s(%s %s, %s %s)", t, f, t, x, t, e.value(y))
	}
	return x
}

func (e *emitter) copySlice(to, from ssa.Value) string {
	d, s := e.value(to), e.value(from)
	size := sizes.Sizeof(to.Type().Underlying().(*types.Slice).Elem())
	e.declare("i64 @llvm.smin.i64(i64, i64)")
	e.declare("void @llvm.memmove.p0.p0.i64(ptr, ptr, i64, i1)")
	n := e.ins("call i64 @llvm.smin.i64(i64 %s, i64 %s)", e.slicePart(d, 1), e.slicePart(s, 1))
	e.line("call void @llvm.memmove.p0.p0.i64(ptr %s, ptr %s, i64 %s, i1 false)", e.slicePart(d, 0), e.slicePart(s, 0), e.ins("mul i64 %s, %d", n, size))
	return n
}
