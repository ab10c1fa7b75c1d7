// SPDX-License-Identifier: Apache-2.0

package compiler

import (
	"fmt"
	"strings"

	"golang.org/x/tools/go/ssa"
)

// Loads and stores of multimem addresses, as inline PTX of ISA 8.1 (PTX ISA, multimem). What packages for older GPUs have of
// them is behind gpu.HasMultimem, which is false there: LLVM drops it, and what stands for it until then does nothing.

const multimemArch = 90

// multimemVersion names the PTX version that the instructions came with, where LLVM, to which they are text, has named an
// older one. Drivers of CUDA 12.1 and later take it.
func multimemVersion(ptx string) string {
	if strings.Contains(ptx, "multimem.") {
		return strings.Replace(ptx, "\n.version 8.0\n", "\n.version 8.1\n", 1)
	}
	return ptx
}

func (e *emitter) hasMultimem(*ssa.Call, *ssa.Function) string {
	return fmt.Sprint(e.opt.number() >= multimemArch)
}

func (e *emitter) multimemStore(in *ssa.Call, f *ssa.Function) string {
	if e.opt.number() >= multimemArch {
		llt, t, c := word(element(f))
		e.line(`call void asm sideeffect "multimem.st.relaxed.sys.global.%s [$0], $1;", "l,%s,~{memory}"(%s, %s %s) #3`, t, c, e.space(in, 0, 1), llt, e.arg(in, 1))
	}
	return ""
}

func (e *emitter) multimemStore4(in *ssa.Call, _ *ssa.Function) string {
	if e.opt.number() >= multimemArch {
		var words []string
		for i := range 4 {
			x := e.ins("extractvalue %s %s, %d", e.memOf(in.Common().Args[1].Type()), e.arg(in, 1), i)
			words = append(words, "float "+e.ins("bitcast i32 %s to float", x))
		}
		e.line(`call void asm sideeffect "multimem.st.relaxed.sys.global.v4.f32 [$0], {$1, $2, $3, $4};", "l,f,f,f,f,~{memory}"(%s, %s) #3`,
			e.space(in, 0, 1), strings.Join(words, ", "))
	}
	return ""
}

// multimemReduce is a load that reduces. Bits are of no sign, and so is a sum, of which PTX has no signed one of 64 bits.
func multimemReduce(op string, signed, ofBits bool) func(*emitter, *ssa.Call, *ssa.Function) string {
	return func(e *emitter, in *ssa.Call, f *ssa.Function) string {
		if e.opt.number() < multimemArch {
			return "zeroinitializer"
		}
		llt, t, c := word(element(f))
		switch {
		case ofBits:
			t = fmt.Sprintf("b%d", bits(llt))
		case signed && !isUnsigned(element(f)):
			t = fmt.Sprintf("s%d", bits(llt))
		}
		return e.ins(`call %s asm sideeffect "multimem.ld_reduce.relaxed.sys.global.%s.%s $0, [$1];", "=%s,l,~{memory}"(%s) #3`, llt, op, t, c, e.space(in, 0, 1))
	}
}
