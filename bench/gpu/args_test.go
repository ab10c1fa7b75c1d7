// SPDX-License-Identifier: Apache-2.0

package gpu_test

import (
	"bytes"
	"flag"
	"os"
	"reflect"
	"testing"

	"github.com/doorbell-net/doorbell/bench/bulk"
	"github.com/doorbell-net/doorbell/bench/kernels"
	"github.com/doorbell-net/doorbell/internal/abi/abigen"
)

var update = flag.Bool("update", false, "write args.cuh anew")

// TestArguments: the twins' arguments are laid out as the kernels' are. nvcc holds the assertions in the file.
func TestArguments(t *testing.T) {
	text := "// SPDX-License-Identifier: Apache-2.0\n// Written by go test ./bench/gpu -update. DO NOT EDIT.\n" +
		"// The arguments of the kernels in bench, as Go lays them out.\n#pragma once\n#include \"../../include/doorbell/abi.cuh\"\n\nnamespace doorbell {\n\n" +
		abigen.Structs([]reflect.Type{
			reflect.TypeFor[kernels.Result](), reflect.TypeFor[kernels.Exchange](), reflect.TypeFor[kernels.RateArgs](),
			reflect.TypeFor[kernels.AllToAllArgs](), reflect.TypeFor[kernels.PostArgs](), reflect.TypeFor[kernels.CopyArgs](), reflect.TypeFor[bulk.BulkCopyArgs](),
		}) + "}  // namespace doorbell\n"
	if *update {
		if err := os.WriteFile("args.cuh", []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile("args.cuh")
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, []byte(text)) {
		t.Error("args.cuh is not what the kernels take: go test ./bench/gpu -run TestArguments -update")
	}
}
