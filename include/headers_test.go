// SPDX-License-Identifier: Apache-2.0

// Package include_test compiles the C++ headers, with whatever compilers there are.
package include_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"testing"
)

const (
	use   = "testdata/use.cc"   // uses each call once; it is compiled and never run
	calls = "testdata/calls.cu" // tries each call; examples/cxx runs it
)

// need is the path of a compiler, and skips where it is missing.
func need(t *testing.T, name, why string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		t.Skipf("%s is not on the PATH: %s", name, why)
	}
	return path
}

func compile(t *testing.T, file, tool string, args ...string) {
	t.Helper()
	if out, err := exec.Command(tool, append(args, "-I", ".", "-I", "../examples/cxx", file)...).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", tool, err, out)
	}
}

// TestHeadersAreCPlusPlus17: without CUDA, with all warnings, and with what the headers assert of layouts and encoder.
func TestHeadersAreCPlusPlus17(t *testing.T) {
	for _, name := range []string{"g++", "clang++"} {
		t.Run(name, func(t *testing.T) {
			compile(t, use, need(t, name, "the headers are not compiled by it"), "-std=c++17", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-fsyntax-only")
		})
	}
}

func needNVCC(t *testing.T) string {
	t.Helper()
	return need(t, "nvcc", "the headers are not compiled for a GPU (PyPI's nvidia-cuda-nvcc, nvidia-nvvm, nvidia-cuda-crt and nvidia-cuda-runtime have it)")
}

// TestCallsForAGPU: what is tried against the software device is what nvcc compiles, too.
func TestCallsForAGPU(t *testing.T) {
	compile(t, calls, needNVCC(t), "-std=c++17", "-arch=sm_90", "-Werror", "all-warnings", "-cubin", "-o", filepath.Join(t.TempDir(), "calls.cubin"))
}

// ordered is an instruction of PTX that has an order, with order, scope and space.
var ordered = regexp.MustCompile(`(?:ld|st|red|atom|fence)\.(?:relaxed|acquire|release|acq_rel)\.\w+(?:\.global)?(?:\.(?:add|cas))?(?:\.[ub]\d+)?`)

// TestHeaderPTX: nvcc makes of the header's calls ordered instructions of the orders and scopes that package gin's have, and
// of no others.
func TestHeaderPTX(t *testing.T) {
	nvcc := needNVCC(t)
	out := filepath.Join(t.TempDir(), "use.ptx")
	compile(t, use, nvcc, "-x", "cu", "-std=c++17", "-O3", "-arch=sm_90", "-Werror", "all-warnings", "-ptx", "-o", out)
	ptx, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	got := ordered.FindAllString(string(ptx), -1)
	slices.Sort(got)
	got = slices.Compact(got)
	want := []string{
		"atom.relaxed.cta.global.add.u64", "atom.relaxed.cta.global.cas.b64",
		"atom.relaxed.gpu.global.add.u64", "atom.relaxed.gpu.global.cas.b32", "atom.relaxed.gpu.global.cas.b64",
		"fence.acq_rel.sys",
		"ld.acquire.sys.global.u64", "ld.relaxed.cta.global.u64", "ld.relaxed.gpu.global.u64", "ld.relaxed.sys.global.u32", "ld.relaxed.sys.global.u64",
		"red.relaxed.gpu.global.add.u64", "red.release.sys.global.add.u64",
		"st.relaxed.gpu.global.u64", "st.relaxed.sys.global.u32", "st.relaxed.sys.global.u64", "st.release.sys.global.u32",
	}
	if !slices.Equal(got, want) {
		t.Errorf("ordered instructions:\ngot  %q\nwant %q", got, want)
	}
}
