// SPDX-License-Identifier: Apache-2.0

package compiler

import (
	"strings"
	"testing"
)

// TestTables: a package variable of constants is constant memory, where it is proved to be what is read; what is known of it at
// compile time is not read at all. (TestSemantics holds what they hold, TestRefused which are none.)
func TestTables(t *testing.T) {
	t.Parallel()
	needLLVM(t)
	p, err := compileText(t, head+`
type A struct { Out, P gpu.Ptr[uint32]; N int32 }

type entry struct { a uint8; b [2]uint32 }

var table = [4]entry{{1, [2]uint32{2, 3}}, {}, {4, [2]uint32{5, 0x12345678}}}

//gpu:kernel
func Looked(t gpu.Thread, a A) { a.Out.Store(table[a.N].b[a.N&1]) }

//gpu:kernel
func Known(t gpu.Thread, a A) { a.Out.Store(table[2].b[1] + uint32(table[0].a)) }

//gpu:kernel
func Either(t gpu.Thread, a A) {
	v := a.P.Load()
	if a.N > 3 {
		v = table[a.N].b[1]
	}
	a.Out.Store(v)
}
`, Options{})
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]struct{ constant, generic int }{"Looked": {1, 0}, "Known": {0, 0}, "Either": {0, 1}} {
		body := bodyOf(t, p, name)
		if c, g := strings.Count(body, "ld.const"), strings.Count(body, "ld.u32"); c != want.constant || g != want.generic {
			t.Errorf("%s: %d loads of constant memory, %d generic ones, want %+v:\n%s", name, c, g, want, body)
		}
	}
	if body := bodyOf(t, p, "Known"); !strings.Contains(body, "305419897") {
		t.Errorf("what is known of a table is not computed:\n%s", body)
	}
	if n := strings.Count(p.PTX, ".const"); n < 1 || strings.Count(p.PTX, "\n.const") != 1 {
		t.Errorf("one table was made %d times:\n%s", n, p.PTX)
	}
	if a, err := FindAssembler(t.Context()); err == nil {
		if _, _, err := a.Assemble(t.Context(), p, 90); err != nil {
			t.Error(err)
		}
	}
}
