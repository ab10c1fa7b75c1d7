// SPDX-License-Identifier: Apache-2.0

package compiler

import (
	"fmt"
	"go/types"
	"strings"

	"golang.org/x/tools/go/ssa"
)

// Results that are several values, or a struct, are returned through a local variable of the caller. As values, LLVM would
// join those of several returns in one phi, which it never takes apart again: it then knows nothing of the parts, and
// moves none of them out of a loop.

// result is one result of a function, and where it lies in the caller's variable.
type result struct {
	typ types.Type
	off int64
}

// results is the results of a signature that are returned through memory, with its size; nil when they are returned as a value.
func results(sig *types.Signature) ([]result, int64) {
	tuple := sig.Results()
	if t := valType(tuple); t == "" || !isAggregate(t) {
		return nil, 0
	}
	all := make([]result, 0, tuple.Len())
	vars := make([]*types.Var, 0, tuple.Len())
	for v := range tuple.Variables() {
		vars = append(vars, v)
	}
	for i, off := range sizes.Offsetsof(vars) {
		all = append(all, result{vars[i].Type(), off})
	}
	last := all[len(all)-1]
	return all, last.off + sizes.Sizeof(last.typ)
}

// resultAlign is the alignment of a variable for results.
const resultAlign = 16

func (e *emitter) ret(in *ssa.Return) {
	all, _ := results(e.f.Signature)
	switch {
	case len(in.Results) == 0:
		e.line("ret void")
	case all == nil:
		e.line("ret %s %s", e.typeOf(in.Results[0].Type(), in.Pos()), e.value(in.Results[0]))
	default:
		for i, r := range all {
			e.store(e.gep("%results", r.off), e.value(in.Results[i]), r.typ, alignAt(resultAlign, r.off))
		}
		e.line("ret void")
	}
}

// called writes the call of a compiled function and is its value, "" when it has none.
func (e *emitter) called(in *ssa.Call, sig *types.Signature, name string, args []string) string {
	t := e.typeOf(sig.Results(), in.Pos())
	all, size := results(sig)
	switch {
	case t == "void":
		e.line("call void %s(%s) #2", name, strings.Join(args, ", "))
		return ""
	case all == nil:
		return e.ins("call %s %s(%s) #2", t, name, strings.Join(args, ", "))
	}
	p := e.alloca(size, resultAlign)
	e.line("call void %s(%s) #2", name, strings.Join(append([]string{"ptr " + p}, args...), ", "))
	if len(all) == 1 {
		return e.load(p, all[0].typ, resultAlign)
	}
	agg := "poison"
	for i, r := range all {
		x := e.load(e.gep(p, r.off), r.typ, alignAt(resultAlign, r.off))
		agg = e.ins("insertvalue %s %s, %s %s, %d", t, agg, e.typeOf(r.typ, in.Pos()), x, i)
	}
	return agg
}

// signatureOf is the first line of a compiled function; params are those of its arguments.
func (e *emitter) signatureOf(name string, params []string) string {
	t := e.typeOf(e.f.Signature.Results(), e.f.Pos())
	if all, _ := results(e.f.Signature); all != nil {
		t, params = "void", append([]string{"ptr noalias nocapture %results"}, params...)
	}
	return fmt.Sprintf("define internal %s %s(%s) #0", t, name, strings.Join(params, ", "))
}
