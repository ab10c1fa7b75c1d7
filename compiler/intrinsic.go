// SPDX-License-Identifier: Apache-2.0

package compiler

import (
	"fmt"
	"go/types"

	"golang.org/x/tools/go/ssa"
)

// intrinsicName names a function that is an instruction, or "" for one that is compiled from its source.
func intrinsicName(f *ssa.Function) string {
	if o := f.Origin(); o != nil {
		f = o
	}
	obj, ok := f.Object().(*types.Func)
	if !ok || obj.Pkg() == nil {
		return ""
	}
	name := obj.Name()
	switch path := obj.Pkg().Path(); path {
	case "math", "math/bits":
		return path + "." + name
	case gpuPath:
		if r := obj.Signature().Recv(); r != nil {
			t := r.Type()
			if p, ok := t.(*types.Pointer); ok {
				t = p.Elem()
			}
			name = types.Unalias(t).(*types.Named).Obj().Name() + "." + name
		}
		if _, ok := vocabulary[name]; ok {
			return name
		}
	}
	return ""
}

// vocabulary is the functions of package gpu that are instructions. Its others are compiled from their source.
var vocabulary map[string]func(*emitter, *ssa.Call, *ssa.Function) string

func init() { // sharedOf asks for the names itself, which a plain initialisation may not
	vocabulary = map[string]func(*emitter, *ssa.Call, *ssa.Function) string{
		"Load": (*emitter).orderedLoad, "Store": (*emitter).orderedStore, "Fence": (*emitter).fence,
		"AtomicAdd": (*emitter).atomicAdd, "AtomicMax": (*emitter).atomicMax, "AtomicExch": (*emitter).atomicExch, "AtomicCAS": (*emitter).atomicCAS,

		"Thread.Lane": (*emitter).lane, "Thread.Warp": (*emitter).warp, "Thread.Warps": (*emitter).warps, "Thread.Block": (*emitter).block,
		"Thread.Blocks": (*emitter).blocks, "Thread.Index": (*emitter).threadIndex, "Thread.Threads": (*emitter).threads,
		"Thread.SyncWarp": (*emitter).syncWarp, "Thread.SyncBlock": (*emitter).syncBlock, "Thread.AnyOfBlock": (*emitter).anyOfBlock, "Thread.Clock": (*emitter).clock,
		"Thread.Idle": (*emitter).idle, "Thread.Relax": (*emitter).nothing, "Thread.Wake": (*emitter).nothing,
		"ShflXor": (*emitter).shflXor, "ShflIdx": (*emitter).shflIdx, "Ballot": (*emitter).ballot, "Shared.Of": (*emitter).sharedOf,
		"Match": (*emitter).match, "Elect": (*emitter).elect, "Thread.SyncWarps": (*emitter).syncWarps,

		"Mbarrier.Init": (*emitter).initBarrier, "Mbarrier.Arrive": (*emitter).arrive, "Mbarrier.ArriveExpect": (*emitter).arriveExpect,
		"Mbarrier.TryWait": (*emitter).tryWait, "CopyBulkIn": (*emitter).bulkIn, "CopyBulkOut": (*emitter).bulkOut,
		"FenceBulk": bulk("fence.proxy.async.shared::cta;"), "CommitBulk": bulk("cp.async.bulk.commit_group;"),
		"WaitBulkRead": bulk("cp.async.bulk.wait_group.read 0;"), "WaitBulk": bulk("cp.async.bulk.wait_group 0;"),

		"HasMultimem": (*emitter).hasMultimem, "MultimemStore": (*emitter).multimemStore, "MultimemStore4": (*emitter).multimemStore4,
		"MultimemSum": multimemReduce("add", false, false), "MultimemMin": multimemReduce("min", true, false), "MultimemMax": multimemReduce("max", true, false),
		"MultimemAnd": multimemReduce("and", false, true), "MultimemOr": multimemReduce("or", false, true),

		"BF16x2": convert("i32", "cvt.rn.bf16x2.f32", "r"), "E4M3x2": convert("i16", "cvt.rn.satfinite.e4m3x2.f32", "h"),

		"PtrTo": (*emitter).sameAddress, "Cast": (*emitter).sameAddress, "Ptr.Raw": (*emitter).sameAddress, "PtrOf": (*emitter).ptrOf,
		"Ptr.At": (*emitter).ptrAt, "Ptr.Byte": (*emitter).ptrByte, "Ptr.Load": (*emitter).plainLoad, "Ptr.Store": (*emitter).plainStore,
		"Ptr.IsNil": (*emitter).isNil, "Ptr.Addr": (*emitter).addr, "Slice": (*emitter).sliceOf, "LoadNC": (*emitter).loadNC, "LoadEarly": (*emitter).loadEarly, "LoadOnce": (*emitter).loadOnce, "StoreOnce": (*emitter).storeOnce, "Prefetch": (*emitter).prefetch, "SizeOf": (*emitter).sizeOf,
	}
}

