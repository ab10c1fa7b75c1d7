// SPDX-License-Identifier: Apache-2.0

package compiler

import (
	"fmt"
	"go/constant"
	"go/token"
	"go/types"
	"math"
	"strconv"
	"strings"

	"golang.org/x/tools/go/ssa"
)

// emitter writes one function.
type emitter struct {
	*module
	s      spec
	f      *ssa.Function
	known  known
	names  map[ssa.Value]string   // LLVM values
	funcs  map[ssa.Value]*closure // function values that are known
	byval  ssa.Value              // the kernel's arguments, in parameter memory at %args
	given  []binding              // of those
	live   map[*ssa.BasicBlock]bool
	last   map[*ssa.BasicBlock]string // label of the block's last part
	back   map[*ssa.BasicBlock]string // what its branch ends with, if it is one back to a loop
	lines  []string
	allocs []string
	phis   map[int]*ssa.Phi // by line
	label  string
	n      int
	scope  string // debug: the function
	dbg    string // debug: what each instruction ends with
	pos    token.Pos
}

// function compiles s; k is not nil for a kernel.
func (m *module) function(s spec, k *entry) {
	u := m.units[s]
	if len(s.fn.Blocks) == 0 {
		m.add(u.pos, m.chain(u.caller), "call of %s, which is not device code%s", s.fn.RelString(nil), instead(s.fn))
		return
	}
	e := &emitter{module: m, s: s, f: s.fn, names: map[ssa.Value]string{}, funcs: map[ssa.Value]*closure{},
		last: map[*ssa.BasicBlock]string{}, phis: map[int]*ssa.Phi{}, pos: s.fn.Pos()}
	if u != nil {
		e.known = u.known
	}
	head := e.head(k)
	e.live = reachable(s.fn)
	e.spins()
	e.back = e.unrolled()
	for _, b := range s.fn.DomPreorder() { // definitions before uses, but for phis
		if !e.live[b] {
			continue
		}
		e.start(blockName(b))
		if b.Index == 0 && k != nil && passedOn(e.byval) {
			e.names[e.byval] = e.loadArgs(0, e.byval.Type())
		}
		for _, in := range b.Instrs {
			e.at(in.Pos())
			e.instr(in)
		}
		e.last[b] = e.label
	}
	for i, p := range e.phis {
		e.lines[i] = e.phi(p)
	}
	fmt.Fprintf(&m.out, "%s {\nentry:\n%s  br label %%b0\n%s}\n\n", head, strings.Join(e.allocs, ""), strings.Join(e.lines, ""))
}

// head is the function's first line; it names the parameters.
func (e *emitter) head(k *entry) string {
	if e.opt.Debug {
		p := e.fset.Position(e.f.Pos())
		file := e.file(e.sourceName(e.f, e.f.Pos()))
		e.scope = e.md("distinct !DISubprogram(name: %q, scope: %s, file: %s, line: %d, type: !2, scopeLine: %d, spFlags: DISPFlagDefinition | DISPFlagOptimized, unit: !0)",
			e.f.RelString(nil), file, file, p.Line, p.Line)
	}
	e.at(e.f.Pos())
	tail := ""
	if e.scope != "" {
		tail = " !dbg " + e.scope
	}
	if k != nil {
		e.names[e.f.Params[0]] = "zeroinitializer"
		e.byval, e.given = e.f.Params[1], k.bound
		return fmt.Sprintf("define ptx_kernel void @%s(ptr noalias nocapture readonly byval([%d x i8]) align 8 %%args) #1%s", k.name, k.args, tail)
	}
	var params []string
	for i, p := range e.f.Params {
		n := fmt.Sprintf("%%p%d", i)
		if c := e.known.funcs[p]; c != nil {
			params = append(params, c.envType+" "+n)
			e.funcs[p] = &closure{c.fn, n, c.envType}
			continue
		}
		params = append(params, e.typeOf(p.Type(), p.Pos())+" "+n)
		e.names[p] = n
	}
	for i, v := range e.f.FreeVars {
		n := fmt.Sprintf("%%f%d", i)
		params = append(params, e.typeOf(v.Type(), v.Pos())+" "+n)
		e.names[v] = n
	}
	return e.signatureOf(e.units[e.s].name, params) + tail
}

// passedOn says whether a kernel's arguments are used as one value, and not only field by field or from their variable.
func passedOn(args ssa.Value) bool {
	for _, r := range *args.Referrers() {
		switch r.(type) {
		case *ssa.Field, *ssa.Store, *ssa.DebugRef:
		default:
			return true
		}
	}
	return false
}

// reachable is the blocks that run, constants decided: code for another target is not device code.
func reachable(f *ssa.Function) map[*ssa.BasicBlock]bool {
	live := map[*ssa.BasicBlock]bool{}
	work := []*ssa.BasicBlock{f.Blocks[0]}
	for len(work) > 0 {
		b := work[len(work)-1]
		work = work[:len(work)-1]
		if live[b] {
			continue
		}
		live[b] = true
		for _, s := range b.Succs {
			if takes(b, s) {
				work = append(work, s)
			}
		}
	}
	return live
}

