// SPDX-License-Identifier: Apache-2.0

package compiler

import (
	"fmt"
	"go/types"
	"strconv"
	"strings"
)

// sizes is Go's layout, which host, Go kernels and PTX share.
var sizes = types.SizesFor("gc", "amd64")

// isGPU says whether t is the vocabulary's type of that name.
func isGPU(t types.Type, name string) bool {
	n, ok := types.Unalias(t).(*types.Named)
	return ok && n.Obj().Pkg() != nil && n.Obj().Pkg().Path() == gpuPath && n.Obj().Name() == name
}

// memType is the LLVM type of a t in memory, "" for one that device code cannot hold. LLVM's aggregates describe values
// alone: memory is addressed by Go's byte offsets, so that two rules of layout can never disagree.
func memType(t types.Type) string {
	switch {
	case isGPU(t, "Thread"):
		return "{}" // it exists in the types alone
	case isGPU(t, "Ptr"):
		return "ptr"
	}
	switch u := t.Underlying().(type) {
	case *types.Basic:
		return basicType(u)
	case *types.Pointer:
		return "ptr"
	case *types.Slice:
		return sliceType
	case *types.Array:
		elem := memType(u.Elem())
		if elem == "" {
			return ""
		}
		return fmt.Sprintf("[%d x %s]", u.Len(), elem)
	case *types.Struct:
		var fields []string
		for i := range u.NumFields() {
			f := memType(u.Field(i).Type())
			if f == "" {
				return ""
			}
			fields = append(fields, f)
		}
		return group(fields)
	}
	return ""
}

const sliceType = "{ ptr, i64, i64 }"

func basicType(b *types.Basic) string {
	switch b.Kind() {
	case types.Bool, types.UntypedBool, types.Int8, types.Uint8:
		return "i8"
	case types.Int16, types.Uint16:
		return "i16"
	case types.Int32, types.Uint32, types.UntypedRune:
		return "i32"
	case types.Int, types.Uint, types.Int64, types.Uint64, types.Uintptr, types.UntypedInt:
		return "i64"
	case types.Float32:
		return "float"
	case types.Float64, types.UntypedFloat:
		return "double"
	case types.UnsafePointer, types.UntypedNil:
		return "ptr"
	}
	return ""
}

func group(fields []string) string {
	if len(fields) == 0 {
		return "{}"
	}
	return "{ " + strings.Join(fields, ", ") + " }"
}

// valType is the LLVM type of a t as a value: a bool is one bit, a tuple a struct.
func valType(t types.Type) string {
	if isBool(t) {
		return "i1"
	}
	tuple, ok := t.(*types.Tuple)
	if !ok {
		return memType(t)
	}
	switch tuple.Len() {
	case 0:
		return "void"
	case 1:
		return valType(tuple.At(0).Type())
	}
	var fields []string
	for v := range tuple.Variables() {
		f := valType(v.Type())
		if f == "" {
			return ""
		}
		fields = append(fields, f)
	}
	return group(fields)
}

func isBool(t types.Type) bool { return basicInfo(t)&types.IsBoolean != 0 }

func isUnsigned(t types.Type) bool { return basicInfo(t)&types.IsUnsigned != 0 }

func basicInfo(t types.Type) types.BasicInfo {
	if b, ok := t.Underlying().(*types.Basic); ok {
		return b.Info()
	}
	return 0
}

func isAggregate(llt string) bool { return llt[0] == '{' || llt[0] == '[' }

// bits is the width of an LLVM integer type.
func bits(llt string) int {
	n, _ := strconv.Atoi(strings.TrimPrefix(llt, "i"))
	return n
}

// alignOf is Go's alignment, and what a vector promises besides.
func alignOf(t types.Type) int64 {
	if isGPU(t, "U32x4") || isGPU(t, "U32x2") {
		return sizes.Sizeof(t)
	}
	return max(sizes.Alignof(t), 1)
}

// alignAt is the alignment of the byte off after one that is aligned to align.
func alignAt(align, off int64) int64 {
	for off%align != 0 {
		align /= 2
	}
	return align
}

// fieldOffset is where field i of s stands.
func fieldOffset(s *types.Struct, i int) int64 {
	var fields []*types.Var
	for f := range s.Fields() {
		fields = append(fields, f)
	}
	return sizes.Offsetsof(fields)[i]
}

// leaf is a scalar inside a value: its offset in memory and its path in the LLVM type.
type leaf struct {
	typ  types.Type
	off  int64
	path []string
}

// leaves lists the scalars of t in order. Blank fields are nobody's: they are neither copied nor compared.
func leaves(t types.Type) []leaf {
	if isGPU(t, "Thread") {
		return nil
	}
	if isGPU(t, "Ptr") {
		return []leaf{{typ: t}}
	}
	var all []leaf
	inner := func(t types.Type, off int64, index int64) {
		for _, l := range leaves(t) {
			all = append(all, leaf{l.typ, off + l.off, append([]string{strconv.FormatInt(index, 10)}, l.path...)})
		}
	}
	switch u := t.Underlying().(type) {
	case *types.Struct:
		for i := range u.NumFields() {
			if f := u.Field(i); f.Name() != "_" {
				inner(f.Type(), fieldOffset(u, i), int64(i))
			}
		}
	case *types.Array:
		size := sizes.Sizeof(u.Elem())
		for i := range u.Len() {
			inner(u.Elem(), i*size, i)
		}
	case *types.Slice:
		inner(types.Typ[types.UnsafePointer], 0, 0)
		inner(types.Typ[types.Int], 8, 1)
		inner(types.Typ[types.Int], 16, 2)
	default:
		return []leaf{{typ: t}}
	}
	return all
}

// hasPointer says whether a t can hold an address.
func hasPointer(t types.Type) bool {
	if tuple, ok := t.(*types.Tuple); ok {
		for v := range tuple.Variables() {
			if hasPointer(v.Type()) {
				return true
			}
		}
		return false
	}
	if isGPU(t, "Thread") || memType(t) == "" {
		return false
	}
	for _, l := range leaves(t) {
		if memType(l.typ) == "ptr" {
			return true
		}
	}
	return false
}
