// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/doorbell-net/doorbell/bench/kernels"
	"github.com/doorbell-net/doorbell/gpu"
)

// TestKernelsAreTaken: code of a file takes the place of the kernels of the same names, and of no others.
func TestKernelsAreTaken(t *testing.T) {
	before := map[string]string{}
	for _, c := range benchCodes() {
		before[c.Name] = c.PTX
		was := *c
		t.Cleanup(func() { *c = was })
	}
	if len(before) < 8 {
		t.Fatalf("only %d bench kernels have PTX", len(before))
	}
	file := filepath.Join(t.TempDir(), "kernels")
	put := func(text string) {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, none := range []string{"", ".visible .entry PingPongs(\n)", "\x7fELF .entry PingPong(", "\x7fELF\x00.text.PingPongs\x00"} {
		put(none)
		if err := takeKernels(file); err == nil || !strings.Contains(err.Error(), "PingPong") {
			t.Errorf("%q was taken: %v", none, err)
		}
	}
	cubin := "\x7fELF\x00.text.Rate\x00"
	variant := &gpu.Code{Name: "Rate_Bytes8", PTX: "built-in", Cubins: []gpu.Cubin{{Arch: 90, Code: "built-in"}}}
	kernels.RateKernel.Code().Variants = []*gpu.Code{variant}
	t.Cleanup(func() { kernels.RateKernel.Code().Variants = nil })
	for name, text := range map[string]string{"Rate": cubin, "Post": ".visible .entry Post(\n)"} {
		put(text)
		codes := benchCodes() // those that are still of the built-in module
		if err := takeKernels(file); err != nil {
			t.Fatal(err)
		}
		for _, c := range codes {
			if want := before[c.Name]; c.Name == name && c.PTX != text || c.Name != name && c.PTX != want {
				t.Errorf("after %s was taken, %s is %.40q", name, c.Name, c.PTX)
			}
		}
	}
	if variant.Name != "Rate" || variant.PTX != cubin || variant.Cubins != nil || kernels.RateKernel.Code().Cubins != nil {
		t.Errorf("a variant would run %s of %.20q", variant.Name, variant.PTX)
	}
	if kernels.RateKernel.PTX() != cubin {
		t.Error("a launch would not take the file's code")
	}
	if err := takeKernels(filepath.Join(t.TempDir(), "none")); err == nil {
		t.Error("a file that is not there was taken")
	}
}
