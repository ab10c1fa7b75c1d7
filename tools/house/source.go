// SPDX-License-Identifier: Apache-2.0

package house

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/format"
	"regexp"
	"strings"
)

// CheckSyntax finds Go files that do not parse, which the other checks pass over.
func CheckSyntax(t *Tree) []Finding {
	var found []Finding
	for _, f := range t.Files {
		if f.Err != nil {
			found = append(found, Finding{f.Path, 0, f.Err.Error()})
		}
	}
	return found
}

// CheckUnsafe finds imports of unsafe outside files named *_unsafe.go (or *_unsafe_test.go), and functions in those files
// that hold logic: loops, switches, goroutines, or more than maxLines lines.
func CheckUnsafe(t *Tree, maxLines int) []Finding {
	var found []Finding
	for _, f := range t.Files {
		if !f.Go() || f.AST == nil {
			continue
		}
		if strings.HasSuffix(strings.TrimSuffix(strings.TrimSuffix(f.Path, ".go"), "_test"), "_unsafe") {
			found = append(found, logic(t, f, maxLines)...)
			continue
		}
		for _, im := range t.Imports(f) {
			if im.Path == "unsafe" {
				found = append(found, Finding{f.Path, im.Line, "unsafe is imported only in files named *_unsafe.go, which hold a few lines a function and no logic"})
			}
		}
	}
	return found
}

func logic(t *Tree, f *File, maxLines int) []Finding {
	var found []Finding
	for _, d := range f.AST.Decls {
		fn, ok := d.(*ast.FuncDecl)
		if !ok || fn.Body == nil || f.Test() {
			continue
		}
		if n := t.Fset.Position(fn.Body.Rbrace).Line - t.line(fn.Body) - 1; n > maxLines {
			found = append(found, Finding{f.Path, t.line(fn), fmt.Sprintf("%s has %d lines (at most %d in an unsafe file): move what needs no unsafe out",
				fn.Name.Name, n, maxLines)})
		}
		ast.Inspect(fn.Body, func(n ast.Node) bool {
			switch n.(type) {
			case *ast.ForStmt, *ast.RangeStmt, *ast.SwitchStmt, *ast.TypeSwitchStmt, *ast.SelectStmt, *ast.GoStmt:
				found = append(found, Finding{f.Path, t.line(n), fn.Name.Name + " holds logic (a loop, a switch or a goroutine): an unsafe file holds none"})
				return false
			}
			return true
		})
	}
	return found
}

// CheckSPDX finds files whose first line is not the licence line. In a script it may be the second, after the
// interpreter.
func CheckSPDX(t *Tree, licence string) []Finding {
	var found []Finding
	line := regexp.MustCompile(`^(//|#|/\*) SPDX-License-Identifier: ` + regexp.QuoteMeta(licence) + `( \*/)?\r?$`)
	for _, f := range t.Files {
		lines := bytes.SplitN(f.Data, []byte("\n"), 3)
		first := lines[0]
		if len(lines) > 1 && bytes.HasPrefix(first, []byte("#!")) {
			first = lines[1]
		}
		if !line.Match(first) {
			found = append(found, Finding{f.Path, 1, "the first line must be a comment `SPDX-License-Identifier: " + licence + "`"})
		}
	}
	return found
}

// CheckSize finds files of limit lines or more. Generated files are exempt.
func CheckSize(t *Tree, limit int) []Finding {
	var found []Finding
	for _, f := range t.Files {
		if n := bytes.Count(f.Data, []byte("\n")); n >= limit && !f.Generated() {
			found = append(found, Finding{f.Path, 0, fmt.Sprintf("%d lines (fewer than %d are allowed): split it by idea", n, limit)})
		}
	}
	return found
}

// CheckSleep finds calls of time.Sleep in test files whose line has no `// sleep: reason` comment.
func CheckSleep(t *Tree) []Finding {
	var found []Finding
	excuse := regexp.MustCompile(`// sleep: \S`)
	for _, f := range t.Files {
		if f.AST == nil || !f.Test() {
			continue
		}
		lines := bytes.Split(f.Data, []byte("\n"))
		ast.Inspect(f.AST, func(n ast.Node) bool {
			c, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			s, ok := c.Fun.(*ast.SelectorExpr)
			if !ok || s.Sel.Name != "Sleep" || !isIdent(s.X, "time") {
				return true
			}
			if l := t.line(c); !excuse.Match(lines[l-1]) {
				found = append(found, Finding{f.Path, l, "wait for the event that is meant, or say why not: `// sleep: reason` on this line"})
			}
			return true
		})
	}
	return found
}

// CheckFormat finds Go files that gofmt would change.
func CheckFormat(t *Tree) []Finding {
	var found []Finding
	for _, f := range t.Files {
		if f.AST == nil {
			continue
		}
		if out, err := format.Source(f.Data); err == nil && !bytes.Equal(out, f.Data) {
			found = append(found, Finding{f.Path, 0, "not as gofmt writes it: run `gofmt -w`"})
		}
	}
	return found
}
