// SPDX-License-Identifier: Apache-2.0

package compiler

import (
	"strings"
	"testing"
)

// TestNICKernelsCompile: with its tag gin drives a NIC on a GPU too, all of it in PTX; without, nothing of it is there.
func TestNICKernelsCompile(t *testing.T) {
	t.Parallel()
	needLLVM(t)
	var bytes []int
	for _, tags := range [][]string{nil, {"gdaki"}} {
		pkgs, err := Compile(t.Context(), "..", []string{"./internal/gintest"}, Options{Tags: tags})
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(pkgs[0].PTX, ".extern") {
			t.Errorf("tags %q: something is left out", tags)
		}
		bytes = append(bytes, len(pkgs[0].PTX))
	}
	if bytes[1] <= bytes[0] {
		t.Errorf("the kernels have %d bytes with the tag, %d without: what drives a NIC is missing", bytes[1], bytes[0])
	}
}
