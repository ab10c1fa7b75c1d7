// SPDX-License-Identifier: Apache-2.0

package compiler

import (
	"fmt"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

const variants = head + `
type Inner struct { Flag bool; Small int8 }

type Args struct {
	Out, In gpu.Ptr[uint32]
	Hidden  int32
	TopK    int32
	In2     Inner
	Neg     int64
}

//gpu:kernel warps=8
//gpu:variant Hidden=64 TopK=4
//gpu:variant In2.Flag=true In2.Small=-3
func Sums(t gpu.Thread, a Args) {
	sum := uint32(0)
	for i := range a.TopK {
		sum += a.In.At(int(i)).Load() / uint32(a.Hidden)
	}
	if !a.In2.Flag {
		sum = a.In.At(100).Load()
	}
	a.Out.Store(sum + uint32(a.In2.Small))
}

func (a *Args) topK() int32 { return a.TopK }

// Methods takes the arguments' address.
//
//gpu:kernel
//gpu:variant TopK=4 warps=4
func Methods(t gpu.Thread, a Args) {
	for i := range a.topK() {
		a.Out.At(int(i)).Store(a.In.At(int(i)).Load())
	}
}

func pass(a Args) int64 { return int64(a.TopK) + a.Neg }

// Passes hands them on.
//
//gpu:kernel
//gpu:variant TopK=0x10 Neg=-1
func Passes(t gpu.Thread, a Args) {
	b := a
	if t.Lane() > 3 {
		b = Args{}
	}
	a.Out.Store(uint32(pass(b)))
	a.Out.At(1).Store(uint32(pass(a)))
}
`

// TestVariants: what a variant knows is not read, loops over it are unrolled, and the kernel itself stays as it was.
func TestVariants(t *testing.T) {
	t.Parallel()
	needLLVM(t)
	p, err := compileText(t, variants, Options{})
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		loops         bool
		loads         int // of In, where there is no loop
		read, notRead []string
		contains      string
	}{
		"Sums":                              {loops: true, read: []string{"+16", "+24"}, contains: "div.u32"},
		"Sums_Hidden64_TopK4":               {loads: 5, read: []string{"+24"}, notRead: []string{"+16", "+20"}, contains: "shr.u32"},
		"Sums_In2_Flagtrue_In2_Smallminus3": {loops: true, read: []string{"+16"}, notRead: []string{"+24", "+25"}, contains: ", -3;"},
		"Methods":                           {loops: true, read: []string{"+20"}},
		"Methods_TopK4":                     {loads: 4, notRead: []string{"+20"}},
		"Passes_TopK16_Negminus1":           {notRead: []string{"+20", "+32"}, contains: ", 15;"},
	} {
		body := bodyOf(t, p, name)
		if loops(body) != c.loops {
			t.Errorf("%s has a loop: %v (want %v):\n%s", name, !c.loops, c.loops, body)
		}
		if n := strings.Count(body, "ld.global"); n != c.loads && !c.loops {
			t.Errorf("%s has %d loads (want %d):\n%s", name, n, c.loads, body)
		}
		for _, at := range c.read {
			if !strings.Contains(body, "_param_0"+at) {
				t.Errorf("%s does not read its arguments at %s:\n%s", name, at, body)
			}
		}
		for _, at := range c.notRead {
			if strings.Contains(body, "_param_0"+at+"]") {
				t.Errorf("%s reads its arguments at %s:\n%s", name, at, body)
			}
		}
		if !strings.Contains(body, c.contains) {
			t.Errorf("%s has no %q:\n%s", name, c.contains, body)
		}
	}
	for _, k := range p.Kernels {
		if (k.Name == "Methods_TopK4") != (k.MaxWarps == 4) {
			t.Errorf("of warps=4 of a variant: %+v", k)
		}
		if k.LocalBytes != 0 || strings.HasPrefix(k.Name, "Sums") != (k.MaxWarps == 8) || (k.Of == "") != !strings.Contains(k.Name, "_") {
			t.Errorf("%+v", k)
		}
	}
	text := string(p.Files()[filepath.Join(p.Dir, GoFile)])
	for _, w := range []string{
		`SumsKernel = gpu.NewKernel("Sums", Sums, kernelsPTX).`,
		`Variant("Sums_Hidden64_TopK4", func(a *Args) bool { return a.Hidden == 64 && a.TopK == 4 }).`,
		`Variant("Sums_In2_Flagtrue_In2_Smallminus3", func(a *Args) bool { return a.In2.Flag == true && a.In2.Small == -3 })` + "\n",
		`func(a *Args) bool { return a.TopK == 16 && a.Neg == -1 })`,
	} {
		if !strings.Contains(text, w) {
			t.Errorf("the Go file has no %s:\n%s", w, text)
		}
	}
}

const split = head + `
type Comm struct {
	Out gpu.Ptr[uint32]
	By  uint32 ` + "`gpu:\"split\"`" + `
}

type Args struct {
	X struct{ C Comm }
	N int32
}

// Posts posts in one of two ways.
//
//gpu:kernel
//gpu:variant N=4
func Posts(t gpu.Thread, a Args) {
	c := &a.X.C
	if c.By != 0 {
		c.Out.Store(1111)
	} else {
		c.Out.Store(uint32(a.N) + 2222)
	}
}

// Ignores does the same either way.
//
//gpu:kernel
func Ignores(t gpu.Thread, a Args) {
	if a.N > 0 {
		a.X.C.Out.Store(3)
	}
}

// Nameless cannot be split, and asks.
//
//gpu:kernel
func Nameless(t gpu.Thread, a struct{ C Comm }) { a.C.Out.Store(a.C.By) }
`

