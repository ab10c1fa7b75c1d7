// SPDX-License-Identifier: Apache-2.0

package compiler

import (
	"fmt"
	"go/constant"
	"go/token"
	"go/types"
	"reflect"
	"slices"
	"strings"
)

// A variant is a kernel again, for launches in which some fields of the arguments have given values: loops over them are
// unrolled, divisions by them become multiplications, what they rule out is gone.
//
// A field with the tag `gpu:"split"` of a struct inside the arguments splits each kernel that takes it: the kernel itself, and
// what else its comments ask for, have it 0, and a variant has it 1. So neither carries the registers of what the other does.

// binding is such a field.
type binding struct {
	path  []string // names of fields, from the arguments in
	typ   types.Type
	off   int64
	value constant.Value
}

// variants is a kernel and what the comments under its own ask for, and its splits.
func (s *source) variants(r *reporter, m mark, e entry) []entry {
	var tagged []binding
	if argsName(s.ssa.Pkg, e.fn.Signature) != "" {
		tagged = splits(e.fn.Signature.Params().At(1).Type(), nil, 0)
	}
	e.bound = with(tagged, 0)
	all := []entry{e}
	for _, c := range m.variants {
		v := e
		v.of = e.name
		opts, warps := c.opts, ""
		if i := strings.LastIndex(" "+opts, " warps="); i >= 0 {
			opts, warps = opts[:i], opts[i:]
		}
		var err error
		if warps != "" {
			v.warps, err = warpsOf(warps)
		}
		if err != nil {
			r.addAt(r.short(c.line), nil, err.Error())
			continue
		}
		if v.bound, err = bind(e.fn.Signature.Params().At(1).Type(), opts); err == nil && argsName(s.ssa.Pkg, e.fn.Signature) == "" {
			err = fmt.Errorf("the arguments of kernel %s are no named type of its package, which a variant needs", m.name)
		}
		if err != nil {
			r.addAt(r.short(c.line), nil, err.Error())
			continue
		}
		for _, b := range v.bound {
			v.name += "_" + strings.Join(b.path, "_") + strings.ReplaceAll(b.value.ExactString(), "-", "minus")
		}
		taken := func(o entry) bool { return o.name == v.name }
		if slices.ContainsFunc(all, taken) || s.ssa.Func(v.name) != nil {
			r.addAt(r.short(c.line), nil, fmt.Sprintf("variant %s is there already", v.name))
			continue
		}
		v.bound = append(v.bound, with(tagged, 0)...)
		all = append(all, v)
	}
	for ones := 1; ones < 1<<len(tagged); ones++ {
		v := e
		v.of, v.split, v.bound = e.name, true, with(tagged, ones)
		for i, b := range v.bound {
			if ones>>i&1 != 0 {
				v.name += "_" + strings.Join(b.path, "_") + "1"
			}
		}
		all = append(all, v)
	}
	return all
}

// splits is the fields of a t with the tag, which stands off bytes into the arguments.
func splits(t types.Type, path []string, off int64) []binding {
	u, _ := t.Underlying().(*types.Struct)
	if u == nil || isGPU(t, "Ptr") {
		return nil
	}
	var all []binding
	for i := range u.NumFields() {
		f, at := u.Field(i), append(slices.Clip(path), u.Field(i).Name())
		if reflect.StructTag(u.Tag(i)).Get("gpu") == "split" {
			all = append(all, binding{path: at, typ: f.Type(), off: off + fieldOffset(u, i)})
		}
		all = append(all, splits(f.Type(), at, off+fieldOffset(u, i))...)
	}
	return all
}

// with is the fields with the values that are the bits of ones, the first field's lowest.
func with(fields []binding, ones int) []binding {
	all := slices.Clone(fields)
	for i := range all {
		all[i].value = constant.MakeInt64(int64(ones >> i & 1))
	}
	return all
}

// argsName is the name of a kernel's type of arguments in its package, "" if it has none.
func argsName(pkg *types.Package, s *types.Signature) string {
	n, ok := types.Unalias(s.Params().At(1).Type()).(*types.Named)
	if !ok || n.Obj().Pkg() != pkg || n.Obj().Parent() != pkg.Scope() || n.TypeArgs().Len() > 0 {
		return ""
	}
	return n.Obj().Name()
}

