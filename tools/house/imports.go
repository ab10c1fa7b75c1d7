// SPDX-License-Identifier: Apache-2.0

package house

import (
	"fmt"
	"go/ast"
	"slices"
	"strings"
)

// CheckImports finds, in the non-test files of the folders that in selects, imports from outside: of neither the standard
// library nor this module nor the foreign modules given by their paths.
func CheckImports(t *Tree, in func(dir string) bool, modules []string) []Finding {
	return t.checkImports(in, func(im Import) string {
		allowed := im.Dir != "" || standard(im.Path) || slices.ContainsFunc(modules, func(m string) bool { return within(im.Path, m) })
		if allowed {
			return ""
		}
		return fmt.Sprintf("%s is foreign: allowed are the standard library, this module, %s", im.Path, strings.Join(modules, ", "))
	})
}

// CheckForbidden finds imports of the given paths ("C" is cgo) in the non-test files of the folders that in selects.
func CheckForbidden(t *Tree, in func(dir string) bool, paths ...string) []Finding {
	return t.checkImports(in, func(im Import) string {
		if !slices.Contains(paths, im.Path) {
			return ""
		}
		return im.Path + " is not imported here"
	})
}

func (t *Tree) checkImports(in func(dir string) bool, why func(Import) string) []Finding {
	var found []Finding
	for _, f := range t.Files {
		if f.Test() || !in(f.Dir()) {
			continue
		}
		for _, im := range t.Imports(f) {
			if w := why(im); w != "" {
				found = append(found, Finding{f.Path, im.Line, w})
			}
		}
	}
	return found
}

// standard reports whether an import path is of the standard library, whose first element has no dot.
func standard(p string) bool {
	first, _, _ := strings.Cut(p, "/")
	return !strings.Contains(first, ".")
}

// DeviceRule says what the device code of some files may import.
type DeviceRule struct {
	Name    string // for the finding
	Match   func(path string) bool
	Allowed []string // standard packages by path, folders of this module by "./folder"
}

// CheckDevice finds imports that device code may not have. Of the rules that match a file the first counts. Test files
// are exempt.
func CheckDevice(t *Tree, rules []DeviceRule) []Finding {
	var found []Finding
	for _, f := range t.Files {
		i := slices.IndexFunc(rules, func(r DeviceRule) bool { return r.Match(f.Path) })
		if !f.Go() || f.Test() || i < 0 {
			continue
		}
		for _, im := range t.Imports(f) {
			name := im.Path
			if im.Dir != "" {
				name = "./" + im.Dir
			}
			if !slices.Contains(rules[i].Allowed, name) {
				found = append(found, Finding{f.Path, im.Line, fmt.Sprintf("%s may not import %s: allowed are %s",
					rules[i].Name, name, strings.Join(rules[i].Allowed, ", "))})
			}
		}
	}
	return found
}

// Kernels reports whether a path is of a file of kernels.
func Kernels(p string) bool { return strings.HasSuffix(p, "_kernels.go") }

// CheckKernels finds, in files of kernels, what cannot be device code: maps, channels, interfaces, strings, goroutines,
// defer, select, and calls that allocate. Panic messages may be strings.
func CheckKernels(t *Tree) []Finding {
	var found []Finding
	for _, f := range t.Files {
		if f.AST == nil || !Kernels(f.Path) {
			continue
		}
		add := func(n ast.Node, what string) {
			found = append(found, Finding{f.Path, t.line(n), what + " in device code: it allocates nothing and uses no map, channel, interface or string"})
		}
		for _, d := range f.AST.Decls {
			if g, ok := d.(*ast.GenDecl); ok && len(g.Specs) > 0 {
				if _, ok := g.Specs[0].(*ast.ImportSpec); ok {
					continue
				}
			}
			ast.Inspect(d, func(n ast.Node) bool {
				if what := notDevice(n); what != "" {
					add(n, what)
				}
				if c, ok := n.(*ast.CallExpr); ok && isIdent(c.Fun, "panic") {
					return false
				}
				if _, ok := n.(*ast.TypeSpec); ok {
					return !isConstraint(n)
				}
				return true
			})
		}
	}
	return found
}

// isConstraint reports whether a type declaration is an interface of types (a constraint), which exists at compile time
// only.
func isConstraint(n ast.Node) bool {
	i, ok := n.(*ast.TypeSpec).Type.(*ast.InterfaceType)
	return ok && slices.ContainsFunc(i.Methods.List, func(f *ast.Field) bool { return len(f.Names) == 0 })
}

func notDevice(n ast.Node) string {
	switch n := n.(type) {
	case *ast.MapType:
		return "a map"
	case *ast.ChanType:
		return "a channel"
	case *ast.InterfaceType:
		return "an interface"
	case *ast.GoStmt:
		return "a goroutine"
	case *ast.DeferStmt:
		return "defer"
	case *ast.SelectStmt:
		return "select"
	case *ast.BasicLit:
		if n.Kind.String() == "STRING" {
			return "a string"
		}
	case *ast.Field:
		if isIdent(n.Type, "string") || isIdent(n.Type, "error") || isIdent(n.Type, "any") {
			return "a " + n.Type.(*ast.Ident).Name
		}
	case *ast.CallExpr:
		for _, fn := range []string{"make", "new", "append"} {
			if isIdent(n.Fun, fn) {
				return fn
			}
		}
	}
	return ""
}

func isIdent(e ast.Expr, name string) bool {
	id, ok := e.(*ast.Ident)
	return ok && id.Name == name
}
