// SPDX-License-Identifier: Apache-2.0

package doorbell_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestEachWaitIsTried looks that each loop of gin that waits is reached by a call in waits or stuckWaits, which are tried
// with a deadline, an abort, a loss and a failure.
func TestEachWaitIsTried(t *testing.T) {
	tried := ""
	for _, file := range []string{"ending_test.go", "stuck_test.go"} {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		tried += string(b)
	}
	calls := callsOf(t, "gin")
	loops := 0
	for loop, called := range calls {
		if loop == "step" || loop == "pause" || !called["step"] && !called["pause"] {
			continue
		}
		loops++
		found := false
		for f := range calls {
			found = found || ast.IsExported(f) && strings.Contains(tried, "."+f+"(") && reaches(calls, f, loop, map[string]bool{})
		}
		if !found {
			t.Errorf("%s of gin waits, and no call of waits or stuckWaits comes to it", loop)
		}
	}
	if loops < 4 {
		t.Errorf("%d loops that wait were found in gin", loops)
	}
}

// callsOf is what each function of a package calls, by names alone.
func callsOf(t *testing.T, folder string) map[string]map[string]bool {
	files, err := filepath.Glob(filepath.Join(folder, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	calls := map[string]map[string]bool{}
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range parsed.Decls {
			f, ok := d.(*ast.FuncDecl)
			if !ok || f.Body == nil {
				continue
			}
			called := calls[f.Name.Name]
			if called == nil {
				called = map[string]bool{}
				calls[f.Name.Name] = called
			}
			ast.Inspect(f.Body, func(n ast.Node) bool {
				call, ok := n.(*ast.CallExpr)
				if !ok {
					return true
				}
				fun := call.Fun
				if of, ok := fun.(*ast.IndexExpr); ok {
					fun = of.X // a type argument
				}
				switch fun := fun.(type) {
				case *ast.SelectorExpr:
					called[fun.Sel.Name] = true
				case *ast.Ident:
					called[fun.Name] = true
				}
				return true
			})
		}
	}
	return calls
}

func reaches(calls map[string]map[string]bool, from, to string, seen map[string]bool) bool {
	if from == to {
		return true
	}
	seen[from] = true
	for f := range calls[from] {
		if !seen[f] && calls[f] != nil && reaches(calls, f, to, seen) {
			return true
		}
	}
	return false
}
