// SPDX-License-Identifier: Apache-2.0

package compiler

import (
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// needLLVM skips a test where LLVM is missing. CI has it.
func needLLVM(t *testing.T) {
	t.Helper()
	if err := Available(t.Context()); err != nil {
		t.Skip(err)
	}
}

// foreign makes a module of another path that uses this one, with the files given, and returns its folder.
func foreign(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	root, err := filepath.Abs("..")
	if err != nil {
		t.Fatal(err)
	}
	sum, err := os.ReadFile(filepath.Join(root, "go.sum"))
	if err != nil {
		t.Fatal(err)
	}
	put := func(name, text string) {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	put("go.mod", "module example.com/elsewhere\n\ngo 1.26.0\n\nrequire "+modulePath+" v0.0.0\n\nreplace "+modulePath+" => "+root+"\n")
	put("go.sum", string(sum))
	for name, text := range files {
		put(name, text)
	}
	return dir
}

// TestMain has nothing downloaded for foreign modules: what the library needs was there to build these tests.
func TestMain(m *testing.M) {
	for k, v := range map[string]string{"GOFLAGS": "-mod=mod", "GOPROXY": "off", "GOSUMDB": "off", "GOWORK": "off", "GOTOOLCHAIN": "local"} {
		if err := os.Setenv(k, v); err != nil {
			panic(err)
		}
	}
	os.Exit(m.Run())
}

const modulePath = "github.com/doorbell-net/doorbell"

// compileText compiles one file of kernels in a module of its own.
func compileText(t *testing.T, text string, opt Options) (*Package, error) {
	t.Helper()
	pkgs, err := Compile(t.Context(), foreign(t, map[string]string{"k/k.go": text}), []string{"./k"}, opt)
	if err != nil {
		return nil, err
	}
	return pkgs[0], nil
}

// head begins a file of kernels.
const head = "package k\n\nimport (\n\t\"" + modulePath + "/gpu\"\n)\n\n"

// bodyOf is a kernel's instructions.
func bodyOf(t *testing.T, p *Package, kernel string) string {
	t.Helper()
	b, err := p.body(kernel)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

var ordered = regexp.MustCompile(`(?m)^\t(?:@!?%p\d+ )?((?:ld|st|atom|red|fence)\.(?:relaxed|acquire|release|acq_rel|sc)[^ ;]*)`)

// orderedOps is the ordered instructions of a text, in order.
func orderedOps(body string) []string {
	var ops []string
	for _, m := range ordered.FindAllStringSubmatch(body, -1) {
		ops = append(ops, m[1])
	}
	return ops
}

// lineOf is the number of the first line of text with part in it.
func lineOf(text, part string) int {
	for i, l := range strings.Split(text, "\n") {
		if strings.Contains(l, part) {
			return i + 1
		}
	}
	return 0
}

func itoa(n int) string { return strconv.Itoa(n) }
