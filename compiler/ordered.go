// SPDX-License-Identifier: Apache-2.0

package compiler

import (
	"fmt"
	"go/constant"
	"go/types"
	"slices"

	"golang.org/x/tools/go/ssa"
)

// Ordered operations are inline PTX that clobbers memory: LLVM 19 has no acquire or release for this target (it gives up
// on them), and drops the order and scope of some atomics without a word. Addresses are generic: they may be those of a
// gpu.Shared. global.go names the space where it is proved.

// The orders of package gpu, by value, as PTX has them. A phased store orders nothing on a GPU.
const (
	relaxed = iota
	acquire
	release
	acqRel
	phased
)

var (
	orderNames = []string{"gpu.Relaxed", "gpu.Acquire", "gpu.Release", "gpu.AcqRel", "gpu.Phased"}
	orders     = []string{"relaxed", "acquire", "release", "acq_rel", "relaxed"}
	// PTX has no scope of one thread: the block's is the narrowest.
	scopes = []string{"cta", "cta", "gpu", "sys"}
)

// order is ".order.scope" for the call's arguments at i and i+1; ok is false when it was refused.
func (e *emitter) order(in *ssa.Call, i int, accepted ...int) (text string, ok bool) {
	o, ok1 := e.level(in, i, "order", len(orders))
	s, ok2 := e.level(in, i+1, "scope", len(scopes))
	if !ok1 || !ok2 {
		return "", false
	}
	if !slices.Contains(accepted, o) {
		var names []string
		for _, a := range accepted {
			names = append(names, orderNames[a])
		}
		e.errorf(in.Pos(), "gpu.%s with order %s: accepted are %v", in.Common().StaticCallee().Object().Name(), orderNames[o], names)
		return "", false
	}
	return "." + orders[o] + "." + scopes[s], true
}

// level reads an order or a scope, which is part of the instruction.
func (e *emitter) level(in *ssa.Call, i int, what string, n int) (int, bool) {
	c := e.constOf(in.Common().Args[i])
	if c == nil {
		e.errorf(in.Pos(), "the %s of gpu.%s is not a constant: it is part of the instruction; write it at the call, or pass a constant down to here",
			what, in.Common().StaticCallee().Object().Name())
		return 0, false
	}
	v, exact := constant.Int64Val(c.Value)
	if !exact || v < 0 || v >= int64(n) {
		e.errorf(in.Pos(), "%s %d: accepted are those that package gpu names", what, v)
		return 0, false
	}
	return int(v), true
}

// word is a Word's LLVM type, its PTX type and its register class.
func word(t types.Type) (llt, ptx, class string) {
	switch llt := memType(t); llt {
	case "i64":
		return llt, "u64", "l"
	case "float":
		return llt, "f32", "f"
	default:
		return llt, "u32", "r"
	}
}

func (e *emitter) orderedLoad(in *ssa.Call, f *ssa.Function) string {
	o, ok := e.order(in, 1, relaxed, acquire)
	if !ok {
		return "zeroinitializer"
	}
	llt, t, c := word(element(f))
	return e.ins(`call %s asm sideeffect "ld%s.%s $0, [$1];", "=%s,l,~{memory}"(ptr %s) #3`, llt, o, t, c, e.behind(in, sizes.Sizeof(element(f))))
}

func (e *emitter) orderedStore(in *ssa.Call, f *ssa.Function) string {
	if o, ok := e.order(in, 2, relaxed, release, phased); ok {
		llt, t, c := word(element(f))
		e.line(`call void asm sideeffect "st%s.%s [$0], $1;", "l,%s,~{memory}"(ptr %s, %s %s) #3`, o, t, c, e.behind(in, sizes.Sizeof(element(f))), llt, e.arg(in, 1))
	}
	return ""
}

// atomic is a read-modify-write with one operand; red is its form without a result, when there is one.
func (e *emitter) atomic(in *ssa.Call, f *ssa.Function, op, ptx string, red bool) string {
	o, ok := e.order(in, 2, relaxed, acquire, release, acqRel)
	if !ok {
		return "zeroinitializer"
	}
	llt, _, c := word(element(f))
	level, _ := e.level(in, 2, "order", len(orders))
	if red && unused(in) && (level == relaxed || level == release) {
		e.line(`call void asm sideeffect "red%s.%s.%s [$0], $1;", "l,%s,~{memory}"(ptr %s, %s %s) #3`, o, op, ptx, c, e.owned(in, sizes.Sizeof(element(f))), llt, e.arg(in, 1))
		return "zeroinitializer"
	}
	return e.ins(`call %s asm sideeffect "atom%s.%s.%s $0, [$1], $2;", "=%s,l,%s,~{memory}"(ptr %s, %s %s) #3`, llt, o, op, ptx, c, c, e.owned(in, sizes.Sizeof(element(f))), llt, e.arg(in, 1))
}

// unused says whether nobody looks at a call's result.
func unused(in *ssa.Call) bool {
	for _, r := range *in.Referrers() {
		if _, ok := r.(*ssa.DebugRef); !ok {
			return false
		}
	}
	return true
}

func (e *emitter) atomicAdd(in *ssa.Call, f *ssa.Function) string {
	_, t, _ := word(element(f))
	return e.atomic(in, f, "add", t, true)
}

func (e *emitter) atomicMax(in *ssa.Call, f *ssa.Function) string {
	llt, t, _ := word(element(f))
	if !isUnsigned(element(f)) {
		t = fmt.Sprintf("s%d", bits(llt))
	}
	return e.atomic(in, f, "max", t, true)
}

func (e *emitter) atomicExch(in *ssa.Call, f *ssa.Function) string {
	llt, _, _ := word(element(f))
	return e.atomic(in, f, "exch", fmt.Sprintf("b%d", bits(llt)), false)
}

func (e *emitter) atomicCAS(in *ssa.Call, f *ssa.Function) string {
	o, ok := e.order(in, 3, relaxed, acquire, release, acqRel)
	if !ok {
		return "false"
	}
	llt, _, c := word(element(f))
	was := e.ins(`call %s asm sideeffect "atom%s.cas.b%d $0, [$1], $2, $3;", "=%s,l,%s,%s,~{memory}"(ptr %s, %s %s, %s %s) #3`,
		llt, o, bits(llt), c, c, c, e.owned(in, sizes.Sizeof(element(f))), llt, e.arg(in, 1), llt, e.arg(in, 2))
	return e.ins("icmp eq %s %s, %s", llt, was, e.arg(in, 1))
}

// fence: PTX has one kind that is neither weaker than what is asked for nor sequentially consistent.
func (e *emitter) fence(in *ssa.Call, _ *ssa.Function) string {
	_, ok := e.order(in, 0, acquire, release, acqRel)
	if s, _ := e.level(in, 1, "scope", len(scopes)); ok && s > 0 {
		e.line(`call void asm sideeffect "fence.acq_rel.%s;", "~{memory}"() #3`, scopes[s])
	}
	return ""
}
