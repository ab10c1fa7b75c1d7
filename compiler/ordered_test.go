// SPDX-License-Identifier: Apache-2.0

package compiler

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// TestOrdered: each operation, with each order, scope and type, is exactly the one instruction that PTX has for it.
func TestOrdered(t *testing.T) {
	t.Parallel()
	needLLVM(t)
	order := map[string]string{"Relaxed": "relaxed", "Acquire": "acquire", "Release": "release", "AcqRel": "acq_rel", "Phased": "relaxed"}
	scope := map[string]string{"Thread": "cta", "Block": "cta", "GPU": "gpu", "Sys": "sys"}
	type elem struct{ typ, load, add, max, bits string }
	words := []elem{
		{"uint32", "u32", "u32", "u32", "b32"}, {"int32", "u32", "u32", "s32", "b32"},
		{"uint64", "u64", "u64", "u64", "b64"}, {"int64", "u64", "u64", "s64", "b64"},
		{"float32", "f32", "", "", ""},
	}
	var text strings.Builder
	text.WriteString(head)
	want := map[string]string{}
	kernel := func(w elem, op, o, s, body, instruction string) {
		name := fmt.Sprintf("%s_%s_%s_%s", op, o, s, w.typ)
		fmt.Fprintf(&text, "type A%s struct { P gpu.Ptr[%s]; V %s; Out gpu.Ptr[%s] }\n\n//gpu:kernel\nfunc %s(t gpu.Thread, a A%s) { %s }\n\n",
			name, w.typ, w.typ, w.typ, name, name, fmt.Sprintf(body, "gpu."+o+", gpu.Scope"+s))
		want[name] = instruction
	}
	for _, w := range words {
		for s, ps := range scope {
			for _, o := range []string{"Relaxed", "Acquire"} {
				kernel(w, "Load", o, s, "a.Out.Store(gpu.Load(a.P, %s))", fmt.Sprintf("ld.%s.%s.global.%s", order[o], ps, w.load))
			}
			for _, o := range []string{"Relaxed", "Release", "Phased"} {
				kernel(w, "Store", o, s, "gpu.Store(a.P, a.V, %s)", fmt.Sprintf("st.%s.%s.global.%s", order[o], ps, w.load))
			}
			if w.add == "" {
				continue
			}
			for _, o := range []string{"Relaxed", "Acquire", "Release", "AcqRel"} {
				sem := order[o] + "." + ps + ".global"
				kernel(w, "Add", o, s, "a.Out.Store(gpu.AtomicAdd(a.P, a.V, %s))", "atom."+sem+".add."+w.add)
				kernel(w, "Max", o, s, "a.Out.Store(gpu.AtomicMax(a.P, a.V, %s))", "atom."+sem+".max."+w.max)
				kernel(w, "Exch", o, s, "a.Out.Store(gpu.AtomicExch(a.P, a.V, %s))", "atom."+sem+".exch."+w.bits)
				kernel(w, "CAS", o, s, "if gpu.AtomicCAS(a.P, a.V, a.V+1, %s) { a.Out.Store(a.V) }", "atom."+sem+".cas."+w.bits)
				red := "red."
				if o == "Acquire" || o == "AcqRel" {
					red = "atom."
				}
				kernel(w, "Red", o, s, "gpu.AtomicAdd(a.P, a.V, %s)", red+sem+".add."+w.add)
			}
		}
	}
	for s, ps := range scope {
		for _, o := range []string{"Acquire", "Release", "AcqRel"} {
			instruction := "fence.acq_rel." + ps
			if s == "Thread" {
				instruction = ""
			}
			kernel(words[0], "Fence", o, s, "a.P.Store(1); gpu.Fence(%s); a.Out.Store(2)", instruction)
		}
	}
	p, err := compileText(t, text.String(), Options{})
	if err != nil {
		t.Fatal(err)
	}
	if len(p.Kernels) != len(want) || len(want) < 400 {
		t.Fatalf("%d kernels came of %d", len(p.Kernels), len(want))
	}
	for name, op := range want {
		var ops []string
		if op != "" {
			ops = []string{op}
		}
		if got := orderedOps(bodyOf(t, p, name)); !slices.Equal(got, ops) {
			t.Errorf("%s: %q (want %q)", name, got, ops)
		}
	}
}

// TestOrderedSpaces: what may be shared or local memory is addressed generically.
func TestOrderedSpaces(t *testing.T) {
	t.Parallel()
	needLLVM(t)
	p, err := compileText(t, head+`
type A struct { Out, P gpu.Ptr[uint32]; Q gpu.Ptr[gpu.Ptr[uint32]]; N int32 }

var cell gpu.Shared[[2]uint32]

//gpu:kernel
func Shared(t gpu.Thread, a A) {
	gpu.AtomicAdd(gpu.PtrTo(&cell.Of(t)[1]), 1, gpu.Relaxed, gpu.ScopeBlock)
	t.SyncBlock()
	a.Out.Store(cell.Of(t)[1])
}

//gpu:kernel
func Local(t gpu.Thread, a A) {
	v := uint32(7)
	gpu.Store(gpu.PtrTo(&v), 8, gpu.Relaxed, gpu.ScopeSys)
	a.Out.Store(v)
}

//gpu:kernel
func Either(t gpu.Thread, a A) {
	p := a.P
	if a.N > 3 {
		p = gpu.PtrTo(&cell.Of(t)[0])
	}
	gpu.Store(p, 8, gpu.Relaxed, gpu.ScopeSys)
}

//gpu:kernel
func Behind(t gpu.Thread, a A) {
	p := a.P
	for i := range a.N {
		p = a.Q.At(int(i)).Load().At(int(i))
		gpu.Store(p, 8, gpu.Relaxed, gpu.ScopeSys)
	}
	gpu.Store(p, 9, gpu.Release, gpu.ScopeSys)
}
`, Options{})
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string][]string{
		"Shared": {"red.relaxed.cta.add.u32"},
		"Local":  {"st.relaxed.sys.u32"},
		"Either": {"st.relaxed.sys.u32"},
		"Behind": {"st.relaxed.sys.global.u32", "st.release.sys.global.u32"},
	} {
		got := orderedOps(bodyOf(t, p, name))
		slices.Sort(got)
		if got = slices.Compact(got); !slices.Equal(got, want) { // a loop may be unrolled
			t.Errorf("%s: %q (want %q)", name, got, want)
		}
	}
	if b := bodyOf(t, p, "Shared"); !strings.Contains(b, "ld.shared.u32") {
		t.Errorf("a plain load of a gpu.Shared is not one of shared memory:\n%s", b)
	}
}
