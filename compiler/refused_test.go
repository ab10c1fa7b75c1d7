// SPDX-License-Identifier: Apache-2.0

package compiler

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
)

// TestRefused: all that is no device code is reported at once, each at its line, with what to write instead.
func TestRefused(t *testing.T) {
	for folder, least := range map[string]int{"refused": 43, "more": 28, "signatures": 6} {
		t.Run(folder, func(t *testing.T) { refused(t, folder, least) })
	}
}

// refused wants an error at each line with a want comment, and no other. The folder has at least so many.
func refused(t *testing.T, folder string, least int) {
	file := "testdata/" + folder + "/" + folder + ".go"
	_, err := lower(t.Context(), ".", []string{"./testdata/" + folder}, Options{Arch: DefaultArch})
	var errs Errors
	if !errors.As(err, &errs) {
		t.Fatalf("%v (want Errors)", err)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for i, l := range strings.Split(string(text), "\n") {
		_, want, ok := strings.Cut(l, "// want: ")
		if !ok {
			continue
		}
		n++
		before := len(errs)
		errs = slices.DeleteFunc(errs, func(e Error) bool {
			return e.Pos.Line == i+1 && e.Pos.Column > 0 && e.Pos.Filename == file && strings.Contains(e.Msg, want)
		})
		if len(errs) == before {
			t.Errorf("%s:%d: no error with %q", file, i+1, want)
		}
	}
	for _, e := range errs {
		t.Errorf("not expected: %s", e)
	}
	if n < least {
		t.Errorf("%d lines with a want comment were found (want %d)", n, least)
	}
}

// TestChain: an error in a function says how a kernel comes to it.
func TestChain(t *testing.T) {
	t.Parallel()
	_, err := lower(t.Context(), ".", []string{"./testdata/refused"}, Options{Arch: DefaultArch})
	text, _ := os.ReadFile("testdata/refused/refused.go")
	line := func(part string) int { return lineOf(string(text), part) }
	want := fmt.Sprintf("testdata/refused/refused.go:%d:11: call of (*sync.Mutex).Unlock, which is not device code: "+
		"use SyncBlock, SyncWarp, or ordered operations of package gpu\n"+
		"\tcalled from deep at testdata/refused/refused.go:%d:27\n"+
		"\tcalled from Outside at testdata/refused/refused.go:%d:6\n",
		line("mu.Unlock()"), line("func deep(a Args)"), line("\tdeep(a)"))
	if err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("no error is\n%s\nin\n%v", want, err)
	}
}

// TestTypeErrors: what Go itself refuses comes once, with its place, and nothing else.
func TestTypeErrors(t *testing.T) {
	t.Parallel()
	dir := foreign(t, map[string]string{"k/k.go": head + "//gpu:kernel\nfunc K(t gpu.Thread, a struct{ N int32 }) { a.M = 1 }\n"})
	_, err := lower(t.Context(), dir, []string{"./k"}, Options{Arch: DefaultArch})
	if err == nil || !strings.HasPrefix(err.Error(), "k/k.go:8:") || strings.Count(err.Error(), "a.M undefined") != 1 || strings.Contains(err.Error(), "\n") {
		t.Errorf("%v (want one line, k/k.go:8, a.M undefined)", err)
	}
}

// TestNothingFound: packages without kernels are said to have none.
func TestNothingFound(t *testing.T) {
	t.Parallel()
	_, err := lower(t.Context(), "..", []string{"./gpu", "./gin"}, Options{Arch: DefaultArch})
	if err == nil || !strings.Contains(err.Error(), `no kernel in ./gpu ./gin: one is a function with the comment "//gpu:kernel"`) {
		t.Errorf("%v (want that there is no kernel)", err)
	}
}

// TestEmptied: a kernel of which nothing is left is an error, not an entry that does nothing.
func TestEmptied(t *testing.T) {
	t.Parallel()
	needLLVM(t)
	for name, body := range map[string]string{
		"no effect": "x := a.N * 2; _ = x",
		"undefined": "var p gpu.Ptr[int32]; p.Store(1)",
	} {
		_, err := compileText(t, head+"//gpu:kernel\nfunc K(t gpu.Thread, a struct{ N int32 }) { "+body+" }\n", Options{})
		if err == nil || !strings.Contains(err.Error(), "nothing is left of kernel K") {
			t.Errorf("%s: %v (want that nothing is left)", name, err)
		}
	}
}

// TestArch: an architecture that cannot do what is asked is refused before anything runs.
func TestArch(t *testing.T) {
	for _, arch := range []string{"sm_60", "sm_9", "hopper", "sm_90a"} {
		_, err := Compile(t.Context(), ".", []string{"./testdata/refused"}, Options{Arch: arch})
		if err == nil || !strings.Contains(err.Error(), arch) || !strings.Contains(err.Error(), "accepted are sm_70") {
			t.Errorf("%s: %v (want which are accepted)", arch, err)
		}
	}
}