// takes says whether b may go on to s.
func takes(b, s *ssa.BasicBlock) bool {
	i, ok := b.Instrs[len(b.Instrs)-1].(*ssa.If)
	if !ok {
		return true
	}
	c, ok := i.Cond.(*ssa.Const)
	if !ok || b.Succs[0] == b.Succs[1] {
		return true
	}
	if constant.BoolVal(c.Value) {
		return s == b.Succs[0]
	}
	return s == b.Succs[1]
}

// phi is written when all that goes into it has a name.
func (e *emitter) phi(p *ssa.Phi) string {
	if _, ok := p.Type().Underlying().(*types.Signature); ok {
		return "" // its use is refused
	}
	var in []string
	for i, v := range p.Edges {
		if pred := p.Block().Preds[i]; e.live[pred] && takes(pred, p.Block()) {
			in = append(in, fmt.Sprintf("[ %s, %%%s ]", e.value(v), e.last[pred]))
		}
	}
	return fmt.Sprintf("  %s = phi %s %s\n", e.names[p], e.typeOf(p.Type(), p.Pos()), strings.Join(in, ", "))
}

func blockName(b *ssa.BasicBlock) string { return fmt.Sprintf("b%d", b.Index) }

// errorf reports what is wrong at pos, and how the function was reached.
func (e *emitter) errorf(pos token.Pos, format string, args ...any) {
	e.add(e.placed(pos), e.chain(e.s), format, args...)
}

// minorf is errorf for what mostly follows from another error of its line.
func (e *emitter) minorf(pos token.Pos, format string, args ...any) {
	e.addMinor(e.placed(pos), e.chain(e.s), format, args...)
}

// placed is the first position that is one: pos, that of the instruction, the function's.
func (e *emitter) placed(pos token.Pos) token.Pos {
	for _, p := range []token.Pos{e.pos, e.f.Pos()} {
		if !pos.IsValid() {
			pos = p
		}
	}
	return pos
}

// typeOf is valType, reported when there is none.
func (e *emitter) typeOf(t types.Type, pos token.Pos) string {
	if v := valType(t); v != "" {
		return v
	}
	e.minorf(pos, "a value of type %s in device code%s", t, insteadOfType(t))
	return "i8"
}

// at sets the position of what follows.
func (e *emitter) at(p token.Pos) {
	if p.IsValid() {
		e.pos = p
	}
	if e.scope != "" {
		pos := e.fset.Position(e.pos)
		e.dbg = ", !dbg " + e.md("!DILocation(line: %d, column: %d, scope: %s)", pos.Line, pos.Column, e.scope)
	}
}

// line writes an instruction.
func (e *emitter) line(format string, args ...any) {
	e.lines = append(e.lines, "  "+fmt.Sprintf(format, args...)+e.dbg+"\n")
}

// ins writes an instruction that makes a value.
func (e *emitter) ins(format string, args ...any) string {
	t := e.tmp()
	e.line("%s = %s", t, fmt.Sprintf(format, args...))
	return t
}

func (e *emitter) tmp() string {
	e.n++
	return fmt.Sprintf("%%v%d", e.n)
}

func (e *emitter) newLabel(what string) string {
	e.n++
	return fmt.Sprintf("%s%d", what, e.n)
}

func (e *emitter) start(label string) {
	e.lines = append(e.lines, label+":\n")
	e.label = label
}

// alloca is a local variable. LLVM makes registers of it.
func (e *emitter) alloca(size, align int64) string {
	n := e.tmp()
	e.allocs = append(e.allocs, fmt.Sprintf("  %s = alloca [%d x i8], align %d\n", n, size, align))
	return n
}

// value is v's LLVM value.
func (e *emitter) value(v ssa.Value) string {
	if n, ok := e.names[v]; ok {
		return n
	}
	switch v := v.(type) {
	case *ssa.Const:
		return e.constant(v)
	case *ssa.Global:
		return e.table(v)
	case *ssa.Function:
		e.minorf(e.pos, "function value %s in device code: call it, or pass it to a function that is called directly", v.Name())
		return "null"
	}
	n := fmt.Sprintf("%%%s", v.Name()) // a phi before its turn, or a value whose making was refused
	e.names[v] = n
	return n
}

func (e *emitter) constant(c *ssa.Const) string {
	t := e.typeOf(c.Type(), e.pos)
	switch {
	case t == "ptr":
		return "null"
	case c.Value == nil || c.Value.Kind() == constant.String:
		return "zeroinitializer"
	case t == "i1":
		return strconv.FormatBool(constant.BoolVal(c.Value))
	case t == "float":
		f, _ := constant.Float32Val(constant.ToFloat(c.Value))
		return fmt.Sprintf("0x%016X", math.Float64bits(float64(f)))
	case t == "double":
		f, _ := constant.Float64Val(constant.ToFloat(c.Value))
		return fmt.Sprintf("0x%016X", math.Float64bits(f))
	}
	return constant.ToInt(c.Value).ExactString()
}
