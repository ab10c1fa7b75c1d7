// SPDX-License-Identifier: Apache-2.0

package compiler

import (
	"fmt"
	"go/types"
	"strconv"
	"strings"

	"golang.org/x/tools/go/ssa"
)

// maxArgs is how large a kernel's parameters may be on every architecture.
const maxArgs = 4096

// maxWarps is how many warps a block has at most.
const maxWarps = 32

// entry is a kernel on its way through the compiler.
type entry struct {
	name  string
	of    string // the kernel that it is a variant of, empty if it is none
	fn    *ssa.Function
	args  int64 // bytes
	warps int   // in a block at most
	bound []binding
	split bool // some of it is 1 by a tag
}

// entries checks the marked functions of a package.
func (s *source) entries(r *reporter) []entry {
	var all []entry
	for _, m := range s.marks {
		e := entry{name: m.name, fn: s.ssa.Func(m.name), warps: maxWarps}
		if m.opts != "" {
			var err error
			if e.warps, err = warpsOf(m.opts); err != nil {
				r.addAt(r.short(m.line), nil, err.Error())
				continue
			}
		}
		args := e.fn.Signature.Params().At(1).Type()
		if why := fixedLayout(args, args.String()); why != "" {
			r.add(e.fn.Pos(), nil, "arguments of kernel %s: %s", m.name, why)
			continue
		}
		e.args = sizes.Sizeof(args)
		if e.args == 0 || e.args > maxArgs {
			instead := "put more into memory and pass a gpu.Ptr"
			if e.args == 0 {
				instead = "a kernel writes somewhere, so pass a gpu.Ptr"
			}
			r.add(e.fn.Pos(), nil, "arguments of kernel %s are %d bytes: 1 to %d are accepted; %s", m.name, e.args, maxArgs, instead)
			continue
		}
		all = append(all, s.variants(r, m, e)...)
	}
	return all
}

// warpsOf reads "warps=8".
func warpsOf(text string) (int, error) {
	number, ok := strings.CutPrefix(text, "warps=")
	n, err := strconv.Atoi(number)
	if !ok || err != nil || n < 1 || n > maxWarps {
		return 0, fmt.Errorf("kernel option %q: accepted is warps=N, the most warps a block has, 1 to 32", text)
	}
	return n, nil
}

// signatures checks what the generated file relies on.
func (s *source) signatures(r *reporter, pkg *types.Package) {
	for _, m := range s.marks {
		f, ok := pkg.Scope().Lookup(m.name).(*types.Func)
		why := "is a method"
		if ok {
			why = signature(f.Signature())
		}
		if why != "" {
			r.addAt(r.short(m.line), nil, fmt.Sprintf("kernel %s %s: a kernel is func %s(t gpu.Thread, a Args), Args a struct of fixed layout", m.name, why, m.name))
		}
	}
}

// signature says what is wrong with a kernel's signature, "" for nothing.
func signature(s *types.Signature) string {
	switch {
	case s.TypeParams().Len() > 0:
		return "has type parameters"
	case s.Results().Len() > 0:
		return "returns a value"
	case s.Variadic() || s.Params().Len() != 2:
		return "has " + strconv.Itoa(s.Params().Len()) + " parameters"
	case !isGPU(s.Params().At(0).Type(), "Thread"):
		return "has a first parameter of type " + s.Params().At(0).Type().String()
	}
	if _, ok := s.Params().At(1).Type().Underlying().(*types.Struct); !ok {
		return "has arguments of type " + s.Params().At(1).Type().String()
	}
	return ""
}

// fixedLayout says why a t cannot be copied from the host to a kernel, "" when it can.
func fixedLayout(t types.Type, name string) string {
	switch {
	case isGPU(t, "Ptr"):
		return ""
	case isGPU(t, "Thread"):
		return name + " is a gpu.Thread, which is a kernel's own"
	}
	switch u := t.Underlying().(type) {
	case *types.Struct:
		for f := range u.Fields() {
			if why := fixedLayout(f.Type(), name+"."+f.Name()); why != "" {
				return why
			}
		}
		return ""
	case *types.Array:
		return fixedLayout(u.Elem(), name+"[]")
	case *types.Pointer, *types.Slice:
		return name + " is a " + t.String() + ", which points to Go's heap: pass a gpu.Ptr"
	case *types.Basic:
		switch {
		case u.Kind() == types.UnsafePointer:
			return name + " is an unsafe.Pointer: pass a gpu.Ptr"
		case memType(t) != "":
			return ""
		}
	}
	return name + " is a " + t.String() + ", which device code cannot hold" + insteadOfType(t)
}
