// SPDX-License-Identifier: Apache-2.0

package gpu_test

import (
	"flag"
	"fmt"
	"os"
	"reflect"
	"testing"

	"github.com/doorbell-net/doorbell/bench/bulk"
	"github.com/doorbell-net/doorbell/bench/kernels"
	"github.com/doorbell-net/doorbell/internal/abi/abigen"
	"github.com/doorbell-net/doorbell/moe"
	"github.com/doorbell-net/doorbell/tools/measure/ways"
)

var update = flag.Bool("update", false, "write what tests here compare anew")

// TestArguments: the twins' arguments are laid out as the kernels' are. nvcc holds the assertions in the files.
func TestArguments(t *testing.T) {
	for file, a := range map[string]struct {
		of, namespace, more string
		types               []reflect.Type
	}{
		"args.cuh": {"bench", "doorbell", "", []reflect.Type{
			reflect.TypeFor[kernels.Result](), reflect.TypeFor[kernels.Exchange](), reflect.TypeFor[kernels.RateArgs](),
			reflect.TypeFor[kernels.AllToAllArgs](), reflect.TypeFor[kernels.PostArgs](), reflect.TypeFor[kernels.WQEsArgs](), reflect.TypeFor[kernels.CopyArgs](), reflect.TypeFor[bulk.BulkCopyArgs](),
		}},
		"moe_args.cuh": {"moe", "doorbell::moe", constants(), []reflect.Type{
			reflect.TypeFor[moe.Result](), reflect.TypeFor[moe.Faults](), reflect.TypeFor[moe.Missing](), reflect.TypeFor[moe.Traffic](), reflect.TypeFor[moe.Meter](),
			reflect.TypeFor[moe.Header](), reflect.TypeFor[moe.RowInfo](), reflect.TypeFor[moe.Block](), reflect.TypeFor[moe.LLTurn](), reflect.TypeFor[moe.LLNext](), reflect.TypeFor[moe.Box](), reflect.TypeFor[moe.LL](),
			reflect.TypeFor[moe.HTInfo](), reflect.TypeFor[moe.HTPlan](), reflect.TypeFor[moe.HTState](), reflect.TypeFor[moe.HTWay](), reflect.TypeFor[moe.HT](),
		}},
	} {
		text := "// SPDX-License-Identifier: Apache-2.0\n// Written by go test ./bench/gpu -update. DO NOT EDIT.\n" +
			"// The arguments of the kernels in " + a.of + ", as Go lays them out.\n#pragma once\n#include \"../../include/doorbell/abi.cuh\"\n\nnamespace " + a.namespace + " {\n\n" + a.more +
			abigen.Structs(a.types) + "}  // namespace " + a.namespace + "\n"
		isFile(t, file, text)
	}
}

// TestWays: programs without Go send to themselves what ours do.
func TestWays(t *testing.T) {
	text := "// SPDX-License-Identifier: Apache-2.0\n// Written by go test ./bench/gpu -update. DO NOT EDIT.\n" +
		"// What a rank sends to itself.\n#pragma once\n#include <cstddef>\n\nstruct way {\n  size_t bytes;\n  int threads;\n};\nconstexpr way ways[] = {\n"
	for _, w := range ways.ToSelf() {
		for _, n := range w.Bytes {
			text += fmt.Sprintf("    {%d, %d},\n", n, w.Threads)
		}
	}
	isFile(t, "ways.cuh", text+"};\n")
}

// isFile says whether a file that is written here is as it would be written, or writes it.
func isFile(t *testing.T, file, text string) {
	if *update {
		check(t, os.WriteFile(file, []byte(text), 0o644))
	}
	if got := must(os.ReadFile(file))(t); string(got) != text {
		t.Errorf("%s is not what Go says: go test ./bench/gpu -run 'TestArguments|TestWays' -update", file)
	}
}

// constants are those of package moe that its kernels' twins use.
func constants() string {
	return fmt.Sprintf("enum format : int32_t { bf16 = %d, fp8 = %d, fp8_pow2 = %d, fp8_ue8m0 = %d };\n", moe.BF16, moe.FP8, moe.FP8Pow2, moe.FP8UE8M0) +
		fmt.Sprintf("enum fault : uint32_t {\n  fault_wait = %d, fault_answer = %d, fault_selection = %d, fault_copies = %d, fault_tokens = %d,\n  fault_count = %d, fault_header = %d, fault_rows = %d, fault_layout = %d\n};\n\n",
			moe.FaultWait, moe.FaultAnswer, moe.FaultSelection, moe.FaultCopies, moe.FaultTokens, moe.FaultCount, moe.FaultHeader, moe.FaultRows, moe.FaultLayout)
}
