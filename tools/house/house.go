// SPDX-License-Identifier: Apache-2.0

// Package house holds the checks that keep the tree as design.md says it is: which folder may import which, where unsafe
// may stand, what device code may use, what every file begins with. Each check reads a Tree of parsed sources and returns
// what it found; nothing is compiled, so that they cost a fraction of a second. The rules' data (floors, lists) is in
// house_test.go at the module root; house_test.go here shows on small planted trees that each check can fail.
package house

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path"
	"regexp"
	"strings"
)

// Finding is one broken rule.
type Finding struct {
	Path string // slash-separated, from the root of the tree
	Line int    // 0 where the whole file or folder is meant
	Msg  string // what is wrong and what would be right
}

func (f Finding) String() string {
	if f.Line == 0 {
		return f.Path + ": " + f.Msg
	}
	return fmt.Sprintf("%s:%d: %s", f.Path, f.Line, f.Msg)
}

// File is one source file.
type File struct {
	Path string
	Data []byte
	AST  *ast.File // Go files only, nil if it does not parse
	Err  error     // why it does not parse
}

// Dir returns the folder that holds the file, "." for the root.
func (f *File) Dir() string { return path.Dir(f.Path) }

// Go reports whether it is a Go file.
func (f *File) Go() bool { return strings.HasSuffix(f.Path, ".go") }

// Test reports whether it is a Go test file.
func (f *File) Test() bool { return strings.HasSuffix(f.Path, "_test.go") }

var generated = regexp.MustCompile(`(?m)^(//|#|/\*|\s\*) ?Code generated .* DO NOT EDIT\.`)

// Generated reports whether a line of the file says so, in the words that Go's tools look for.
func (f *File) Generated() bool { return generated.Match(f.Data) }

// Shell reports whether it is a shell script, by its name or its first line.
func (f *File) Shell() bool {
	first, _, _ := bytes.Cut(f.Data, []byte("\n"))
	return strings.HasSuffix(f.Path, ".sh") || shebang.Match(first)
}

var shebang = regexp.MustCompile(`^#!.*\b(ba|da)?sh\b`)

// Tree is every source file under a root: Go, C, C++ and CUDA, assembly, shell.
type Tree struct {
	Module string // path of the Go module
	Files  []*File
	Fset   *token.FileSet
	fsys   fs.FS
}

// Load reads the sources of fsys, whose go.mod gives the module's path. It skips what Go's tools skip (testdata, names
// that begin with "." or "_", all but .ci) and bin. A Go file that does not parse is kept, with its error.
func Load(fsys fs.FS) (*Tree, error) {
	mod, err := fs.ReadFile(fsys, "go.mod")
	if err != nil {
		return nil, fmt.Errorf("load tree: %w", err)
	}
	m := regexp.MustCompile(`(?m)^module\s+(\S+)`).FindSubmatch(mod)
	if m == nil {
		return nil, fmt.Errorf("load tree: go.mod has no module line")
	}
	t := &Tree{Module: string(m[1]), Fset: token.NewFileSet(), fsys: fsys}
	err = fs.WalkDir(fsys, ".", func(p string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case p == ".":
			return nil
		case d.IsDir() && skipped(p):
			return fs.SkipDir
		case !d.Type().IsRegular():
			return nil
		}
		return t.add(p)
	})
	if err != nil {
		return nil, fmt.Errorf("load tree: %w", err)
	}
	return t, nil
}

func skipped(dir string) bool {
	switch base := path.Base(dir); {
	case dir == ".ci":
		return false
	case dir == "bin" || base == "testdata":
		return true
	default:
		return base[0] == '.' || base[0] == '_'
	}
}

func (t *Tree) add(p string) error {
	base := path.Base(p)
	switch path.Ext(p) {
	case ".go", ".c", ".h", ".cc", ".cpp", ".hpp", ".cu", ".cuh", ".s", ".S", ".sh":
	case "": // perhaps a script
	default:
		return nil
	}
	if base[0] == '.' || base[0] == '_' {
		return nil
	}
	data, err := fs.ReadFile(t.fsys, p)
	if err != nil {
		return err
	}
	f := &File{Path: p, Data: data}
	if path.Ext(p) == "" && !f.Shell() {
		return nil
	}
	if f.Go() {
		f.AST, f.Err = parser.ParseFile(t.Fset, p, data, parser.ParseComments|parser.SkipObjectResolution)
		if f.Err != nil {
			f.AST = nil
		}
	}
	t.Files = append(t.Files, f)
	return nil
}

// Dirs returns the folders that hold Go files, in the order of the walk.
func (t *Tree) Dirs() []string {
	var dirs []string
	seen := map[string]bool{}
	for _, f := range t.Files {
		if d := f.Dir(); f.Go() && !seen[d] {
			seen[d] = true
			dirs = append(dirs, d)
		}
	}
	return dirs
}

// Import is one import declaration.
type Import struct {
	File *File
	Path string
	Dir  string // the folder it names, if it is of this module, else ""
	Line int
}

// Imports returns the imports of a file.
func (t *Tree) Imports(f *File) []Import {
	if f.AST == nil {
		return nil
	}
	var imports []Import
	for _, s := range f.AST.Imports {
		p := strings.Trim(s.Path.Value, "`\"")
		imports = append(imports, Import{f, p, t.folder(p), t.line(s)})
	}
	return imports
}

// folder returns the folder that an import path of this module names, "" for any other path.
func (t *Tree) folder(importPath string) string {
	if importPath == t.Module {
		return "."
	}
	dir, ok := strings.CutPrefix(importPath, t.Module+"/")
	if !ok {
		return ""
	}
	return dir
}

func (t *Tree) line(n ast.Node) int { return t.Fset.Position(n.Pos()).Line }

// within reports whether dir is parent or lies under it. The root is parent of nothing but itself here.
func within(dir, parent string) bool {
	return dir == parent || strings.HasPrefix(dir, parent+"/")
}