// TestSplits: of a kernel whose arguments have a field that splits, and what its comments ask for, each has the code of one
// value, and what comes out the same is there once.
func TestSplits(t *testing.T) {
	t.Parallel()
	needLLVM(t)
	p, err := compileText(t, split, Options{})
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, k := range p.Kernels {
		names = append(names, k.Name+":"+k.Of)
	}
	if got, want := strings.Join(names, " "), "Ignores: Nameless: Posts: Posts_N4:Posts Posts_X_C_By1:Posts"; got != want {
		t.Errorf("there are %s (want %s)", got, want)
	}
	for name, c := range map[string]struct{ has, hasNot string }{
		"Posts": {", 2222;", "1111"}, "Posts_N4": {", 2226;", "1111"}, "Posts_X_C_By1": {", 1111;", "2222"}, "Nameless": {"_param_0+8", "setp"},
	} {
		body := bodyOf(t, p, name)
		if !strings.Contains(body, c.has) || strings.Contains(body, c.hasNot) {
			t.Errorf("%s has no %q, or has %q:\n%s", name, c.has, c.hasNot, body)
		}
	}
	if n := strings.Count(p.PTX, ".entry"); n != 5 {
		t.Errorf("the PTX has %d entries (want 5):\n%s", n, p.PTX)
	}
	text := string(p.Files()[filepath.Join(p.Dir, GoFile)])
	for _, w := range []string{
		`Variant("Posts_N4", func(a *Args) bool { return a.N == 4 && a.X.C.By == 0 }).`,
		`Split("Posts_X_C_By1", func(a *Args) bool { return a.X.C.By == 1 })`,
	} {
		if !strings.Contains(text, w) {
			t.Errorf("the Go file has no %s:\n%s", w, text)
		}
	}
}

var (
	label  = regexp.MustCompile(`^(\$L\w+):`)
	branch = regexp.MustCompile(`bra(?:\.uni)?\s+(\$L\w+);`)
)

// loops says whether a kernel has a branch back.
func loops(body string) bool {
	seen := map[string]bool{}
	for line := range strings.Lines(body) {
		if m := label.FindStringSubmatch(line); m != nil {
			seen[m[1]] = true
		}
		if m := branch.FindStringSubmatch(line); m != nil && seen[m[1]] {
			return true
		}
	}
	return false
}

// TestRefusedVariants: what is no variant is said in its place, all at once.
func TestRefusedVariants(t *testing.T) {
	t.Parallel()
	refused := []struct{ variant, want string }{
		{"", "variant of nothing: accepted are fields of the arguments with their values, as Hidden=7168 TopK=8"},
		{" TopK", "variant with TopK: accepted are values of int32, if that is an integer type or bool"},
		{" TopK=8 warps=0", "kernel option \"warps=0\": accepted is warps=N"},
		{" TopK=8.5", "variant with TopK=8.5: accepted are values of int32"},
		{" TopK=2147483648", "variant with TopK=2147483648: accepted are values of int32"},
		{" TopK=eight", "variant with TopK=eight: accepted are values of int32"},
		{" B=-1", "variant with B=-1: accepted are values of uint8"},
		{" B=256", "variant with B=256: accepted are values of uint8"},
		{" F=1", "variant with F=1: accepted are values of bool"},
		{" P=1", "variant with P=1: accepted are values of " + gpuPath + ".Ptr[uint32]"},
		{" Top=8", "k.A has no field Top"},
		{" TopK.X=8", "variant with TopK.X=8: int32 has no field X"},
		{" P.p=8", "has no field p"},
		{" TopK=8 TopK=9", "variant with TopK=9: the field has a value already"},
		{" B=1", ""},
		{" B=1", "variant K_B1 is there already"},
		{" B=2", "variant K_B2 is there already"},
	}
	text := head + "type A struct { P gpu.Ptr[uint32]; TopK int32; B uint8; F bool }\n\nfunc K_B2() {}\n\n" +
		"//gpu:kernel\n//gpu:variant N=1\nfunc Nameless(t gpu.Thread, a struct{ P gpu.Ptr[uint32]; N int32 }) { a.P.Store(1) }\n\n//gpu:kernel\n"
	first := strings.Count(text, "\n") + 1
	for _, r := range refused {
		text += "//gpu:variant" + r.variant + "\n"
	}
	text += "func K(t gpu.Thread, a A) { a.P.Store(1) }\n"
	_, err := lower(t.Context(), foreign(t, map[string]string{"k/k.go": text}), []string{"./k"}, Options{Arch: DefaultArch})
	if err == nil || !strings.Contains(err.Error(), "the arguments of kernel Nameless are no named type of its package") {
		t.Errorf("%v (want that it takes a named type)", err)
	}
	for i, r := range refused {
		want := fmt.Sprintf("(?m)^k/k.go:%d:1: .*%s", first+i, regexp.QuoteMeta(r.want))
		if (r.want != "") != regexp.MustCompile(want).MatchString(fmt.Sprint(err)) {
			t.Errorf("%q: no %s in\n%v", r.variant, want, err)
		}
	}
	text = head + "//gpu:variant N=1\nfunc F(n int) {}\n\n//gpu:kernel\nfunc K(t gpu.Thread, a struct{ P gpu.Ptr[uint32] }) { a.P.Store(1) }\n"
	_, err = lower(t.Context(), foreign(t, map[string]string{"k/k.go": text}), []string{"./k"}, Options{Arch: DefaultArch})
	if err == nil || !strings.Contains(err.Error(), "//gpu:variant stands above F, which is no kernel") {
		t.Errorf("%v (want that F is no kernel)", err)
	}
}
