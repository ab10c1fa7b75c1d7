// SPDX-License-Identifier: Apache-2.0

package compiler

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/scanner"
	"go/token"
	"go/types"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/tools/go/packages"
	"golang.org/x/tools/go/ssa"
)

// systemCalls is a module of the Go project's, so large that to read its source takes longer than all else.
const systemCalls = "golang.org/x/sys"

// fromSource says whether a package may have device code. No module: it is of the standard library.
func fromSource(p *packages.Package) bool { return p.Module != nil && p.Module.Path != systemCalls }

// sources are the packages from source that some import, those too, dependencies first.
func sources(roots []*packages.Package) (all []*packages.Package) {
	packages.Visit(roots, fromSource, func(p *packages.Package) {
		if fromSource(p) {
			all = append(all, p)
		}
	})
	return all
}

// typing is packages that are typed from source, over those of which the export data suffices. (go/packages would do the same,
// but reads all from source as soon as one file is not the one on disk.)
type typing struct {
	rep   *reporter
	fset  *token.FileSet
	pkgs  map[string]*typed
	order []*typed // as they are imported, dependencies first
	rest  types.Importer
}

// typed is one of them.
type typed struct {
	pkg   *types.Package
	files []*ast.File
	info  *types.Info
}

// build types the packages with kernels, and what they import, and makes SSA of them. Files by the names in generated are taken
// from there.
func (l *loaded) build(ctx context.Context, dir string, roots []*packages.Package, generated map[string][]byte) error {
	l.fset = token.NewFileSet()
	t := &typing{rep: newReporter(l.fset, dir), fset: l.fset, pkgs: map[string]*typed{}}
	ours := sources(roots)
	var err error
	if t.rest, err = exported(ctx, dir, l.fset, ours); err != nil {
		return err
	}
	for _, p := range ours {
		t.check(p, generated)
	}
	for _, s := range l.pkgs {
		s.signatures(t.rep, t.pkgs[s.path].pkg)
	}
	for _, p := range t.order {
		for _, f := range p.files {
			unrolls(t.rep, l.fset, f, l.unroll)
		}
	}
	if err := t.rep.err(); err != nil {
		return err
	}
	built := t.ssa()
	for _, s := range l.pkgs {
		s.ssa = built[s.path]
	}
	return nil
}

// exported imports, by export data, what packages from source import of the others.
func exported(ctx context.Context, dir string, fset *token.FileSet, ours []*packages.Package) (types.Importer, error) {
	wanted := map[string]bool{"embed": true} // by generated files
	missing := map[string]error{}
	for _, p := range ours {
		for path, q := range p.Imports {
			switch {
			case len(q.Errors) > 0:
				missing[path] = errors.New(q.Errors[0].Msg)
			case !fromSource(q) && path != "unsafe":
				wanted[path] = true
			}
		}
	}
	found, err := packages.Load(config(ctx, dir, packages.NeedName|packages.NeedExportFile), slices.Sorted(maps.Keys(wanted))...)
	if err != nil {
		return nil, fmt.Errorf("gpuc: load what the kernels' packages import: %w", err)
	}
	files := map[string]string{}
	for _, p := range found {
		files[p.PkgPath] = p.ExportFile
	}
	return importer.ForCompiler(fset, "gc", func(path string) (io.ReadCloser, error) {
		if files[path] == "" {
			return nil, cmp.Or(missing[path], errors.New("it has no Go files"))
		}
		return os.Open(files[path])
	}), nil
}

// check parses and types a package, whose imports have been.
func (t *typing) check(p *packages.Package, generated map[string][]byte) {
	if len(p.GoFiles) == 0 {
		return // who imports it says so
	}
	names := slices.DeleteFunc(slices.Clone(p.GoFiles), func(name string) bool { return filepath.Base(name) == GoFile })
	if own := filepath.Join(filepath.Dir(p.GoFiles[0]), GoFile); generated[own] != nil || len(names) < len(p.GoFiles) {
		names = append(names, own)
	}
	slices.Sort(names)
	q := &typed{info: &types.Info{
		Types: map[ast.Expr]types.TypeAndValue{}, Instances: map[*ast.Ident]types.Instance{}, Defs: map[*ast.Ident]types.Object{}, Uses: map[*ast.Ident]types.Object{},
		Implicits: map[ast.Node]types.Object{}, Selections: map[*ast.SelectorExpr]*types.Selection{}, Scopes: map[ast.Node]*types.Scope{}, FileVersions: map[*ast.File]string{},
	}}
	for _, name := range names {
		var text any
		if g := generated[name]; g != nil {
			text = g
		}
		f, err := parser.ParseFile(t.fset, name, text, parser.AllErrors|parser.ParseComments|parser.SkipObjectResolution)
		t.wrong(err)
		if f != nil {
			q.files = append(q.files, f)
		}
	}
	c := types.Config{Importer: t, Sizes: types.SizesFor("gc", "amd64"), GoVersion: "go" + p.Module.GoVersion, Error: t.wrong}
	q.pkg, _ = c.Check(p.PkgPath, t.fset, q.files, q.info) // t.wrong has all its errors
	t.pkgs[p.PkgPath] = q
	t.order = append(t.order, q)
}

// wrong reports what is wrong with a source. What is in the generated file follows from a kernel's signature.
func (t *typing) wrong(err error) {
	add := func(at token.Position, msg string) {
		if filepath.Base(at.Filename) != GoFile {
			t.rep.addAt(t.rep.short(at), nil, msg)
		}
	}
	var list scanner.ErrorList
	var typ types.Error
	switch {
	case err == nil:
	case errors.As(err, &list):
		for _, e := range list {
			add(e.Pos, e.Msg)
		}
	case errors.As(err, &typ):
		add(t.fset.Position(typ.Pos), typ.Msg)
	default:
		add(token.Position{}, err.Error())
	}
}

// Import is types.Importer's.
func (t *typing) Import(path string) (*types.Package, error) {
	if p := t.pkgs[path]; p != nil {
		return p.pkg, nil
	}
	return t.rest.Import(path)
}

// ssa builds those from source, and declares what they import.
func (t *typing) ssa() map[string]*ssa.Package {
	prog := ssa.NewProgram(t.fset, ssa.InstantiateGenerics)
	built := map[string]*ssa.Package{}
	var create func(p *types.Package)
	create = func(p *types.Package) {
		if built[p.Path()] != nil {
			return
		}
		var files []*ast.File
		var info *types.Info
		if q := t.pkgs[p.Path()]; q != nil {
			files, info = q.files, q.info
		}
		built[p.Path()] = prog.CreatePackage(p, files, info, true)
		for _, q := range p.Imports() {
			create(q)
		}
	}
	for _, p := range t.order {
		create(p.pkg)
	}
	for _, p := range t.order {
		built[p.pkg.Path()].Build()
	}
	return built
}