// bind reads "Field=7168 Inner.Field=8" for a struct of arguments.
func bind(args types.Type, text string) ([]binding, error) {
	var all []binding
	for _, word := range strings.Fields(text) {
		path, value, _ := strings.Cut(word, "=")
		b := binding{path: strings.Split(path, "."), typ: args}
		for _, name := range b.path {
			u, _ := b.typ.Underlying().(*types.Struct)
			i := -1
			if u != nil && !isGPU(b.typ, "Ptr") {
				i = slices.IndexFunc(slices.Collect(u.Fields()), func(f *types.Var) bool { return f.Name() == name && name != "_" })
			}
			if i < 0 {
				return nil, fmt.Errorf("variant with %s: %s has no field %s", word, b.typ, name)
			}
			b.off += fieldOffset(u, i)
			b.typ = u.Field(i).Type()
		}
		if b.value = literal(value, b.typ); b.value == nil {
			return nil, fmt.Errorf("variant with %s: accepted are values of %s, if that is an integer type or bool", word, b.typ)
		}
		if slices.ContainsFunc(all, func(o binding) bool { return o.off == b.off && slices.Equal(o.path, b.path) }) {
			return nil, fmt.Errorf("variant with %s: the field has a value already", word)
		}
		all = append(all, b)
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("variant of nothing: accepted are fields of the arguments with their values, as Hidden=7168 TopK=8")
	}
	return all, nil
}

// literal is text as a constant of an integer type or bool, nil if it is none.
func literal(text string, t types.Type) constant.Value {
	switch {
	case isBool(t) && (text == "true" || text == "false"):
		return constant.MakeBool(text == "true")
	case basicInfo(t)&types.IsInteger == 0:
		return nil
	}
	digits := strings.TrimPrefix(text, "-")
	v := constant.MakeFromLiteral(digits, token.INT, 0)
	if v.Kind() != constant.Int {
		return nil
	}
	if digits != text {
		v = constant.UnaryOp(token.SUB, v, 0)
	}
	least, most := constant.MakeInt64(0), constant.Shift(constant.MakeInt64(1), token.SHL, uint(8*sizes.Sizeof(t)))
	if !isUnsigned(t) {
		most = constant.Shift(most, token.SHR, 1)
		least = constant.UnaryOp(token.SUB, most, 0)
	}
	if constant.Compare(v, token.LSS, least) || !constant.Compare(v, token.LSS, most) {
		return nil
	}
	return v
}

// inMemory is the value as LLVM stores it.
func (b binding) inMemory() string {
	if isBool(b.typ) {
		return map[bool]string{true: "1", false: "0"}[constant.BoolVal(b.value)]
	}
	return b.value.ExactString()
}

// fits is the Go function that says whether arguments are those of the variant.
func fits(args string, bound []binding) string {
	var all []string
	for _, b := range bound {
		all = append(all, fmt.Sprintf("a.%s == %s", strings.Join(b.path, "."), b.value.ExactString()))
	}
	return fmt.Sprintf("func(a *%s) bool { return %s }", args, strings.Join(all, " && "))
}

// loadArgs reads a t that stands off bytes into the kernel's arguments: what is bound is not read.
func (e *emitter) loadArgs(off int64, t types.Type) string {
	v := e.load(e.gep("%args", off), t, alignAt(8, off))
	llt := e.memOf(t)
	for _, l := range leaves(t) {
		for _, b := range e.given {
			switch {
			case b.off != off+l.off:
			case len(l.path) == 0:
				return e.fromMem(e.ins("add %s %s, 0", llt, b.inMemory()), t)
			default:
				v = e.ins("insertvalue %s %s, %s %s, %s", llt, v, e.memOf(b.typ), b.inMemory(), strings.Join(l.path, ", "))
			}
		}
	}
	return v
}

// storeArgs makes the kernel's arguments a variable of their own.
func (e *emitter) storeArgs(to string, t types.Type) {
	e.copy(to, "%args", sizes.Sizeof(t), 8)
	for _, b := range e.given {
		e.line("store %s %s, ptr %s, align %d", e.memOf(b.typ), b.inMemory(), e.gep(to, b.off), alignAt(8, b.off))
	}
}
