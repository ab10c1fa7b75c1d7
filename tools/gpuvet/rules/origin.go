// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"go/token"
	"go/types"

	"golang.org/x/tools/go/ssa"
)

// origin is where an address comes from.
type origin struct {
	kind  kind
	field field          // of a pointee
	param *ssa.Parameter // of a param
}

type kind int

const (
	unknown kind = iota
	local        // a variable of the function
	shared       // a gpu.Shared
	pointee      // what a field of a struct points to
	param
)

// field is a field of a named struct.
type field struct {
	owner *types.TypeName
	name  string
}

func (f field) String() string { return f.owner.Name() + "." + f.name }

// in says whether it is a field of a structure that host and device share, and in a table of such.
func (f field) in(table map[string]bool) bool {
	return f.owner.Pkg() != nil && f.owner.Pkg().Path() == abiPath && table[f.String()]
}

// origins are where an address may come from; parameters are followed to the calls in this package.
func (c *checker) origins(v ssa.Value) []origin {
	found := map[origin]bool{}
	seen := map[ssa.Value]bool{}
	work := []ssa.Value{v}
	for len(work) > 0 {
		v := work[len(work)-1]
		work = work[:len(work)-1]
		if seen[v] {
			continue
		}
		seen[v] = true
		o, next := step(v)
		if o.kind == param {
			next = c.passed(o.param)
		}
		if len(next) == 0 {
			found[o] = true
		}
		work = append(work, next...)
	}
	var all []origin
	for o := range found {
		all = append(all, o)
	}
	return all
}

// passed is what calls in this package pass for a parameter.
func (c *checker) passed(p *ssa.Parameter) []ssa.Value {
	f := p.Parent()
	var values []ssa.Value
	for i, q := range f.Params {
		if q != p {
			continue
		}
		for _, call := range c.callers[f] {
			if i < len(call.Call.Args) {
				values = append(values, call.Call.Args[i])
			}
		}
	}
	return values
}

// step goes one step back: to an origin, or to values that the address is made from.
func step(v ssa.Value) (origin, []ssa.Value) {
	switch v := v.(type) {
	case *ssa.Call:
		switch word(v) {
		case "Ptr.At", "Ptr.Byte", "Ptr.Raw", "Cast", "PtrTo", "PtrOf", "Slice":
			return origin{}, v.Call.Args[:1]
		case "Shared.Of":
			return origin{kind: shared}, nil
		}
	case *ssa.FieldAddr:
		return origin{}, []ssa.Value{v.X}
	case *ssa.IndexAddr:
		return origin{}, []ssa.Value{v.X}
	case *ssa.Slice:
		return origin{}, []ssa.Value{v.X}
	case *ssa.ChangeType:
		return origin{}, []ssa.Value{v.X}
	case *ssa.Convert:
		return origin{}, []ssa.Value{v.X}
	case *ssa.Phi:
		return origin{}, v.Edges
	case *ssa.Alloc:
		return origin{kind: local}, nil
	case *ssa.Parameter:
		return origin{kind: param, param: v}, nil
	case *ssa.Field:
		return pointeeOf(v.X.Type(), v.Field), nil
	case *ssa.UnOp:
		if a, ok := v.X.(*ssa.FieldAddr); ok && v.Op == token.MUL {
			return pointeeOf(a.X.Type().Underlying().(*types.Pointer).Elem(), a.Field), nil
		}
	}
	return origin{}, nil
}

func pointeeOf(t types.Type, i int) origin {
	n, ok := types.Unalias(t).(*types.Named)
	if !ok {
		return origin{}
	}
	return origin{kind: pointee, field: field{n.Origin().Obj(), n.Underlying().(*types.Struct).Field(i).Name()}}
}