// since is the GPUs that have functions of the vocabulary as instructions, where the oldest have not. For those they are compiled
// from their source.
var since = map[string]int{"BF16x2": 80, "E4M3x2": 89}

// lacks says whether the module's GPU has no such instruction, and notes it.
func (m *module) lacks(name string) bool {
	arch := since[name]
	if arch <= m.opt.number() {
		return false
	}
	m.lacking = append(m.lacking, arch)
	return true
}

// intrinsic writes the instruction; "" when it has no value.
func (e *emitter) intrinsic(in *ssa.Call, f *ssa.Function, name string) string {
	if w := vocabulary[name]; w != nil {
		return w(e, in, f)
	}
	if w := maths[name]; w != nil {
		return w(e, in)
	}
	e.errorf(in.Pos(), "call of %s, which has no instruction: of math and math/bits device code has %s", name, mathNames())
	if t := valType(in.Type()); t == "void" {
		return ""
	}
	return "zeroinitializer"
}

// element is the T of a generic function or type of the vocabulary.
func element(f *ssa.Function) types.Type {
	if a := f.TypeArgs(); len(a) > 0 {
		return a[0]
	}
	r := f.Signature.Recv()
	if r == nil { // a method expression has its receiver first
		r = f.Signature.Params().At(0)
	}
	t := types.Unalias(r.Type())
	if p, ok := t.(*types.Pointer); ok {
		t = types.Unalias(p.Elem())
	}
	return t.(*types.Named).TypeArgs().At(0)
}

func (e *emitter) arg(in *ssa.Call, i int) string { return e.value(in.Common().Args[i]) }

func (e *emitter) nothing(*ssa.Call, *ssa.Function) string { return "" }

func (e *emitter) sameAddress(in *ssa.Call, _ *ssa.Function) string { return e.arg(in, 0) }

func (e *emitter) ptrOf(in *ssa.Call, _ *ssa.Function) string {
	s := e.arg(in, 0)
	none := e.ins("icmp eq i64 %s, 0", e.slicePart(s, 1))
	return e.ins("select i1 %s, ptr null, ptr %s", none, e.slicePart(s, 0))
}

func (e *emitter) sizeOf(_ *ssa.Call, f *ssa.Function) string {
	return fmt.Sprint(sizes.Sizeof(element(f)))
}

// ptrAt has no bounds, as a Ptr has none: it wraps like an address.
func (e *emitter) ptrAt(in *ssa.Call, f *ssa.Function) string {
	return e.ins("getelementptr [%d x i8], ptr %s, i64 %s", sizes.Sizeof(element(f)), e.arg(in, 0), e.index64(in.Common().Args[1]))
}

func (e *emitter) ptrByte(in *ssa.Call, _ *ssa.Function) string {
	return e.ins("getelementptr i8, ptr %s, i64 %s", e.arg(in, 0), e.arg(in, 1))
}

func (e *emitter) plainLoad(in *ssa.Call, f *ssa.Function) string {
	return e.load(e.behind(in, alignOf(element(f))), element(f), alignOf(element(f)))
}

func (e *emitter) plainStore(in *ssa.Call, f *ssa.Function) string {
	e.store(e.behind(in, alignOf(element(f))), e.arg(in, 1), element(f), alignOf(element(f)))
	return ""
}

// loadNC may come from a cache that is not coherent: an invariant load of global memory.
func (e *emitter) loadNC(in *ssa.Call, _ *ssa.Function) string {
	align := alignOf(in.Type())
	return e.loadVector("ptr addrspace(1) "+e.global(in, align), in.Type(), vector(in.Type()), align, ", !invariant.load "+e.empty())
}

// empty is an empty metadata node.
func (m *module) empty() string {
	if id, ok := m.files["\x00empty"]; ok {
		return id
	}
	id := m.md("!{}")
	m.files["\x00empty"] = id
	return id
}

func (e *emitter) isNil(in *ssa.Call, _ *ssa.Function) string {
	return e.ins("icmp eq ptr %s, null", e.arg(in, 0))
}

func (e *emitter) addr(in *ssa.Call, _ *ssa.Function) string {
	return e.ins("ptrtoint ptr %s to i64", e.arg(in, 0))
}

func (e *emitter) sliceOf(in *ssa.Call, _ *ssa.Function) string {
	n := e.index64(in.Common().Args[1])
	return e.slice(e.arg(in, 0), n, n)
}
