// SPDX-License-Identifier: Apache-2.0

package compiler

import (
	"go/types"
	"strings"
)

// gep is p + off inside one variable.
func (e *emitter) gep(p string, off int64) string {
	if off == 0 {
		return p
	}
	return e.ins("getelementptr inbounds i8, ptr %s, i64 %d", p, off)
}

// elem is the address of element i of a variable of ts at p.
func (e *emitter) elem(p, i string, t types.Type) string {
	return e.ins("getelementptr inbounds [%d x i8], ptr %s, i64 %s", sizes.Sizeof(t), p, i)
}

// load reads a t at p: a vector at once, in variables too, since LLVM may not join its parts again; all else scalar by scalar.
func (e *emitter) load(p string, t types.Type, align int64) string {
	if n := vector(t); n > 0 {
		return e.loadVector("ptr "+p, t, n, align, "")
	}
	llt := e.memOf(t)
	if !isAggregate(llt) {
		return e.fromMem(e.ins("load %s, ptr %s, align %d", llt, p, align), t)
	}
	if llt == "{}" {
		return "zeroinitializer"
	}
	agg := "zeroinitializer"
	for _, l := range leaves(t) {
		m := e.memOf(l.typ)
		x := e.ins("load %s, ptr %s, align %d", m, e.gep(p, l.off), alignAt(align, l.off))
		agg = e.ins("insertvalue %s %s, %s %s, %s", llt, agg, m, x, strings.Join(l.path, ", "))
	}
	return agg
}

func (e *emitter) store(p, v string, t types.Type, align int64) {
	if n := vector(t); n > 0 {
		e.storeVector(p, v, t, n, align)
		return
	}
	llt := e.memOf(t)
	if !isAggregate(llt) {
		e.line("store %s %s, ptr %s, align %d", llt, e.toMem(v, t), p, align)
		return
	}
	if v == "zeroinitializer" {
		e.clear(p, sizes.Sizeof(t), align)
		return
	}
	for _, l := range leaves(t) {
		x := e.ins("extractvalue %s %s, %s", llt, v, strings.Join(l.path, ", "))
		e.line("store %s %s, ptr %s, align %d", e.memOf(l.typ), x, e.gep(p, l.off), alignAt(align, l.off))
	}
}

func (e *emitter) clear(p string, size, align int64) {
	if size > 0 {
		e.declare("void @llvm.memset.p0.i64(ptr, i8, i64, i1)")
		e.line("call void @llvm.memset.p0.i64(ptr align %d %s, i8 0, i64 %d, i1 false)", align, p, size)
	}
}

func (e *emitter) copy(to, from string, size, align int64) {
	e.declare("void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)")
	e.line("call void @llvm.memcpy.p0.p0.i64(ptr align %d %s, ptr align %d %s, i64 %d, i1 false)", align, to, align, from, size)
}

// memOf is memType, reported when there is none.
func (e *emitter) memOf(t types.Type) string {
	if m := memType(t); m != "" {
		return m
	}
	return e.typeOf(t, e.pos)
}

func (e *emitter) fromMem(x string, t types.Type) string {
	if isBool(t) {
		return e.ins("trunc i8 %s to i1", x)
	}
	return x
}

func (e *emitter) toMem(x string, t types.Type) string {
	if isBool(t) {
		return e.ins("zext i1 %s to i8", x)
	}
	return x
}

// vector is how many numbers of 32 bits a t has that is loaded and stored at once; 0 for others.
func vector(t types.Type) int {
	switch {
	case isGPU(t, "U32x4"):
		return 4
	case isGPU(t, "U32x2"):
		return 2
	}
	return 0
}

// loadVector reads at p, with its LLVM type; flags are LLVM's.
func (e *emitter) loadVector(p string, t types.Type, n int, align int64, flags string) string {
	x := e.ins("load <%d x i32>, %s, align %d%s", n, p, align, flags)
	agg, llt := "poison", e.memOf(t)
	for i := range n {
		agg = e.ins("insertvalue %s %s, i32 %s, %d", llt, agg, e.ins("extractelement <%d x i32> %s, i32 %d", n, x, i), i)
	}
	return agg
}

func (e *emitter) storeVector(p, v string, t types.Type, n int, align int64) {
	x := "zeroinitializer"
	if v != x {
		for i := range n {
			s := e.ins("extractvalue %s %s, %d", e.memOf(t), v, i)
			x = e.ins("insertelement <%d x i32> %s, i32 %s, i32 %d", n, x, s, i)
		}
	}
	e.line("store <%d x i32> %s, ptr %s, align %d", n, x, p, align)
}

// slice is a slice value.
func (e *emitter) slice(p, n, c string) string {
	s := e.ins("insertvalue %s poison, ptr %s, 0", sliceType, p)
	s = e.ins("insertvalue %s %s, i64 %s, 1", sliceType, s, n)
	return e.ins("insertvalue %s %s, i64 %s, 2", sliceType, s, c)
}

func (e *emitter) slicePart(s string, i int) string {
	return e.ins("extractvalue %s %s, %d", sliceType, s, i)
}
