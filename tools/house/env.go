// SPDX-License-Identifier: Apache-2.0

package house

import (
	"fmt"
	"go/ast"
	"go/token"
	"regexp"
	"slices"
)

var variable = regexp.MustCompile("^[\"`](DOORBELL_[A-Z0-9_]+)=?[\"`]$")

// CheckEnv finds, in non-test files outside the registry's own folder, DOORBELL_* variables that are read past the
// registry (os.Getenv and the like), and string literals that name one which is not declared there.
func CheckEnv(t *Tree, registry string, declared []string) []Finding {
	var found []Finding
	for _, f := range t.Files {
		if f.AST == nil || f.Test() || f.Dir() == registry {
			continue
		}
		ast.Inspect(f.AST, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.CallExpr:
				if name := getenv(n); name != "" {
					found = append(found, Finding{f.Path, t.line(n), fmt.Sprintf("read %s through its variable in %s", name, registry)})
				}
			case *ast.BasicLit:
				if name := variableName(n); name != "" && !slices.Contains(declared, name) {
					found = append(found, Finding{f.Path, t.line(n), fmt.Sprintf("%s is not declared in %s", name, registry)})
				}
			}
			return true
		})
	}
	return found
}

// getenv returns the variable that a call reads from the process's environment, "" if it is no such call.
func getenv(c *ast.CallExpr) string {
	s, ok := c.Fun.(*ast.SelectorExpr)
	if !ok || len(c.Args) == 0 || !isIdent(s.X, "os") && !isIdent(s.X, "syscall") || s.Sel.Name != "Getenv" && s.Sel.Name != "LookupEnv" {
		return ""
	}
	l, ok := c.Args[0].(*ast.BasicLit)
	if !ok {
		return ""
	}
	return variableName(l)
}

func variableName(l *ast.BasicLit) string {
	if l.Kind != token.STRING {
		return ""
	}
	if m := variable.FindStringSubmatch(l.Value); m != nil {
		return m[1]
	}
	return ""
}
