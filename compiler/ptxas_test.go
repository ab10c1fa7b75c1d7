// SPDX-License-Identifier: Apache-2.0

package compiler

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// needPtxas skips a test where ptxas is missing.
func needPtxas(t *testing.T) *Assembler {
	t.Helper()
	needLLVM(t)
	a, err := FindAssembler(t.Context())
	if err != nil {
		t.Skip(err)
	}
	return a
}

// TestAssemble: each architecture takes the PTX, what comes is machine code of all kernels, the same each time.
func TestAssemble(t *testing.T) {
	t.Parallel()
	a := needPtxas(t)
	p := constructs(t, Options{})
	for _, arch := range CubinArchs {
		cubin, used, err := a.Assemble(t.Context(), p, arch)
		if err != nil {
			t.Fatal(err)
		}
		if again, _, _ := a.Assemble(t.Context(), p, arch); !bytes.HasPrefix(cubin, []byte("\x7fELF")) || !bytes.Equal(cubin, again) {
			t.Errorf("sm_%d: no ELF file, or another one the second time", arch)
		}
		for _, k := range p.Kernels {
			i := slices.IndexFunc(used, func(u Usage) bool { return u.Kernel == k.Name })
			if i < 0 || !bytes.Contains(cubin, []byte("\x00.text."+k.Name+"\x00")) {
				t.Fatalf("sm_%d: there is no %s", arch, k.Name)
			}
			if u := used[i]; u.Arch != arch || u.Registers < 4 || u.Stack != 0 || u.SpillStores != 0 {
				t.Errorf("sm_%d: %+v", arch, u)
			}
		}
	}
	p.PTX = strings.Replace(p.PTX, "st.global", "st.nowhere", 1)
	if _, _, err := a.Assemble(t.Context(), p, 90); err == nil || !strings.Contains(err.Error(), "ptxas for sm_90") || !strings.Contains(err.Error(), ".nowhere") {
		t.Errorf("%v (want what ptxas says)", err)
	}
}

// TestUsages reads what ptxas says of two kernels.
func TestUsages(t *testing.T) {
	const said = `ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'One' for 'sm_90'
ptxas info    : Function properties for One
    88 bytes stack frame, 84 bytes spill stores, 96 bytes spill loads
ptxas info    : Used 64 registers, used 0 barriers, 88 bytes cumulative stack size
ptxas info    : Compiling entry function 'Two' for 'sm_90'
ptxas info    : Function properties for Two
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 22 registers, used 1 barriers, 256 bytes smem
`
	want := []Usage{{"One", 90, 64, 88, 84, 96}, {"Two", 90, 22, 0, 0, 0}}
	if got := usages(said, 90); !slices.Equal(got, want) {
		t.Errorf("%+v (want %+v)", got, want)
	}
}

// TestKeptFormat: who changes what is kept changes its name, or reads what another build kept.
func TestKeptFormat(t *testing.T) {
	text, err := json.Marshal(assembled{"said", []byte("cubin")})
	if want := `{"Said":"said","Cubin":"Y3ViaW4="}`; err != nil || string(text) != want || keptFormat != "assembled 1" {
		t.Errorf("%s keeps %s, %v (want %s of assembled 1)", keptFormat, text, err, want)
	}
}

// FuzzUsages: whatever ptxas says, each kernel that it names is told of once, with what stands behind its name; what is read
// and written again is read as it was.
func FuzzUsages(f *testing.F) {
	f.Add("ptxas info    : Compiling entry function 'One' for 'sm_90'\n    88 bytes stack frame, 84 bytes spill stores, 96 bytes spill loads\nptxas info    : Used 64 registers, used 0 barriers\n")
	f.Add("Used 64 registers\nCompiling entry function '' for\nCompiling entry function 'A' Compiling entry function 'B'\nUsed 99999999999999999999 registers")
	f.Add("ptxas error   : Entry function 'K' uses too much local data (0x90000 bytes, 0x80000 max)\n")
	f.Fuzz(func(t *testing.T, said string) {
		all, names := usages(said, 90), 0
		for line := range strings.Lines(said) {
			if entryLine.MatchString(line) {
				names++
			}
		}
		if len(all) != names {
			t.Errorf("%d kernels of %d: %+v", len(all), names, all)
		}
		again := ""
		for _, u := range all {
			if u.Kernel == "" || u.Arch != 90 || min(u.Registers, u.Stack, u.SpillStores, u.SpillLoads) < 0 {
				t.Errorf("%+v", u)
			}
			again += fmt.Sprintf("Compiling entry function '%s'\n%d bytes stack frame, %d bytes spill stores, %d bytes spill loads\nUsed %d registers\n",
				u.Kernel, u.Stack, u.SpillStores, u.SpillLoads, u.Registers)
		}
		if !slices.Equal(usages(again, 90), all) {
			t.Errorf("%+v reads as %+v", all, usages(again, 90))
		}
	})
}

