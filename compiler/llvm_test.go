// SPDX-License-Identifier: Apache-2.0

package compiler

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestTools: a missing LLVM, and one of another version, are named with what is needed.
func TestTools(t *testing.T) {
	dir := t.TempDir()
	script := func(name, text string) string {
		p := filepath.Join(dir, name)
		if err := os.WriteFile(p, []byte("#!/bin/sh\n"+text+"\n"), 0o700); err != nil {
			t.Fatal(err)
		}
		return p
	}
	right := script("right", "echo 'Debian LLVM version "+llvmVersion+"'")
	if got, err := findTool(t.Context(), "no-such-tool", right); err != nil || got.path != right {
		t.Errorf("%q, %v (want %s)", got, err, right)
	}
	for want, names := range map[string][]string{
		"found no opt-none": {"opt-none", filepath.Join(dir, "none")},
		"of version 19.1.1": {script("older", "echo 'LLVM version 19.1.1'")},
		"of no version":     {script("mute", "echo hello")},
		"exit status 5":     {script("broken", "exit 5")},
	} {
		_, err := findTool(t.Context(), names...)
		if !errors.Is(err, ErrNoLLVM) || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "gpuc needs LLVM "+llvmVersion+" (opt-19, llc-19): apt-get install llvm-19") {
			t.Errorf("%v (want ErrNoLLVM and %q)", err, want)
		}
	}
}

// TestInspect: PTX that calls what nobody provides is refused.
func TestInspect(t *testing.T) {
	text := ".extern .func (.param .b32 func_retval0) llvm_nvvm_new\n;\n.visible .entry K(\n)\n{\n\tmov.u32 \t%r1, 1;\n\tret;\n}\n"
	for _, checks := range []bool{false, true} {
		p := &Package{Path: "p", PTX: text, Kernels: []Kernel{{Name: "K"}}}
		if err := p.inspect(Options{Checks: checks}); err == nil || !strings.Contains(err.Error(), "calls llvm_nvvm_new, which nobody provides") {
			t.Errorf("checks %v: %v", checks, err)
		}
		p.PTX = strings.ReplaceAll(text, "llvm_nvvm_new", "__assertfail")
		if err := p.inspect(Options{Checks: checks}); (err == nil) != checks {
			t.Errorf("checks %v, __assertfail: %v", checks, err)
		}
	}
	p := &Package{Path: "p", PTX: "", Kernels: []Kernel{{Name: "K"}}}
	if err := p.inspect(Options{}); err == nil || !strings.Contains(err.Error(), "has no kernel K") {
		t.Errorf("%v (want that K is not there)", err)
	}
}
