// SPDX-License-Identifier: Apache-2.0

package compiler

import (
	"fmt"
	"math/rand/v2"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/doorbell-net/doorbell/compiler/internal/sample"
	"github.com/doorbell-net/doorbell/gpu"
	"github.com/doorbell-net/doorbell/internal/testenv"
)

// TestSemantics: what the compiler makes of Go is what Go makes of it. The same kernels run as Go's compiler built them,
// and as LLVM's interpreter of this machine runs our text of them, optimised; each output of each case must agree.
func TestSemantics(t *testing.T) {
	t.Parallel()
	lli, tools := needInterpreter(t)
	texts, err := lower(t.Context(), ".", []string{"./internal/sample"}, Options{Arch: DefaultArch})
	if err != nil {
		t.Fatal(err)
	}
	const cases = 300
	r := testenv.Random(t)
	in := make([]uint64, cases*sample.Inputs)
	for i := range in {
		in[i] = number(r)
	}
	for name, k := range map[string]struct {
		kernel func(gpu.Thread, sample.Args)
		cases  int
	}{
		"Integers": {sample.Integers, cases}, "Conversions": {sample.Conversions, cases}, "Floats": {sample.Floats, cases},
		"Values": {sample.Values, cases}, "Floats_Cases3": {sample.Floats, 3}, "Tables": {sample.Tables, cases},
	} {
		in := in[:k.cases*sample.Inputs]
		want := make([]uint64, k.cases*sample.Outputs)
		k.kernel(gpu.Thread{}, sample.Args{In: gpu.PtrTo(&in[0]), Out: gpu.PtrTo(&want[0]), Cases: int64(k.cases)})
		best, err := run(t.Context(), hosted(texts[0].text, name, in, len(want)), tools.opt, "-O3", "-S", "-o", "-", "-")
		if err != nil {
			t.Fatal(err)
		}
		out, err := run(t.Context(), best, tool{lli, lli}, "-")
		if err != nil {
			t.Fatal(err)
		}
		got := strings.Fields(out)
		if len(got) != len(want) {
			t.Fatalf("%s: %d numbers (want %d)", name, len(got), len(want))
		}
		for i, g := range got {
			if v, err := strconv.ParseUint(g, 10, 64); err != nil || v != want[i] {
				c := i / sample.Outputs
				t.Fatalf("%s: output %d of %#x: %s (want %d)", name, i%sample.Outputs, in[c*sample.Inputs:(c+1)*sample.Inputs], g, want[i])
			}
		}
	}
}

// number is one that finds mistakes: small, near a power of two, or any.
func number(r *rand.Rand) uint64 {
	switch r.IntN(4) {
	case 0:
		return uint64(r.IntN(140))
	case 1:
		return -uint64(r.IntN(140))
	case 2:
		return 1<<r.IntN(64) + uint64(r.IntN(3)) - 1
	}
	return r.Uint64()
}

var targeted = regexp.MustCompile(`"target-cpu"="[^"]*" "target-features"="[^"]*"`)

// hosted is a module for this machine, with a main that calls the kernel and prints what it wrote.
func hosted(text, kernel string, in []uint64, outputs int) string {
	_, text, _ = strings.Cut(text, "\n\n") // without the target
	text = targeted.ReplaceAllString(text, "")
	text = strings.ReplaceAll(text, "define ptx_kernel void", "define void")
	var nums []string
	for _, v := range in {
		nums = append(nums, fmt.Sprintf("i64 %d", v))
	}
	return text + fmt.Sprintf(`
@in = global [%[1]d x i64] [%[2]s]
@out = global [%[3]d x i64] zeroinitializer
@format = constant [5 x i8] c"%%lu\0A\00"
declare i32 @printf(ptr, ...)
define i32 @main() {
  %%args = alloca [24 x i8], align 8
  store ptr @in, ptr %%args
  %%o = getelementptr i8, ptr %%args, i64 8
  store ptr @out, ptr %%o
  %%n = getelementptr i8, ptr %%args, i64 16
  store i64 %[4]d, ptr %%n
  call void @%[5]s(ptr byval([24 x i8]) align 8 %%args)
  br label %%loop
loop:
  %%i = phi i64 [ 0, %%0 ], [ %%next, %%loop ]
  %%p = getelementptr i64, ptr @out, i64 %%i
  %%v = load i64, ptr %%p
  call i32 (ptr, ...) @printf(ptr @format, i64 %%v)
  %%next = add i64 %%i, 1
  %%more = icmp ult i64 %%next, %[3]d
  br i1 %%more, label %%loop, label %%end
end:
  ret i32 0
}
`, len(in), strings.Join(nums, ", "), outputs, len(in)/sample.Inputs, kernel)
}

// needInterpreter skips without LLVM and its interpreter.
func needInterpreter(t *testing.T) (lli string, found tools) {
	needLLVM(t)
	lli, err := exec.LookPath("lli-19")
	if err != nil {
		t.Skip("lli-19 is missing, which comes with opt-19")
	}
	if found, err = findTools(t.Context()); err != nil {
		t.Fatal(err)
	}
	return lli, found
}
