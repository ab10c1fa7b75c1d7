// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/doorbell-net/doorbell/compiler"
)

const modulePath = "github.com/doorbell-net/doorbell"

func gpuc(t *testing.T, args ...string) (status int, stdout, stderr string) {
	t.Helper()
	var out, bad bytes.Buffer
	status = command(t.Context(), args, &out, &bad)
	return status, out.String(), bad.String()
}

func needLLVM(t *testing.T) {
	t.Helper()
	if err := compiler.Available(t.Context()); err != nil {
		t.Skip(err)
	}
}

// newcomer copies the sources of an example into a module of another path, without what gpuc wrote, and goes there.
func newcomer(t *testing.T, example string) {
	t.Helper()
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for to, from := range map[string]string{"main.go": "examples/" + example + "/main.go", "go.sum": "go.sum"} {
		text, err := os.ReadFile(filepath.Join(root, from))
		if err != nil {
			t.Fatal(err)
		}
		put(t, filepath.Join(dir, to), string(text))
	}
	put(t, filepath.Join(dir, "go.mod"), "module example.com/newcomer/"+example+"\n\ngo 1.26.0\n\n"+
		"require "+modulePath+" v0.0.0\n\nreplace "+modulePath+" => "+root+"\n")
	t.Chdir(dir)
	for k, v := range map[string]string{"CGO_ENABLED": "0", "GOFLAGS": "-mod=mod", "GOPROXY": "off", "GOSUMDB": "off", "GOWORK": "off", "GOTOOLCHAIN": "local"} {
		t.Setenv(k, v)
	}
}

func put(t *testing.T, file, text string) {
	t.Helper()
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func read(t *testing.T, file string) string {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// TestNewcomer: who writes a program with a kernel in a module of their own runs gpuc once, and then it builds; the
// kernel's PTX is that of the example here. A second run over its own files changes nothing.
func TestNewcomer(t *testing.T) {
	needLLVM(t)
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	newcomer(t, "pingpong")
	for range 2 {
		if status, _, stderr := gpuc(t, "."); status != 0 || stderr != "" {
			t.Fatalf("status %d (want 0):\n%s", status, stderr)
		}
		want := strings.Replace(read(t, filepath.Join(root, "examples/pingpong/kernels_gpuc.ptx")),
			"package "+modulePath+"/examples/pingpong.", "package example.com/newcomer/pingpong.", 1)
		if got := read(t, compiler.PTXFile); got != want {
			t.Errorf("the PTX differs from the example's here:\n%s", got)
		}
	}
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", filepath.Join(t.TempDir(), "pingpong"), ".").CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// TestTool: a module that names gpuc as a tool runs it so. Where ptxas is missing and a cubin is asked for, what is to be
// installed is said, and nothing is written.
func TestTool(t *testing.T) {
	needLLVM(t)
	newcomer(t, "pingpong")
	goCommand := func(args ...string) (string, error) {
		out, err := exec.CommandContext(t.Context(), "go", args...).CombinedOutput()
		return string(out), err
	}
	if out, err := goCommand("get", "-tool", modulePath+"/cmd/gpuc"); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if out, err := goCommand("tool", "gpuc", "."); err != nil || len(read(t, compiler.PTXFile)) == 0 {
		t.Fatalf("%v\n%s", err, out)
	}
	if err := os.Remove(compiler.PTXFile); err != nil {
		t.Fatal(err)
	}
	cache, err := goCommand("env", "GOCACHE")
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("GOCACHE", strings.TrimSpace(cache))
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	if _, err := exec.LookPath("ptxas"); err == nil {
		t.Skip("ptxas is on the path, so it cannot be missing")
	}
	put(t, "main.go", read(t, "main.go")+"\n//gpu:cubin sm_90\n")
	out, err := goCommand("tool", "gpuc", ".")
	if err == nil || !strings.Contains(out, "cubins need ptxas 12.9") || !strings.Contains(out, "nvidia-cuda-nvcc-cu12") {
		t.Errorf("without ptxas: %v\n%s", err, out)
	}
	if _, err := os.Stat(compiler.PTXFile); err == nil {
		t.Error("PTX was written, and the cubin of it could not be")
	}
}

// TestOutput: -o writes the PTX alone, of one package; -v says how large the kernels are.
func TestOutput(t *testing.T) {
	needLLVM(t)
	newcomer(t, "pingpong")
	status, stdout, stderr := gpuc(t, "-arch", "sm_80", "-o", "x.ptx", "-v", ".")
	if status != 0 || stderr != "" {
		t.Fatalf("status %d (want 0):\n%s", status, stderr)
	}
	want := regexp.MustCompile(`^example.com/newcomer/pingpong\n(\tPingPong(_DC_NIC1)?: [1-9][0-9]+ bytes of arguments, at most 32 warps a block, [1-9][0-9]+ PTX instructions, 0 bytes of local memory\n){2}$`)
	if !want.MatchString(stdout) {
		t.Errorf("output %q (want %v)", stdout, want)
	}
	if !strings.Contains(read(t, "x.ptx"), ".target sm_80\n") {
		t.Error("the PTX is not for sm_80")
	}
	if _, err := os.Stat(compiler.GoFile); err == nil {
		t.Error("another file was written too")
	}
}

// TestStatus: wrong usage is told from what cannot be compiled.
func TestStatus(t *testing.T) {
	for _, c := range []struct {
		args   []string
		status int
		says   string
	}{
		{nil, 2, "usage: gpuc [flags] PACKAGE..."},
		{[]string{"-what", "."}, 2, "-what"},
		{[]string{"-arch", "sm_35", "."}, 1, "sm_70"},
	} {
		status, stdout, stderr := gpuc(t, c.args...)
		if status != c.status || stdout != "" || !strings.Contains(stderr, c.says) {
			t.Errorf("gpuc %v: status %d (want %d), %q (want %q)", c.args, status, c.status, stderr, c.says)
		}
	}
	needLLVM(t)
	for _, c := range []struct {
		args []string
		says string
	}{
		{[]string{"../../gin"}, "no kernel in ../../gin"},
		{[]string{"./nowhere"}, "nowhere"},
		{[]string{"-o", filepath.Join(t.TempDir(), "x"), "../../examples/..."}, "5 packages have kernels, and 1 is accepted"},
		{[]string{"../../compiler/testdata/refused"}, "testdata/refused/refused.go:"},
	} {
		status, stdout, stderr := gpuc(t, c.args...)
		if status != 1 || stdout != "" || !strings.Contains(stderr, c.says) {
			t.Errorf("gpuc %v: status %d (want 1), %q (want %q)", c.args, status, stderr, c.says)
		}
	}
}
