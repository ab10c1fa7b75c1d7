// SPDX-License-Identifier: Apache-2.0

package house

import (
	"fmt"
	"go/ast"
	"go/build"
	"go/types"
	"io"
	"path"
	"sort"
	"strings"
)

// Internal reports whether an import path can't be imported from other modules.
func Internal(p string) bool {
	return strings.Contains("/"+p+"/", "/internal/")
}

// CheckAPI finds exported declarations of the public folders that name a type of an internal package, otherwise than
// through an alias that a public package declares. A foreign module could not write such a type down.
//
// It type-checks this module's sources alone: packages from outside are taken as empty and what depends on them is
// unknown, which hides nothing, since no internal type comes from outside.
func CheckAPI(t *Tree, public func(dir string) bool) []Finding {
	im := &importer{t: t, done: map[string]*types.Package{}, ctx: build.Default}
	im.ctx.GOOS, im.ctx.GOARCH, im.ctx.CgoEnabled = "linux", "amd64", false
	im.ctx.OpenFile = func(p string) (io.ReadCloser, error) { return t.fsys.Open(path.Clean(strings.ReplaceAll(p, `\`, "/"))) }
	im.ctx.JoinPath = path.Join
	var found []Finding
	for _, dir := range t.Dirs() {
		if !public(dir) || Internal(dir) {
			continue
		}
		pkg := im.folder(dir)
		scope := pkg.Scope()
		for _, name := range scope.Names() {
			obj := scope.Lookup(name)
			if !obj.Exported() {
				continue
			}
			w := &walker{seen: map[types.Type]bool{}}
			switch obj.(type) {
			case *types.Const, *types.Var:
				w.named = aliased(scope) // a type left out, so inferred, is named by nobody; it is enough that it has a name here
			}
			w.object(obj)
			sort.Strings(w.names)
			for _, n := range w.names {
				pos := t.Fset.Position(obj.Pos())
				found = append(found, Finding{pos.Filename, pos.Line,
					fmt.Sprintf("exported %s names the internal type %s: declare an alias of it in a public package and use that", name, n)})
			}
		}
	}
	return found
}

// aliased returns the types that a package has exported aliases of.
func aliased(scope *types.Scope) map[*types.TypeName]bool {
	set := map[*types.TypeName]bool{}
	for _, name := range scope.Names() {
		if tn, ok := scope.Lookup(name).(*types.TypeName); ok && tn.Exported() && tn.IsAlias() {
			if named, ok := types.Unalias(tn.Type()).(*types.Named); ok {
				set[named.Obj()] = true
			}
		}
	}
	return set
}

// importer type-checks folders of the tree, each once.
type importer struct {
	t    *Tree
	ctx  build.Context
	done map[string]*types.Package
}

func (im *importer) Import(p string) (*types.Package, error) {
	if p == "unsafe" {
		return types.Unsafe, nil
	}
	if dir := im.t.folder(p); dir != "" {
		return im.folder(dir), nil
	}
	if im.done[p] == nil {
		im.done[p] = types.NewPackage(p, path.Base(p))
		im.done[p].MarkComplete()
	}
	return im.done[p], nil
}

func (im *importer) folder(dir string) *types.Package {
	p := im.t.Module
	if dir != "." {
		p += "/" + dir
	}
	if pkg := im.done[p]; pkg != nil {
		return pkg
	}
	im.done[p] = types.NewPackage(p, path.Base(p)) // ends an import cycle, which the compiler will report
	im.done[p].MarkComplete()
	var files []*ast.File
	for _, f := range im.t.Files {
		if f.Dir() != dir || f.AST == nil || f.Test() {
			continue
		}
		if ok, err := im.ctx.MatchFile(dir, path.Base(f.Path)); ok && err == nil {
			files = append(files, f.AST)
		}
	}
	conf := types.Config{Importer: im, Error: func(error) {}, IgnoreFuncBodies: true, FakeImportC: true}
	pkg, _ := conf.Check(p, im.t.Fset, files, nil) // errors are expected: nothing is known of foreign packages
	im.done[p] = pkg
	return pkg
}

// walker collects the internal types that an exported object's declaration names.
type walker struct {
	seen  map[types.Type]bool
	named map[*types.TypeName]bool // internal types that may be named all the same
	names []string
}

func (w *walker) object(obj types.Object) {
	tn, ok := obj.(*types.TypeName)
	if !ok {
		w.typ(obj.Type())
		return
	}
	if alias, ok := tn.Type().(*types.Alias); ok {
		// The escape: an alias directly of an internal type. One of anything larger is looked into.
		switch r := alias.Rhs().(type) {
		case *types.Named:
			w.args(r.TypeArgs())
		default:
			w.typ(r)
		}
		return
	}
	named, ok := tn.Type().(*types.Named)
	if !ok {
		return
	}
	for p := range named.TypeParams().TypeParams() {
		w.typ(p.Constraint())
	}
	w.typ(named.Underlying())
	for m := range named.Methods() {
		if m.Exported() {
			w.typ(m.Type())
		}
	}
}

// typ walks through a type as it is written: into literals, not into what has a name.
func (w *walker) typ(t types.Type) {
	if t == nil || w.seen[t] {
		return
	}
	w.seen[t] = true
	switch t := t.(type) {
	case *types.Alias:
		w.name(t.Obj())
		w.args(t.TypeArgs())
	case *types.Named:
		w.name(t.Obj())
		w.args(t.TypeArgs())
	case interface{ Elem() types.Type }: // pointer, slice, array, map, channel
		w.typ(t.Elem())
		if m, ok := t.(*types.Map); ok {
			w.typ(m.Key())
		}
	case *types.Signature:
		for p := range t.TypeParams().TypeParams() {
			w.typ(p.Constraint())
		}
		w.typ(t.Params())
		w.typ(t.Results())
	case *types.Tuple:
		for v := range t.Variables() {
			w.typ(v.Type())
		}
	case *types.Struct:
		for f := range t.Fields() {
			if f.Exported() {
				w.typ(f.Type())
			}
		}
	case *types.Interface:
		for m := range t.ExplicitMethods() {
			if m.Exported() {
				w.typ(m.Type())
			}
		}
		for e := range t.EmbeddedTypes() {
			w.typ(e)
		}
	case *types.Union:
		for term := range t.Terms() {
			w.typ(term.Type())
		}
	}
}

func (w *walker) args(list *types.TypeList) {
	for a := range list.Types() {
		w.typ(a)
	}
}

func (w *walker) name(obj *types.TypeName) {
	if obj.Pkg() != nil && Internal(obj.Pkg().Path()) && !w.named[obj] {
		w.names = append(w.names, obj.Pkg().Path()+"."+obj.Name())
	}
}
