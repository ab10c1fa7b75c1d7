// SPDX-License-Identifier: Apache-2.0

package compiler

import (
	"regexp"
	"strings"
	"testing"
)

const multimem = head + `
import "github.com/doorbell-net/doorbell/gin"

type A struct { DC gin.DevComm; W gin.Window; Out gpu.Ptr[int64]; V gpu.U32x4; Op gin.Op }

func use[T gpu.Int](m *gin.Multimem, a *A) (sum int64) {
	x, _ := gin.MultimemReduce[T](m, 8, a.Op)
	gin.MultimemStore(m, 16, x)
	return int64(x)
}

//gpu:kernel
func Use(t gpu.Thread, a A) {
	c := gin.Open(&a.DC, 0)
	m, _ := c.Multimem(a.W)
	sum := use[int32](&m, &a) + use[uint32](&m, &a) + use[int64](&m, &a) + use[uint64](&m, &a)
	f, _ := gin.MultimemReduceFloat[gin.F32](&m, 24, a.Op)
	h, _ := gin.MultimemReduceFloat[gin.BF16](&m, 28, a.Op)
	gin.MultimemStore(&m, 30, h)
	gin.MultimemStore(&m, 32, gpu.U32x2{uint32(f.Bits()), 1})
	gin.MultimemStore(&m, 48, a.V)
	a.Out.Store(sum)
}
`

// TestMultimem: packages for sm_90 and later have an instruction where the window has an address for it, which ptxas takes;
// others have none, nor a look at that address. Both have the loops.
func TestMultimem(t *testing.T) {
	t.Parallel()
	needLLVM(t)
	old, err := compileText(t, multimem, Options{})
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(old.PTX, "multimem.") || !strings.Contains(old.PTX, "\n.version 6.3\n") {
		t.Error("PTX for sm_70 has multimem instructions, or a version that old drivers refuse")
	}
	p, err := compileText(t, multimem+"\n//gpu:arch sm_90\n", Options{})
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(p.PTX, "\n.version 8.1\n") {
		t.Error("the PTX names no version that has multimem")
	}
	ptx := bodyOf(t, p, "Use")
	for _, want := range []string{
		`add\.u32 %r\d+, \[%rd\d+\]`, `add\.u64 %rd\d+,`, `min\.s32 `, `min\.u32 `, `max\.s64 `, `max\.u64 `, `and\.b32 `, `or\.b64 `, `add\.f32 %f\d+,`,
	} {
		if !regexp.MustCompile(`multimem\.ld_reduce\.relaxed\.sys\.global\.` + want).MatchString(ptx) {
			t.Errorf("no multimem.ld_reduce of %s", want)
		}
	}
	for _, want := range []string{`u32 \[%rd\d+\], %r\d+;`, `u64 \[%rd\d+\], %rd\d+;`, `v4\.f32 \[%rd\d+\], \{%f\d+, %f\d+, %f\d+, %f\d+\};`} {
		if !regexp.MustCompile(`multimem\.st\.relaxed\.sys\.global\.` + want).MatchString(ptx) {
			t.Errorf("no multimem.st of %s", want)
		}
	}
	if a, err := FindAssembler(t.Context()); err == nil {
		if _, _, err := a.Assemble(t.Context(), p, 90); err != nil {
			t.Error(err)
		}
	}
}
