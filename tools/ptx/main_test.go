// SPDX-License-Identifier: Apache-2.0

package main

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/doorbell-net/doorbell/compiler"
)

// TestCheck: what is committed is what the sources compile to, and a change of either is seen, as is what was left over.
func TestCheck(t *testing.T) {
	if err := compiler.Available(t.Context()); err != nil {
		t.Skip(err)
	}
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	sum, err := os.ReadFile(filepath.Join(root, "go.sum"))
	if err != nil {
		t.Fatal(err)
	}
	const module = "github.com/doorbell-net/doorbell"
	write := func(name, text string) {
		p := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(p), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	source := "package k\n\nimport \"" + module + "/gpu\"\n\ntype A struct{ P gpu.Ptr[uint32] }\n\n//gpu:kernel\nfunc K(t gpu.Thread, a A) { a.P.Store(77) }\n"
	write("go.mod", "module example.com/some\n\ngo 1.26.0\n\nrequire "+module+" v0.0.0\n\nreplace "+module+" => "+root+"\n")
	write("go.sum", string(sum))
	write("k/k.go", source)
	write("old/old.go", "package old\n")
	write("old/"+compiler.PTXFile, "// left over\n")
	for k, v := range map[string]string{"GOFLAGS": "-mod=mod", "GOPROXY": "off", "GOSUMDB": "off", "GOWORK": "off", "GOTOOLCHAIN": "local"} {
		t.Setenv(k, v)
	}
	check := func(want ...string) {
		t.Helper()
		err := regenerate(t.Context(), dir, true, io.Discard)
		if (err == nil) != (len(want) == 0) {
			t.Fatalf("%v (want %q)", err, want)
		}
		for _, w := range want {
			if !strings.Contains(err.Error(), w) {
				t.Errorf("%v (want %q)", err, w)
			}
		}
	}
	check(filepath.Join("k", compiler.GoFile)+": no such file", filepath.Join("k", compiler.PTXFile)+": no such file", filepath.Join("old", compiler.PTXFile)+" is there")
	if err := regenerate(t.Context(), dir, false, io.Discard); err != nil {
		t.Fatal(err)
	}
	check()
	if _, err := compiler.FindAssembler(t.Context()); err == nil {
		assembled(t, dir, write, check)
	}
	write("k/k.go", strings.Replace(source, "77", "78", 1))
	check("\t-\tmov.b32 \t%r1, 77;\n\t+\tmov.b32 \t%r1, 78;\n", "go run ./tools/ptx")
}

// assembled: a package that asks for cubins has to have them, of its PTX; local memory of a kernel is told.
func assembled(t *testing.T, dir string, write func(name, text string), check func(want ...string)) {
	t.Helper()
	cubin := filepath.Join("m", compiler.CubinFile(90))
	source := "package m\n\nimport \"github.com/doorbell-net/doorbell/gpu\"\n\ntype A struct{ P gpu.Ptr[[40]uint32]; N uint32 }\n\n" +
		"//gpu:cubin sm_90\n\n//gpu:kernel\nfunc Local(t gpu.Thread, a A) {\n\tv := a.P.Load()\n\tv[a.N] = 2\n\ta.P.At(1).Store(v)\n}\n"
	write("m/m.go", source)
	check(cubin+": no such file", "example.com/some/m.Local on sm_90: 160 bytes of stack", "accepted are 0 of stack")
	write("m/m.go", strings.Replace(source, "v[a.N] = 2", "v[3] = 2", 1))
	if err := regenerate(t.Context(), dir, false, io.Discard); err != nil {
		t.Fatal(err)
	}
	check()
	have, err := os.ReadFile(filepath.Join(dir, cubin))
	if err != nil {
		t.Fatal(err)
	}
	write(cubin, string(have[:len(have)-1]))
	check(cubin + ": ")
	write(cubin, string(have))
	write("m/m.go", strings.Replace(strings.Replace(source, "v[a.N] = 2", "v[3] = 2", 1), "//gpu:cubin", "// cubin", 1))
	check(cubin+" is there", filepath.Join("m", compiler.GoFile))
	if err := regenerate(t.Context(), dir, false, io.Discard); err != nil {
		t.Fatal(err)
	}
	check()
}

// TestSpills: a kernel may have no local memory but what is listed, and no more is listed than it has.
func TestSpills(t *testing.T) {
	const module = "github.com/doorbell-net/doorbell"
	const sample = module + "/compiler/internal/sample"
	for _, c := range []struct {
		path string
		used compiler.Usage
		want string
	}{
		{"p", compiler.Usage{Kernel: "K", Arch: 80, Registers: 64}, ""},
		{"p", compiler.Usage{Kernel: "K", Arch: 80, Registers: 64, Stack: 8}, "p.K on sm_80: 8 bytes of stack, 0 and 0 bytes of spill stores and loads at 64 registers; accepted are 0 of stack"},
		{sample, compiler.Usage{Kernel: "Values", Stack: 256}, ""},
		{sample, compiler.Usage{Kernel: "Values", Stack: 256, SpillLoads: 4}, "0 and 4 bytes of spill"},
		{module + "/examples/alltoall", compiler.Usage{Kernel: "AllToAll_DC_NIC1", Stack: stacks[module+"/examples/alltoall.AllToAll_DC_NIC1"].bytes, SpillLoads: 4}, ""},
		{module + "/coll", compiler.Usage{Kernel: "K", SpillLoads: 4}, "coll.K on sm_0: 0 bytes of stack, 0 and 4 bytes of spill"},
		{sample, compiler.Usage{Kernel: "Values", Stack: 264}, "accepted are 256"},
		{sample, compiler.Usage{Kernel: "Values", Stack: 32}, "Values has 32 bytes of stack at most, and 256 are accepted"},
	} {
		got := strings.Join(spills(c.path, []compiler.Usage{c.used}), "\n")
		if (got == "") != (c.want == "") || !strings.Contains(got, c.want) {
			t.Errorf("%s %+v: %q (want %q)", c.path, c.used, got, c.want)
		}
	}
}
