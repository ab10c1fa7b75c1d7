// SPDX-License-Identifier: Apache-2.0

package doorbell_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestMigrating looks that each name of ours in docs/migrating.md is there, and that each row of its tables has one or says
// that there is none.
func TestMigrating(t *testing.T) {
	text, err := os.ReadFile("docs/migrating.md")
	if err != nil {
		t.Fatal(err)
	}
	there := map[string]bool{}
	for name, folder := range map[string]string{"doorbell": ".", "gin": "gin", "gpu": "gpu", "moe": "moe"} {
		exported(t, name, folder, there)
	}
	ours := regexp.MustCompile("`((?:doorbell|gin|gpu|moe)\\.[A-Za-z0-9.]+)`")
	for _, m := range ours.FindAllStringSubmatch(string(text), -1) {
		if !there[m[1]] {
			t.Errorf("%s is not there", m[1])
		}
	}
	rows := 0
	for line := range strings.Lines(string(text)) {
		cells := strings.Split(strings.TrimSpace(line), " | ")
		if !strings.HasPrefix(line, "| ") || strings.HasPrefix(line, "| There") {
			continue
		}
		if rows++; len(cells) != 3 {
			t.Errorf("a row of %d cells, want 3: %s", len(cells), line)
		} else if !ours.MatchString(cells[1]) && (cells[1] != "None" || len(strings.Fields(cells[2])) < 4) {
			t.Errorf("a row has no name of ours, and does not say what to do without: %s", line)
		}
	}
	if rows < 80 {
		t.Errorf("%d rows were found", rows)
	}
}

// exported notes what a package exports: names, and for types their fields and methods too.
func exported(t *testing.T, name, folder string, there map[string]bool) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(folder, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	note := func(names ...string) {
		if ast.IsExported(names[len(names)-1]) {
			there[name+"."+strings.Join(names, ".")] = true
		}
	}
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(f, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.FuncDecl:
				if n.Recv == nil {
					note(n.Name.Name)
				} else {
					note(receiver(n.Recv.List[0].Type), n.Name.Name)
				}
				return false
			case *ast.TypeSpec:
				note(n.Name.Name)
				if s, ok := n.Type.(*ast.StructType); ok {
					for _, field := range s.Fields.List {
						for _, id := range field.Names {
							note(n.Name.Name, id.Name)
						}
					}
				}
				return false
			case *ast.ValueSpec:
				for _, id := range n.Names {
					note(id.Name)
				}
			}
			return true
		})
	}
}

// receiver is the name of a method's type.
func receiver(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.StarExpr:
		return receiver(e.X)
	case *ast.IndexExpr:
		return receiver(e.X)
	case *ast.Ident:
		return e.Name
	}
	return ""
}
