// SPDX-License-Identifier: Apache-2.0

package compiler

import (
	"context"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestConstructs: what each thing becomes. The patterns are regular expressions.
func TestConstructs(t *testing.T) {
	t.Parallel()
	needLLVM(t)
	p := constructs(t, Options{})
	for _, c := range []struct {
		kernel string
		local  int
		want   []string // in any order
		not    []string
	}{
		{"Spin", 0, []string{`(?s)(\$L\w+):\s*(?:\.pragma "nounroll";\s*)?ld\.acquire\.sys\.global\.u32.*bra\s+\$L`, `st\.global\.u32`}, nil},
		{"Endless", 0, []string{`(?s)(\$L\w+):\s*(bra\.uni\s+\$L|setp)`}, nil},
		{"Rounded", 0, []string{`mul\.rn\.f32`, `add\.rn\.f32`}, []string{`fma`, `\.ftz`}},
		{"Vector", 0, []string{`ld\.global\.v4\.u32`, `st\.global\.v4\.u32`, `ld\.global\.nc\.v4\.u32`}, nil},
		{"Threads", 0, []string{`%tid\.x`, `%ntid\.x`, `%ctaid\.x`, `%nctaid\.x`, `bar\.warp\.sync 0xffffffff`, `bar\.sync 0`,
			`shfl\.sync\.bfly\.b32`, `shfl\.sync\.idx\.b32`, `vote\.sync\.ballot\.b32`}, []string{`%laneid`}},
		{"Waits", 0, []string{`%globaltimer`, `nanosleep\.u32`, `min\.u32`, `min\.u64`}, []string{`st\.global`, `99`}},
		{"Shared", 0, []string{`\.shared \.align 16 \.b8 \w*[\w$]*block[\w$]*\[256\]|ld\.shared\.f32`, `st\.shared\.f32`, `ld\.shared\.f32`}, nil},
		{"Locals", 0, nil, []string{`\.local`}},
		{"Indexed", 32, []string{`\.local`}, nil},
		{"Functions", 0, nil, []string{`call`}},
		{"Passed", 0, []string{`(?s)ld\.relaxed\.gpu\.global\.u32.*ld\.acquire\.sys\.global\.u32`}, nil},
		{"Maths", 0, []string{`popc\.b32`, `clz\.b32`, `clz\.b64`, `sqrt\.rn\.f64`, `fma\.rn\.f64`, `shf\.l\.wrap\.b32|shl\.b32`}, []string{`fma\.rn\.f32`}},
		{"Panics", 0, []string{`trap`}, []string{`call`}},
		{"Chosen", 0, []string{`ld\.param`, `st\.global\.u32`, `add\.s32`}, []string{`\.local`}},
		{"Checked", 0, []string{`div\.u32`}, []string{`trap`, `setp`}},
		{"Bounded", 0, []string{`ld\.global\.v4\.u32`, `st\.global\.v4\.u32`, `\.maxntid 128, 1, 1`, `\.minnctapersm 1`}, nil},
		{"OtherTarget", 0, []string{`ld\.global\.v4\.u32`, `st\.global\.v4\.u32`, `\.maxntid 1024, 1, 1`}, nil},
	} {
		body := bodyOf(t, p, c.kernel)
		for _, w := range c.want {
			if !regexp.MustCompile(w).MatchString(body) {
				t.Errorf("%s has no %s:\n%s", c.kernel, w, body)
			}
		}
		for _, w := range c.not {
			if m := regexp.MustCompile(w).FindString(body); m != "" {
				t.Errorf("%s has %s:\n%s", c.kernel, m, body)
			}
		}
		for _, k := range p.Kernels {
			if k.Name == c.kernel && k.LocalBytes != c.local {
				t.Errorf("%s has %d bytes of local memory (want %d)", k.Name, k.LocalBytes, c.local)
			}
		}
	}
	if strings.Contains(p.PTX, ".extern") || strings.Contains(p.PTX, ".func") {
		t.Error("there is a function beside the kernels")
	}
}

func constructs(t *testing.T, opt Options) *Package {
	t.Helper()
	pkgs, err := Compile(t.Context(), ".", []string{"./testdata/constructs"}, opt)
	if err != nil {
		t.Fatal(err)
	}
	return pkgs[0]
}

// TestChecks: a checked build reports what, where and in which function; an unchecked one has nothing of it.
func TestChecks(t *testing.T) {
	t.Parallel()
	needLLVM(t)
	p := constructs(t, Options{Checks: true})
	for kernel, texts := range map[string][]string{
		"Checked": {"index out of range", "integer divide by zero", modulePath + "/compiler/testdata/constructs/constructs.go"},
		"Panics":  {"three: ... is too many"},
	} {
		if !strings.Contains(bodyOf(t, p, kernel), "__assertfail") {
			t.Errorf("%s is not checked", kernel)
		}
		for _, text := range texts {
			if !strings.Contains(p.PTX, bytesOf(text)) {
				t.Errorf("the PTX of the checked build has no text %q", text)
			}
		}
	}
	if n := strings.Count(p.PTX, ".extern .func"); n != 1 {
		t.Errorf("%d external functions (want __assertfail alone)", n)
	}
}

// bytesOf is a string as PTX has it.
func bytesOf(s string) string {
	var b strings.Builder
	for i, c := range []byte(s) {
		if i > 0 {
			b.WriteString(", ")
		}
		b.WriteString(itoa(int(c)))
	}
	return b.String()
}

// TestSame: the same sources give the same text, wherever they lie, and none of it names a place of this machine.
func TestSame(t *testing.T) {
	t.Parallel()
	needLLVM(t)
	text := head + "//gpu:kernel\nfunc K(t gpu.Thread, a struct{ P gpu.Ptr[uint32]; N int32 }) {\n\tif a.N > 2 { panic(\"no\") }\n\tfor i := range a.N { a.P.At(int(i)).Store(1) }\n}\n"
	for _, opt := range []Options{{}, {Checks: true, Debug: true}} {
		var first string
		for range 2 {
			dir := foreign(t, map[string]string{"k/k.go": text})
			pkgs, err := Compile(t.Context(), dir, []string{"./k"}, opt)
			if err != nil {
				t.Fatal(err)
			}
			p := pkgs[0]
			if first == "" {
				first = p.PTX
			}
			if p.PTX != first {
				t.Errorf("%+v: two texts came of the same sources:\n%s\n%s", opt, first, p.PTX)
			}
			root, _ := filepath.Abs("..")
			for _, place := range []string{dir, root, filepath.Dir(dir)} {
				if strings.Contains(p.PTX, place) || strings.Contains(p.PTX, bytesOf(place)) {
					t.Errorf("%+v: the text names %s", opt, place)
				}
			}
			if opt.Debug && !regexp.MustCompile(`(?m)^\s*\.file\s+\d+ "example.com/elsewhere/k/k.go"`).MatchString(p.PTX) {
				t.Errorf("the text with lines does not name the source:\n%s", p.PTX)
			}
		}
	}
}

// TestArchs: each architecture that is accepted gives PTX for it.
func TestArchs(t *testing.T) {
	t.Parallel()
	needLLVM(t)
	texts, err := lower(t.Context(), ".", []string{"./testdata/constructs"}, Options{Arch: DefaultArch})
	if err != nil {
		t.Fatal(err)
	}
	tools, err := findTools(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	for n := range versions {
		arch := "sm_" + itoa(n)
		l := lowered{pkg: &Package{Path: "p", Kernels: texts[0].pkg.Kernels}, text: strings.ReplaceAll(texts[0].text, DefaultArch, arch)}
		opt := Options{Arch: arch}
		l.text = strings.ReplaceAll(l.text, `"+ptx63"`, `"+`+opt.feature()+`"`)
		if err := tools.finish(t.Context(), l, opt); err != nil {
			t.Errorf("%s: %v", arch, err)
		} else if !strings.Contains(l.pkg.PTX, ".target "+arch) {
			t.Errorf("%s: the text is not for it", arch)
		}
	}
}