// TestNoPtxas: what is missing is named, also where a ptxas of another version is there.
func TestNoPtxas(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("PATH", dir)
	t.Setenv("XDG_CACHE_HOME", dir)
	find := func(words ...string) {
		t.Helper()
		_, err := FindAssembler(t.Context())
		if !errors.Is(err, ErrNoPtxas) {
			t.Fatalf("%v (want that there is no ptxas)", err)
		}
		for _, w := range append(words, ptxasVersion, "nvidia-cuda-nvcc-cu12") {
			if !strings.Contains(err.Error(), w) {
				t.Errorf("%v (want %q)", err, w)
			}
		}
	}
	find()
	fake := filepath.Join(dir, "ptxas")
	if err := os.WriteFile(fake, []byte("#!/bin/sh\necho 'Cuda compilation tools, release 13.0, V13.0.88'\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	find("found " + fake + " of another version")
}

// TestCubinComment: a package asks for cubins by a comment, and for those that there are.
func TestCubinComment(t *testing.T) {
	t.Parallel()
	needLLVM(t)
	const kernel = "//gpu:kernel\nfunc K(t gpu.Thread, a struct{ P gpu.Ptr[uint32] }) { a.P.Store(1) }\n"
	p, err := compileText(t, head+"//gpu:cubin sm_90 sm_80\n\n"+kernel+"//gpu:cubin sm_90\n", Options{})
	if err != nil {
		t.Fatal(err)
	}
	if want := []int{80, 90}; !slices.Equal(p.Archs, want) {
		t.Errorf("cubins for %v are asked for (want %v)", p.Archs, want)
	}
	text := string(p.Files()[filepath.Join(p.Dir, GoFile)])
	for _, w := range []string{
		"//go:embed kernels_gpuc.sm_80.cubin\nvar kernelsSM80 string\n", "//go:embed kernels_gpuc.sm_90.cubin\nvar kernelsSM90 string\n",
		"= []gpu.Cubin{{Arch: 80, Code: kernelsSM80}, {Arch: 90, Code: kernelsSM90}}\n", `gpu.NewKernel("K", K, kernelsPTX, kernelsCubins...)`,
	} {
		if !strings.Contains(text, w) {
			t.Errorf("the Go file has no %q:\n%s", w, text)
		}
	}
	for _, word := range []string{"sm_70", "90", "sm_", "hopper"} {
		_, err := compileText(t, head+kernel+"\n//gpu:cubin sm_90 "+word+"\n", Options{})
		if err == nil || !strings.Contains(err.Error(), `k.go:10:1: cubin for "`+word+`": accepted are sm_80, sm_90, sm_100`) {
			t.Errorf("%s: %v (want which are accepted)", word, err)
		}
	}
}

// TestNewerCubins: a cubin has instructions of its GPU that the package's PTX, for older ones, does by others.
func TestNewerCubins(t *testing.T) {
	t.Parallel()
	needLLVM(t)
	const kernel = `
//gpu:kernel
func Round(t gpu.Thread, a struct { Lo, Hi float32; Out gpu.Ptr[uint32] }) { a.Out.Store(gpu.BF16x2(a.Lo, a.Hi) ^ gpu.E4M3x2(a.Hi, a.Lo)) }
`
	p, err := compileText(t, head+"//gpu:cubin sm_80 sm_90 sm_100\n"+kernel, Options{})
	if err != nil {
		t.Fatal(err)
	}
	arguments := regexp.MustCompile(`ld\.param\.v2\.f32 \t\{(%f\d+), (%f\d+)\}, \[Round_param_0\]`)
	for arch, want := range map[int][2]bool{0: {}, 80: {true, false}, 90: {true, true}, 100: {true, true}} {
		text := p.newer[arch]
		if arch == 0 {
			text = p.PTX
		}
		m := arguments.FindStringSubmatch(text)
		if m == nil {
			t.Fatalf("sm_%d: the arguments are not loaded:\n%s", arch, text)
		}
		lo, hi := m[1], m[2] // an instruction has the high half's first
		got := [2]bool{
			regexp.MustCompile(`cvt\.rn\.bf16x2\.f32 %r\d+, ` + hi + ", " + lo + ";").MatchString(text),
			regexp.MustCompile(`cvt\.rn\.satfinite\.e4m3x2\.f32 %rs\d+, ` + lo + ", " + hi + ";").MatchString(text),
		}
		if got != want {
			t.Errorf("sm_%d has the instructions: %v, want %v:\n%s", arch, got, want, text)
		}
	}
	if a, err := FindAssembler(t.Context()); err == nil {
		for _, arch := range CubinArchs {
			if _, _, err := a.Assemble(t.Context(), p, arch); err != nil {
				t.Error(err)
			}
		}
	}
	p, err = compileText(t, head+"//gpu:cubin sm_90\n"+strings.Replace(kernel, "gpu.BF16x2(a.Lo, a.Hi) ^ gpu.E4M3x2(a.Hi, a.Lo)", "uint32(a.Lo + a.Hi)", 1), Options{})
	if err != nil || len(p.newer) > 0 {
		t.Errorf("%v; a package with no such instruction is compiled again for %d cubins", err, len(p.newer))
	}
	if err := p.takeNewer(lowered{pkg: &Package{Arch: 90}, cubin: 90}); err == nil || !strings.Contains(err.Error(), "[Round]") {
		t.Errorf("other kernels for a cubin: %v", err)
	}
}
