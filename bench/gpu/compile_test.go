// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package gpu_test

import (
	"os/exec"
	"path/filepath"
	"testing"
)

// TestProgramsCompile: nvcc, where there is one, makes of each program here that needs nothing else what a GPU runs, without local
// memory.
func TestProgramsCompile(t *testing.T) {
	nvcc, err := exec.LookPath("nvcc")
	if err != nil {
		t.Skip("nvcc is not on the PATH: twins, floors and peers are not compiled (include/headers_test.go says where it is had)")
	}
	for _, file := range []string{"twins.cu", "copies.cu", "floors.cu", "cell.cu", "ll.cu", "ht.cu", "gdaki.cu", "peers/raw.cu"} {
		t.Run(file, func(t *testing.T) {
			t.Parallel()
			out, err := exec.Command(nvcc, "-O3", "-std=c++17", "-arch=sm_90", "-Werror", "all-warnings", "-Xptxas", "-warn-lmem-usage,-warn-spills,-Werror", "-cubin", "-o", filepath.Join(t.TempDir(), "out"), file).CombinedOutput()
			if err != nil {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
}
