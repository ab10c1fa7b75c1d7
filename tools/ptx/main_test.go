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
	write("k/k.go", strings.Replace(source, "77", "78", 1))
	check("\t-\tmov.b32 \t%r1, 77;\n\t+\tmov.b32 \t%r1, 78;\n", "go run ./tools/ptx")
}
