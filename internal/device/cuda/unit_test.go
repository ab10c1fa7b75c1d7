// SPDX-License-Identifier: Apache-2.0

package cuda

import (
	"strings"
	"testing"

	"github.com/doorbell-net/doorbell/gpu"
	_ "github.com/doorbell-net/doorbell/internal/device/devicetest"
)

// packaged are the kernels of packages: tests make others.
var packaged = gpu.Codes()

// TestUnit: a kernel's module has the head and that kernel, the modules of all kernels have all there is, and what cannot be
// taken apart stays whole.
func TestUnit(t *testing.T) {
	left := map[string]string{} // of each module: what no kernel has taken yet
	for _, code := range packaged {
		u := unit(code.PTX, code.Name)
		if strings.Count(u, ".entry ") != 1 || !strings.Contains(u, ".entry "+code.Name+"(") || !strings.Contains(u, ".address_size 64") {
			t.Fatalf("the module of %s alone:\n%.200s", code.Name, u)
		}
		if _, ok := left[code.PTX]; !ok {
			left[code.PTX] = code.PTX
		}
		body := u[strings.Index(u, ".visible"):]
		if strings.Count(left[code.PTX], body) != 1 {
			t.Fatalf("the module of %s is no part of the whole", code.Name)
		}
		left[code.PTX] = strings.Replace(left[code.PTX], body, "", 1)
	}
	if len(left) == 0 {
		t.Fatal("no kernels")
	}
	for _, rest := range left {
		if strings.ContainsAny(rest, "{}") {
			t.Errorf("no kernel has this:\n%.200s", rest)
		}
	}
	head := ".version 6.3\n.target sm_70\n.address_size 64\n"
	one := ".visible .entry A(\n)\n{\n\tret;\n}\n"
	for what, ptx := range map[string]string{
		"a function":         head + ".visible .func F\n{\n\tret;\n}\n" + one,
		"a variable between": head + one + ".global .u32 x;\n.visible .entry B(\n)\n{\n\tret;\n}\n",
		"no such entry":      head + strings.Replace(one, "A(", "AA(", 1),
		"a torn end":         head + one + ".visible .entry B(\n)\n{\n",
		"a cubin":            "\x7fELF\n" + one,
		"nothing":            "",
	} {
		if got := unit(ptx, "A"); got != ptx {
			t.Errorf("%s: taken apart:\n%s", what, got)
		}
	}
	if got := unit(head+one+".visible .entry B(\n)\n{\n\tret;\n}\n", "A"); got != head+one {
		t.Errorf("got:\n%s", got)
	}
}
