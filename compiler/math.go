// SPDX-License-Identifier: Apache-2.0

package compiler

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"golang.org/x/tools/go/ssa"
)

// maths is the functions of math and math/bits that are instructions, each with exactly Go's result.
var maths = map[string]func(*emitter, *ssa.Call) string{
	"math.Float32bits":     cast("bitcast float", "i32"),
	"math.Float32frombits": cast("bitcast i32", "float"),
	"math.Float64bits":     cast("bitcast double", "i64"),
	"math.Float64frombits": cast("bitcast i64", "double"),
	"math.Abs":             unary("fabs", "double", "f64"),
	"math.Sqrt":            unary("sqrt", "double", "f64"),
	"math.Floor":           unary("floor", "double", "f64"),
	"math.Ceil":            unary("ceil", "double", "f64"),
	"math.Trunc":           unary("trunc", "double", "f64"),
	"math.FMA":             fma,
	"math.IsNaN":           isNaN,

	"math/bits.OnesCount":       count("ctpop", "i64", "", false),
	"math/bits.OnesCount32":     count("ctpop", "i32", "", false),
	"math/bits.OnesCount64":     count("ctpop", "i64", "", false),
	"math/bits.TrailingZeros":   count("cttz", "i64", ", i1 false", false),
	"math/bits.TrailingZeros32": count("cttz", "i32", ", i1 false", false),
	"math/bits.TrailingZeros64": count("cttz", "i64", ", i1 false", false),
	"math/bits.LeadingZeros":    count("ctlz", "i64", ", i1 false", false),
	"math/bits.LeadingZeros32":  count("ctlz", "i32", ", i1 false", false),
	"math/bits.LeadingZeros64":  count("ctlz", "i64", ", i1 false", false),
	"math/bits.Len":             count("ctlz", "i64", ", i1 false", true),
	"math/bits.Len32":           count("ctlz", "i32", ", i1 false", true),
	"math/bits.Len64":           count("ctlz", "i64", ", i1 false", true),
	"math/bits.Reverse32":       unary("bitreverse", "i32", "i32"),
	"math/bits.Reverse64":       unary("bitreverse", "i64", "i64"),
	"math/bits.ReverseBytes32":  unary("bswap", "i32", "i32"),
	"math/bits.ReverseBytes64":  unary("bswap", "i64", "i64"),
	"math/bits.RotateLeft32":    rotate("i32"),
	"math/bits.RotateLeft64":    rotate("i64"),
}

func mathNames() string {
	var names []string
	for _, n := range slices.Sorted(maps.Keys(maths)) {
		names = append(names, strings.TrimPrefix(n, "math/"))
	}
	return strings.Join(names, ", ")
}

func cast(from, to string) func(*emitter, *ssa.Call) string {
	return func(e *emitter, in *ssa.Call) string { return e.ins("%s %s to %s", from, e.arg(in, 0), to) }
}

func unary(op, t, suffix string) func(*emitter, *ssa.Call) string {
	return func(e *emitter, in *ssa.Call) string {
		e.declare("%s @llvm.%s.%s(%s)", t, op, suffix, t)
		return e.ins("call %s @llvm.%s.%s(%s %s)", t, op, suffix, t, e.arg(in, 0))
	}
}

// count is a number of bits, as a Go int; less counts from the width down.
func count(op, t, more string, less bool) func(*emitter, *ssa.Call) string {
	return func(e *emitter, in *ssa.Call) string {
		decl := t
		if more != "" {
			decl += ", i1"
		}
		e.declare("%s @llvm.%s.%s(%s)", t, op, t, decl)
		n := e.ins("call %s @llvm.%s.%s(%s %s%s)", t, op, t, t, e.arg(in, 0), more)
		if less {
			n = e.ins("sub %s %d, %s", t, bits(t), n)
		}
		if t != "i64" {
			n = e.ins("zext %s %s to i64", t, n)
		}
		return n
	}
}

func rotate(t string) func(*emitter, *ssa.Call) string {
	return func(e *emitter, in *ssa.Call) string {
		e.declare("%s @llvm.fshl.%s(%s, %s, %s)", t, t, t, t, t)
		n := e.arg(in, 1) // an int; the instruction takes it modulo the width
		if t != "i64" {
			n = e.ins("trunc i64 %s to %s", n, t)
		}
		x := e.arg(in, 0)
		return e.ins("call %s @llvm.fshl.%s(%s %s, %s %s, %s %s)", t, t, t, x, t, x, t, n)
	}
}

func fma(e *emitter, in *ssa.Call) string {
	e.declare("double @llvm.fma.f64(double, double, double)")
	return e.ins("call double @llvm.fma.f64(double %s, double %s, double %s)", e.arg(in, 0), e.arg(in, 1), e.arg(in, 2))
}

func isNaN(e *emitter, in *ssa.Call) string {
	return e.ins("fcmp uno double %s, 0.0", e.arg(in, 0))
}

// convert rounds two float32 to one word, the first into its low half. It is inline PTX, since LLVM 19 lacks one of them.
func convert(llt, op, constraint string) func(*emitter, *ssa.Call, *ssa.Function) string {
	return func(e *emitter, in *ssa.Call, _ *ssa.Function) string {
		x := e.ins(`call %s asm "%s $0, $1, $2;", "=%s,f,f"(float %s, float %s) #5`, llt, op, constraint, e.arg(in, 1), e.arg(in, 0))
		if llt != "i32" {
			x = e.ins("zext %s %s to i32", llt, x)
		}
		return x
	}
}

// instead is what to call in place of a function that is no device code.
func instead(f *ssa.Function) string {
	if f.Package() == nil {
		return ""
	}
	switch path := f.Package().Pkg.Path(); path {
	case "sync/atomic":
		return ": use gpu.Load, gpu.Store and the gpu.Atomic functions"
	case "sync":
		return ": use SyncBlock, SyncWarp, or ordered operations of package gpu"
	case "time":
		return ": use Thread.Clock and Thread.Idle"
	case "fmt", "log", "errors", "strings", "strconv":
		return ": leave numbers in memory for the host, or panic with a constant"
	default:
		return fmt.Sprintf(": package %s has no source that is compiled for the GPU; write it with package gpu", path)
	}
}
