// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/doorbell-net/doorbell/bench/kernels"
)

// TestKernelsAreTaken: code of a file takes the place of the kernels of the same names, and of no others.
func TestKernelsAreTaken(t *testing.T) {
	before := map[string]string{}
	for _, c := range benchCodes() {
		before[c.Name] = c.PTX
		t.Cleanup(func() { c.PTX = before[c.Name] })
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
	if kernels.RateKernel.PTX() != cubin {
		t.Error("a launch would not take the file's code")
	}
	if err := takeKernels(filepath.Join(t.TempDir(), "none")); err == nil {
		t.Error("a file that is not there was taken")
	}
}
