// SPDX-License-Identifier: Apache-2.0

package compiler

import (
	"fmt"
	"strings"

	"golang.org/x/tools/go/ssa"
)

// Grids and blocks have one dimension, and a block is whole warps: so a thread's number gives its warp and lane.

func (e *emitter) special(reg string) string {
	e.declare("i32 @llvm.nvvm.read.ptx.sreg.%s()", reg)
	return e.ins("call i32 @llvm.nvvm.read.ptx.sreg.%s()", reg)
}

func (e *emitter) lane(*ssa.Call, *ssa.Function) string {
	return e.ins("and i32 %s, 31", e.special("tid.x"))
}

func (e *emitter) warp(*ssa.Call, *ssa.Function) string {
	return e.ins("lshr i32 %s, 5", e.special("tid.x"))
}

func (e *emitter) warps(*ssa.Call, *ssa.Function) string {
	return e.ins("lshr i32 %s, 5", e.special("ntid.x"))
}

func (e *emitter) block(*ssa.Call, *ssa.Function) string { return e.special("ctaid.x") }

func (e *emitter) blocks(*ssa.Call, *ssa.Function) string { return e.special("nctaid.x") }

func (e *emitter) threadIndex(*ssa.Call, *ssa.Function) string { return e.special("tid.x") }

func (e *emitter) threads(*ssa.Call, *ssa.Function) string { return e.special("ntid.x") }

func (e *emitter) syncWarp(*ssa.Call, *ssa.Function) string {
	e.line(`call void asm sideeffect "bar.warp.sync 0xffffffff;", "~{memory}"() #2`)
	return ""
}

func (e *emitter) syncBlock(*ssa.Call, *ssa.Function) string {
	e.line(`call void asm sideeffect "bar.sync 0;", "~{memory}"() #2`)
	return ""
}

func (e *emitter) anyOfBlock(in *ssa.Call, _ *ssa.Function) string {
	v := e.ins("zext i1 %s to i32", e.arg(in, 1))
	any := e.ins(`call i32 asm sideeffect "{ .reg .pred p, q; setp.ne.u32 p, $1, 0; bar.red.or.pred q, 0, p; selp.u32 $0, 1, 0, q; }", "=r,r,~{memory}"(i32 %s) #2`, v)
	return e.ins("trunc i32 %s to i1", any)
}

// clock is nanoseconds, the same on all of a device's threads.
func (e *emitter) clock(*ssa.Call, *ssa.Function) string {
	return e.ins(`call i64 asm sideeffect "mov.u64 $0, %%globaltimer;", "=l,~{memory}"() #3`)
}

// idle sleeps from 32 ns in the first round to 1 us, and for a 128th of what was waited, 65 us at most. It moves nothing.
func (e *emitter) idle(in *ssa.Call, _ *ssa.Function) string {
	e.declare("i32 @llvm.umin.i32(i32, i32)")
	e.declare("i64 @llvm.umin.i64(i64, i64)")
	round := e.ins("shl i32 32, %s", e.ins("call i32 @llvm.umin.i32(i32 %s, i32 5)", e.arg(in, 1)))
	part := e.ins("call i64 @llvm.umin.i64(i64 %s, i64 65536)", e.ins("lshr i64 %s, 7", e.arg(in, 2)))
	ns := e.ins("add i32 %s, %s", round, e.ins("trunc i64 %s to i32", part))
	e.line(`call void asm sideeffect "nanosleep.u32 $0;", "r,~{memory}"(i32 %s) #3`, ns)
	return "false"
}

func (e *emitter) shflXor(in *ssa.Call, f *ssa.Function) string { return e.shuffle(in, "bfly") }

func (e *emitter) shflIdx(in *ssa.Call, f *ssa.Function) string { return e.shuffle(in, "idx") }

func (e *emitter) shuffle(in *ssa.Call, mode string) string {
	x, lane, t := e.arg(in, 1), e.arg(in, 2), e.typeOf(in.Type(), in.Pos())
	one := func(t, suffix, v string) string {
		e.declare("%s @llvm.nvvm.shfl.sync.%s.%s(i32, %s, i32, i32) #2", t, mode, suffix, t)
		return e.ins("call %s @llvm.nvvm.shfl.sync.%s.%s(i32 -1, %s %s, i32 %s, i32 31) #2", t, mode, suffix, t, v, lane)
	}
	switch t {
	case "i32":
		return one(t, "i32", x)
	case "float":
		return one(t, "f32", x)
	}
	lo := one("i32", "i32", e.ins("trunc i64 %s to i32", x))
	hi := one("i32", "i32", e.ins("trunc i64 %s to i32", e.ins("lshr i64 %s, 32", x)))
	top := e.ins("shl i64 %s, 32", e.ins("zext i32 %s to i64", hi))
	return e.ins("or i64 %s, %s", top, e.ins("zext i32 %s to i64", lo))
}

func (e *emitter) ballot(in *ssa.Call, _ *ssa.Function) string {
	e.declare("i32 @llvm.nvvm.vote.ballot.sync(i32, i1) #2")
	return e.ins("call i32 @llvm.nvvm.vote.ballot.sync(i32 -1, i1 %s) #2", e.arg(in, 1))
}

// sharedOf is the block's own instance of a package variable.
func (e *emitter) sharedOf(in *ssa.Call, f *ssa.Function) string {
	g, ok := in.Common().Args[0].(*ssa.Global)
	if !ok {
		e.errorf(in.Pos(), "a gpu.Shared that is no package variable: declare it as var name gpu.Shared[T] in the package")
		return "null"
	}
	if why, pos := escapes(in); why != "" {
		e.errorf(in.Pos(), "the address of a gpu.Shared would leave the function: %s at %s; call Of where it is used, and pass the pointer down", why, e.position(pos))
	}
	n := e.shared[g]
	if n == "" {
		size := sizes.Sizeof(element(f))
		n = `@"` + strings.ReplaceAll(g.String(), `"`, "") + `"`
		e.shared[g] = n
		e.sharedN += (size + 15) &^ 15
		fmt.Fprintf(&e.globals, "%s = internal addrspace(3) global [%d x i8] undef, align 16\n", n, size)
	}
	return fmt.Sprintf("addrspacecast (ptr addrspace(3) %s to ptr)", n)
}
