// SPDX-License-Identifier: Apache-2.0

package compiler

import (
	"fmt"
	"go/ast"
	"go/token"
	"strconv"
	"strings"

	"golang.org/x/tools/go/ssa"
)

// unroller is the comment in the line above a loop that says how many of its rounds become one: 1 for none, else LLVM
// does so many, whatever it costs, and a loop for the rest.
const unroller = "//gpu:unroll"

// maxUnroll is more than any loop should have: text grows by it.
const maxUnroll = 64

// place is a line of a source.
type place struct {
	file string
	line int
}

// unrolls finds the comments of a file, by the line of their loops. One that is above no loop does nothing, and is refused.
func unrolls(r *reporter, fset *token.FileSet, f *ast.File, into map[place]int) {
	loops := map[int]bool{}
	for n := range ast.Preorder(f) {
		switch n.(type) {
		case *ast.ForStmt, *ast.RangeStmt:
			loops[fset.Position(n.Pos()).Line] = true
		}
	}
	for _, g := range f.Comments {
		for _, c := range g.List {
			rest, ok := strings.CutPrefix(c.Text, unroller)
			if !ok {
				continue
			}
			at := fset.Position(c.Pos())
			n, err := strconv.Atoi(strings.TrimSpace(rest))
			switch {
			case err != nil || n < 1 || n > maxUnroll:
				r.addAt(r.short(at), nil, fmt.Sprintf("%s %q: accepted are 1 to %d rounds", unroller, strings.TrimSpace(rest), maxUnroll))
			case !loops[at.Line+1]:
				r.addAt(r.short(at), nil, unroller+" above no loop: it belongs in the line before for")
			default:
				into[place{at.Filename, at.Line + 1}] = n
			}
		}
	}
}

// asked is the loops of the function that a comment is above, by their headers. go/ssa knows no statements: a statement's
// loop is the largest of which each instruction stands in it.
func (e *emitter) asked() map[*ssa.BasicBlock]int {
	heads := map[*ssa.BasicBlock]int{}
	if len(e.unroll) == 0 || e.f.Syntax() == nil {
		return heads
	}
	all := loopsOf(e.f)
	ast.Inspect(e.f.Syntax(), func(n ast.Node) bool {
		switch n.(type) {
		case *ast.FuncLit:
			return n == e.f.Syntax() // others are functions of their own
		case *ast.ForStmt, *ast.RangeStmt:
		default:
			return true
		}
		p := e.fset.Position(n.Pos())
		rounds := e.unroll[place{p.Filename, p.Line}]
		if rounds == 0 {
			return true
		}
		var best *ssa.BasicBlock
		for head, body := range all {
			if inside(n, body) && (best == nil || len(body) > len(all[best])) {
				best = head
			}
		}
		if best == nil || !e.live[best] {
			e.errorf(n.Pos(), "%s above what is no loop any more: take the comment away", unroller)
			return true
		}
		heads[best] = rounds
		return true
	})
	return heads
}

// inside says whether blocks are those of a statement, or part of it.
func inside(n ast.Node, body []*ssa.BasicBlock) bool {
	some := false
	for _, b := range body {
		for _, in := range b.Instrs {
			if _, ok := in.(*ssa.Phi); ok || !in.Pos().IsValid() { // a phi stands where its variable is declared
				continue
			}
			if in.Pos() < n.Pos() || in.Pos() >= n.End() {
				return false
			}
			some = true
		}
	}
	return some
}
