// SPDX-License-Identifier: Apache-2.0

package compiler

import (
	"strings"

	"golang.org/x/tools/go/ssa"
)

// once is how an access says that it is the only one. What keeps a line out of L1 altogether came with PTX 7.4; before, one
// could say that it goes first.
func (e *emitter) once() string {
	if versions[e.opt.number()] >= 74 {
		return "L1::no_allocate"
	}
	return "cs"
}

// global is the Ptr that a call has first, as an address of global memory.
func (e *emitter) global(in *ssa.Call, align int64) string {
	return e.ins("addrspacecast ptr %s to ptr addrspace(1)", e.behind(in, align))
}

// loadOnce is inline PTX, since LLVM 19 has no such hints. It depends on nothing but its address: nobody writes there.
func (e *emitter) loadOnce(in *ssa.Call, _ *ssa.Function) string {
	hint := "nc." + e.once()
	if e.once() == "cs" {
		hint = "cs.nc"
	}
	return e.four(in, `asm "ld.global.`+hint+`.v4.u32 {$0, $1, $2, $3}, [$4];", "=r,=r,=r,=r,l"`)
}

// loadEarly has an order, the least there is, since ptxas puts off one that has none.
func (e *emitter) loadEarly(in *ssa.Call, _ *ssa.Function) string {
	return e.four(in, `asm sideeffect "ld.relaxed.cta.global.v4.u32 {$0, $1, $2, $3}, [$4];", "=r,=r,=r,=r,l,~{memory}"`)
}

// four is the 16 bytes that inline PTX loads from a call's Ptr.
func (e *emitter) four(in *ssa.Call, asm string) string {
	words := e.ins("call { i32, i32, i32, i32 } %s(ptr addrspace(1) %s) #3", asm, e.global(in, 16))
	agg, llt := "poison", e.memOf(in.Type())
	for i := range 4 {
		agg = e.ins("insertvalue %s %s, i32 %s, %d", llt, agg, e.ins("extractvalue { i32, i32, i32, i32 } %s, %d", words, i), i)
	}
	return agg
}

func (e *emitter) storeOnce(in *ssa.Call, _ *ssa.Function) string {
	p := e.global(in, 16)
	var words []string
	for i := range 4 {
		words = append(words, "i32 "+e.ins("extractvalue %s %s, %d", e.memOf(in.Common().Args[1].Type()), e.arg(in, 1), i))
	}
	e.line(`call void asm sideeffect "st.global.%s.v4.u32 [$0], {$1, $2, $3, $4};", "l,r,r,r,r,~{memory}"(ptr addrspace(1) %s, %s) #3`,
		e.once(), p, strings.Join(words, ", "))
	return ""
}

func (e *emitter) prefetch(in *ssa.Call, _ *ssa.Function) string {
	e.line(`call void asm sideeffect "prefetch.global.L2 [$0];", "l"(ptr addrspace(1) %s) #3`, e.global(in, 1))
	return ""
}

// match is of whole warps, as all that a warp does together.
func (e *emitter) match(in *ssa.Call, _ *ssa.Function) string {
	t := e.typeOf(in.Common().Args[1].Type(), in.Pos())
	e.declare("i32 @llvm.nvvm.match.any.sync.%s(i32, %s) #2", t, t)
	return e.ins("call i32 @llvm.nvvm.match.any.sync.%s(i32 -1, %s %s) #2", t, t, e.arg(in, 1))
}

// elect is an instruction since sm_90; before, the first lane does as well.
func (e *emitter) elect(*ssa.Call, *ssa.Function) string {
	if e.opt.number() < 90 {
		return e.ins("icmp eq i32 %s, 0", e.lane(nil, nil))
	}
	x := e.ins(`call i32 asm sideeffect "{ .reg .pred p; elect.sync _|p, 0xffffffff; selp.u32 $0, 1, 0, p; }", "=r"() #2`)
	return e.ins("trunc i32 %s to i1", x)
}

func (e *emitter) syncWarps(in *ssa.Call, _ *ssa.Function) string {
	id, warps := e.arg(in, 1), e.arg(in, 2)
	if e.opt.Checks {
		e.require(e.ins("icmp ult i32 %s, 15", e.ins("sub i32 %s, 1", id)), "SyncWarps: accepted are barriers 1 to 15")
	}
	e.line(`call void asm sideeffect "bar.sync $0, $1;", "r,r,~{memory}"(i32 %s, i32 %s) #2`, id, e.ins("shl i32 %s, 5", warps))
	return ""
}
