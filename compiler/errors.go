// SPDX-License-Identifier: Apache-2.0

package compiler

import (
	"cmp"
	"fmt"
	"go/token"
	"path/filepath"
	"slices"
	"strings"
)

// Error is one thing in device code that cannot be compiled.
type Error struct {
	Pos   token.Position
	Msg   string  // what it is, and what to write instead
	Chain []Frame // how it was reached, innermost caller first; empty in a kernel itself
	minor bool    // it follows from another one, if there is another on its line
}

// Frame is a call on the way from a kernel.
type Frame struct {
	Caller string
	Pos    token.Position
}

func (e Error) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %s", e.Pos, e.Msg)
	for _, f := range e.Chain {
		fmt.Fprintf(&b, "\n\tcalled from %s at %s", f.Caller, f.Pos)
	}
	return b.String()
}

// Errors is all that was found in one run, in the order of the source.
type Errors []Error

func (es Errors) Error() string {
	var lines []string
	for _, e := range es {
		lines = append(lines, e.Error())
	}
	return strings.Join(lines, "\n")
}

// reporter collects errors, each place and message once.
type reporter struct {
	fset *token.FileSet
	dir  string // names of files are relative to it
	errs Errors
	seen map[string]bool
}

func newReporter(fset *token.FileSet, dir string) *reporter {
	return &reporter{fset: fset, dir: dir, seen: map[string]bool{}}
}

// position is where pos is, with a file name as short as a reader wants it.
func (r *reporter) position(pos token.Pos) token.Position {
	return r.short(r.fset.Position(pos))
}

func (r *reporter) short(p token.Position) token.Position {
	if rel, err := filepath.Rel(r.dir, p.Filename); err == nil && !strings.HasPrefix(rel, "../../..") && p.Filename != "" {
		p.Filename = filepath.ToSlash(rel)
	}
	return p
}

func (r *reporter) add(pos token.Pos, chain []Frame, format string, args ...any) {
	r.addAt(r.position(pos), chain, fmt.Sprintf(format, args...))
}

func (r *reporter) addAt(pos token.Position, chain []Frame, msg string) {
	if key := pos.String() + msg; !r.seen[key] {
		r.seen[key] = true
		r.errs = append(r.errs, Error{Pos: pos, Msg: msg, Chain: chain})
	}
}

// addMinor is add for what is not worth telling beside another error of its line.
func (r *reporter) addMinor(pos token.Pos, chain []Frame, format string, args ...any) {
	n := len(r.errs)
	r.add(pos, chain, format, args...)
	if len(r.errs) > n {
		r.errs[n].minor = true
	}
}

// err is what was collected, nil for nothing.
func (r *reporter) err() error {
	type line struct {
		file string
		n    int
	}
	major := map[line]bool{}
	for _, e := range r.errs {
		if !e.minor {
			major[line{e.Pos.Filename, e.Pos.Line}] = true
		}
	}
	r.errs = slices.DeleteFunc(r.errs, func(e Error) bool { return e.minor && major[line{e.Pos.Filename, e.Pos.Line}] })
	if len(r.errs) == 0 {
		return nil
	}
	slices.SortStableFunc(r.errs, func(a, b Error) int {
		return cmp.Or(cmp.Compare(a.Pos.Filename, b.Pos.Filename), cmp.Compare(a.Pos.Line, b.Pos.Line), cmp.Compare(a.Pos.Column, b.Pos.Column))
	})
	return r.errs
}
