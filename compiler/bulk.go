// SPDX-License-Identifier: Apache-2.0

package compiler

import (
	"fmt"

	"golang.org/x/tools/go/ssa"
)

// The copy unit and the barriers that it arrives at, as inline PTX of ISA 8.0. Their addresses are of one space: shared
// memory of the block, or global memory.

// since refuses what the package's architecture does not have.
func (e *emitter) since(in *ssa.Call, arch int) {
	if e.opt.number() < arch {
		e.errorf(in.Pos(), "gpu.%s needs sm_%d, and the package is compiled for %s: write //gpu:arch sm_%d in it",
			intrinsicName(in.Common().StaticCallee()), arch, e.opt.Arch, arch)
	}
}

// space is a call's argument as an address of a space, 1 for global memory and 3 for shared.
func (e *emitter) space(in *ssa.Call, i, space int) string {
	return fmt.Sprintf("ptr addrspace(%d) %s", space, e.ins("addrspacecast ptr %s to ptr addrspace(%d)", e.arg(in, i), space))
}

// initBarrier also tells the copy unit.
func (e *emitter) initBarrier(in *ssa.Call, _ *ssa.Function) string {
	e.since(in, 90)
	e.line(`call void asm sideeffect "mbarrier.init.shared.b64 [$0], $1; fence.proxy.async.shared::cta;", "l,r,~{memory}"(%s, i32 %s) #3`,
		e.space(in, 0, 3), e.arg(in, 2))
	return ""
}

func (e *emitter) arrive(in *ssa.Call, _ *ssa.Function) string {
	e.since(in, 90)
	e.line(`call void asm sideeffect "{ .reg .b64 s; mbarrier.arrive.release.cta.shared::cta.b64 s, [$0]; }", "l,~{memory}"(%s) #3`, e.space(in, 0, 3))
	return ""
}

func (e *emitter) arriveExpect(in *ssa.Call, _ *ssa.Function) string {
	e.since(in, 90)
	e.line(`call void asm sideeffect "{ .reg .b64 s; mbarrier.arrive.expect_tx.release.cta.shared::cta.b64 s, [$0], $1; }", "l,r,~{memory}"(%s, i32 %s) #3`,
		e.space(in, 0, 3), e.arg(in, 2))
	return ""
}

func (e *emitter) tryWait(in *ssa.Call, _ *ssa.Function) string {
	e.since(in, 90)
	parity := e.ins("and i32 %s, 1", e.arg(in, 2))
	x := e.ins(`call i32 asm sideeffect "{ .reg .pred p; mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 p, [$1], $2; selp.u32 $0, 1, 0, p; }", "=r,l,r,~{memory}"(%s, i32 %s) #3`,
		e.space(in, 0, 3), parity)
	return e.ins("trunc i32 %s to i1", x)
}

func (e *emitter) bulkIn(in *ssa.Call, _ *ssa.Function) string {
	e.since(in, 90)
	e.sixteens(in)
	e.line(`call void asm sideeffect "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [$0], [$1], $2, [$3];", "l,l,r,l,~{memory}"(%s, %s, i32 %s, %s) #3`,
		e.space(in, 1, 3), e.space(in, 2, 1), e.arg(in, 3), e.space(in, 4, 3))
	return ""
}

func (e *emitter) bulkOut(in *ssa.Call, _ *ssa.Function) string {
	e.since(in, 90)
	e.sixteens(in)
	e.line(`call void asm sideeffect "cp.async.bulk.global.shared::cta.bulk_group [$0], [$1], $2;", "l,l,r,~{memory}"(%s, %s, i32 %s) #3`,
		e.space(in, 1, 1), e.space(in, 2, 3), e.arg(in, 3))
	return ""
}

// sixteens is the check of a bulk copy: its addresses and its bytes.
func (e *emitter) sixteens(in *ssa.Call) {
	if !e.opt.Checks {
		return
	}
	bits := e.ins("or i64 %s, %s", e.ins("ptrtoint ptr %s to i64", e.arg(in, 1)), e.ins("ptrtoint ptr %s to i64", e.arg(in, 2)))
	bits = e.ins("and i64 %s, 15", e.ins("or i64 %s, %s", bits, e.ins("zext i32 %s to i64", e.arg(in, 3))))
	e.require(e.ins("icmp eq i64 %s, 0", bits), "bulk copy: addresses and bytes have to be multiples of 16")
}

// bulk is an instruction without arguments.
func bulk(ptx string) func(*emitter, *ssa.Call, *ssa.Function) string {
	return func(e *emitter, in *ssa.Call, _ *ssa.Function) string {
		e.since(in, 90)
		e.line(`call void asm sideeffect "%s", "~{memory}"() #3`, ptx)
		return ""
	}
}
