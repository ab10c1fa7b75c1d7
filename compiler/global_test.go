// SPDX-License-Identifier: Apache-2.0

package compiler

import (
	"strings"
	"testing"
)

// TestToGlobal: an address is named as one of global memory where it comes from arguments or global memory on every way,
// and nowhere else.
func TestToGlobal(t *testing.T) {
	for name, c := range map[string]struct {
		body string
		want bool
	}{
		"argument":         {"%p = load ptr, ptr %args", true},
		"argument, inside": {"%a = getelementptr inbounds i8, ptr %args, i64 8\n  %p = load ptr, ptr %a, align 8", true},
		"behind":           {"%a = load ptr, ptr %args\n  %b = getelementptr [8 x i8], ptr %a, i64 %i\n  %p = load ptr, ptr %b", true},
		"moved":            {"%a = load ptr, ptr %args\n  %p = getelementptr inbounds nuw i8, ptr %a, i64 8", true},
		"the argument":     {"%p = getelementptr inbounds i8, ptr %args, i64 8", false},
		"local":            {"%p = alloca [8 x i8], align 8", false},
		"behind local":     {"%a = alloca [8 x i8], align 8\n  %p = load ptr, ptr %a", false},
		"shared":           {"%p = getelementptr i8, ptr addrspacecast (ptr addrspace(3) @s to ptr), i64 %i", false},
		"behind shared":    {"%p = load ptr, ptr addrspacecast (ptr addrspace(3) @s to ptr)", false},
		"number":           {"%p = inttoptr i64 %i to ptr", false},
		"either, global":   {"%a = load ptr, ptr %args\n  %b = load ptr, ptr %a\n  %p = select i1 %c, ptr %a, ptr %b", true},
		"either, or nil":   {"%a = load ptr, ptr %args\n  %p = select i1 %c, ptr null, ptr %a", true},
		"either, local":    {"%a = load ptr, ptr %args\n  %b = alloca [8 x i8]\n  %p = select i1 %c, ptr %a, ptr %b", false},
		"loop":             {"%a = load ptr, ptr %args\n  br label %l\nl:\n  %p = phi ptr [ %a, %entry ], [ %n, %l ]\n  %n = getelementptr i8, ptr %p, i64 8", true},
		"loop to local": {"%a = load ptr, ptr %args\n  %s = alloca [8 x i8]\n  br label %l\nl:\n  %p = phi ptr [ %a, %entry ], [ %n, %l ]\n" +
			"  %n = select i1 %c, ptr %p, ptr %s", false},
		"loop from an inlined block": {"%a = load ptr, ptr %args\n  %s = alloca [8 x i8]\n  br label %l\nl:\n" +
			"  %p = phi ptr [ %a, %entry ], [ %s, %\"(*k.T).f.exit\" ]", false},
		"loop to a table": {"%a = load ptr, ptr %args\n  br label %l\nl:\n" +
			"  %p = phi ptr [ %a, %entry ], [ getelementptr (i8, ptr addrspacecast (ptr addrspace(4) @t to ptr), i64 4), %l ]", false},
		"loop of nothing": {"br label %l\nl:\n  %p = phi ptr [ %x, %entry ], [ %p, %l ]", false},
	} {
		text := "declare void @f()\n\ndefine ptx_kernel void @K(ptr %args) {\nentry:\n  " + c.body +
			"\n  tail call void asm sideeffect \"st.release.sys.u64 [$0], $1;\", \"l,l,~{memory}\"(ptr %p, i64 1) #3\n  ret void\n}\n\nattributes #3 = { nounwind }\n"
		out := toGlobal(text)
		got := strings.Contains(out, `"st.release.sys.global.u64 [$0], $1;", "l,l,~{memory}"(ptr addrspace(1) %to`)
		if got != c.want || !c.want && !strings.Contains(out, "(ptr %p, i64 1)") {
			t.Errorf("%s: named %v (want %v):\n%s", name, got, c.want, out)
		}
	}
}
