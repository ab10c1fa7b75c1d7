// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"go/types"
	"regexp"
	"strings"

	"golang.org/x/tools/go/analysis"
	"golang.org/x/tools/go/analysis/passes/buildssa"
	"golang.org/x/tools/go/ssa"
)

const (
	gpuPath = "github.com/doorbell-net/doorbell/gpu"
	abiPath = "github.com/doorbell-net/doorbell/internal/abi"
)

// checker is one package under analysis.
type checker struct {
	pass    *analysis.Pass
	funcs   []*ssa.Function
	kernels []*ssa.Function
	device  map[*ssa.Function]bool
	callers map[*ssa.Function][]*ssa.Call // calls of a function of this package
	excused map[line]bool
}

type line struct {
	file string
	n    int
}

var excuse = regexp.MustCompile(`^//gpuvet:ok \S`)

func newChecker(pass *analysis.Pass) *checker {
	c := &checker{
		pass: pass, funcs: pass.ResultOf[buildssa.Analyzer].(*buildssa.SSA).SrcFuncs,
		device: map[*ssa.Function]bool{}, callers: map[*ssa.Function][]*ssa.Call{}, excused: map[line]bool{},
	}
	for _, f := range pass.Files {
		for _, g := range f.Comments {
			for _, m := range g.List {
				if p := pass.Fset.Position(m.Pos()); excuse.MatchString(m.Text) {
					c.excused[line{p.Filename, p.Line}] = true
				}
			}
		}
	}
	var roots []*ssa.Function
	for _, f := range c.funcs {
		if takesThread(f.Signature) {
			roots = append(roots, f)
			if c.marked(f) {
				c.kernels = append(c.kernels, f)
			}
		}
		for _, call := range callsOf(f) {
			if fn := callee(call); fn != nil {
				c.callers[fn] = append(c.callers[fn], call)
			}
		}
	}
	c.reach(roots, c.device)
	return c
}

// reach adds roots, and what they call in this package.
func (c *checker) reach(roots []*ssa.Function, seen map[*ssa.Function]bool) {
	for len(roots) > 0 {
		f := roots[len(roots)-1]
		roots = roots[:len(roots)-1]
		if seen[f] {
			continue
		}
		seen[f] = true
		for _, call := range callsOf(f) {
			if fn := callee(call); fn != nil && fn.Blocks != nil {
				roots = append(roots, fn)
			}
		}
	}
}

// marked says whether a function has the comment that makes it a kernel.
func (c *checker) marked(f *ssa.Function) bool {
	p := c.pass.Fset.Position(f.Pos())
	for _, file := range c.pass.Files {
		if c.pass.Fset.Position(file.Pos()).Filename != p.Filename {
			continue
		}
		for _, g := range file.Comments {
			if end := c.pass.Fset.Position(g.End()).Line; end != p.Line-1 {
				continue
			}
			for _, m := range g.List {
				if strings.HasPrefix(m.Text, "//gpu:kernel") {
					return true
				}
			}
		}
	}
	return false
}

// takesThread says whether a function is one of device code by its signature: a gpu.Thread, or a struct with one.
func takesThread(s *types.Signature) bool {
	vars := []*types.Var{}
	if r := s.Recv(); r != nil {
		vars = append(vars, r)
	}
	for v := range s.Params().Variables() {
		vars = append(vars, v)
	}
	for _, v := range vars {
		if isThread(v.Type()) {
			return true
		}
		if st, ok := v.Type().Underlying().(*types.Struct); ok {
			for f := range st.Fields() {
				if isThread(f.Type()) {
					return true
				}
			}
		}
	}
	return false
}

func isThread(t types.Type) bool {
	n, ok := types.Unalias(t).(*types.Named)
	return ok && n.Obj().Name() == "Thread" && n.Obj().Pkg() != nil && n.Obj().Pkg().Path() == gpuPath
}

func callsOf(f *ssa.Function) []*ssa.Call {
	var calls []*ssa.Call
	for _, b := range f.Blocks {
		for _, in := range b.Instrs {
			if call, ok := in.(*ssa.Call); ok {
				calls = append(calls, call)
			}
		}
	}
	return calls
}

// callee is the function that is called, as it stands in the source; nil if it is not known.
func callee(call *ssa.Call) *ssa.Function {
	f := call.Call.StaticCallee()
	if f != nil && f.Origin() != nil {
		return f.Origin()
	}
	return f
}

// word is the name of the vocabulary's function that is called, "" for another: "Load", "Ptr.Load", "Thread.Idle".
func word(call *ssa.Call) string {
	f := callee(call)
	if f == nil || f.Object() == nil || f.Object().Pkg() == nil || f.Object().Pkg().Path() != gpuPath {
		return ""
	}
	r := f.Signature.Recv()
	if r == nil {
		return f.Name()
	}
	t := r.Type()
	if p, ok := t.(*types.Pointer); ok {
		t = p.Elem()
	}
	return types.Unalias(t).(*types.Named).Obj().Name() + "." + f.Name()
}
