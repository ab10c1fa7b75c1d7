// SPDX-License-Identifier: Apache-2.0

package compiler

import (
	"fmt"
	"strings"
	"testing"

	"github.com/doorbell-net/doorbell/internal/abi"
)

// TestOnHost: what a checked build asks before an atomic, over a table of two pieces, one that was given back between them, and
// one behind the end. LLVM's interpreter runs it.
func TestOnHost(t *testing.T) {
	t.Parallel()
	lli, tools := needInterpreter(t)
	pairs := [][2]uint64{{0x4000, 0x5000}, {abi.HostNone, 1}, {0x7f0000008000, 0x7f0000009000}, {abi.HostNone, 0}, {0x9000, 0xa000}}
	for _, c := range []struct {
		table bool
		at    uint64
		want  int
	}{
		{true, 0x3fff, 0}, {true, 0x4000, 1}, {true, 0x4fff, 1}, {true, 0x5000, 0}, {true, 0x5fff, 0},
		{true, 0x7f0000008000, 1}, {true, 0x7f0000009000, 0}, {true, 0x9000, 0}, {true, abi.HostNone, 0},
		{false, 0x4000, 0},
	} {
		words := ""
		for _, p := range pairs {
			words += fmt.Sprintf("i64 %d, i64 %d, ", p[0], p[1])
		}
		table := "i64 0"
		if c.table {
			table = "i64 ptrtoint (ptr @table to i64)"
		}
		text := strings.Replace(onHost, "externally_initialized global i64 0", "externally_initialized global "+table, 1) + fmt.Sprintf(`
attributes #0 = { alwaysinline }
@table = global [%d x i64] [%s], align 16
@format = constant [4 x i8] c"%%d\0A\00"
declare i32 @printf(ptr, ...)
define i32 @main() {
  %%is = call i1 @doorbell.onHost(i64 %d)
  %%n = zext i1 %%is to i32
  call i32 (ptr, ...) @printf(ptr @format, i32 %%n)
  ret i32 0
}
`, 2*len(pairs), strings.TrimSuffix(words, ", "), c.at)
		best, err := run(t.Context(), text, tools.opt, "-O3", "-S", "-o", "-", "-")
		if err != nil {
			t.Fatal(err)
		}
		out, err := run(t.Context(), best, tool{lli, lli}, "-")
		if err != nil || strings.TrimSpace(out) != fmt.Sprint(c.want) {
			t.Errorf("%#x, with a table: %v: %q, want %d (%v)", c.at, c.table, out, c.want, err)
		}
	}
}
