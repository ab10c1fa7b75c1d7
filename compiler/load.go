// SPDX-License-Identifier: Apache-2.0

package compiler

import (
	"context"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/tools/go/packages"
	"golang.org/x/tools/go/ssa"
	"golang.org/x/tools/go/ssa/ssautil"
)

// gpuPath is the vocabulary's package. Its functions are instructions.
const gpuPath = "github.com/doorbell-net/doorbell/gpu"

// loaded is typed and built sources.
type loaded struct {
	prog *ssa.Program
	fset *token.FileSet
	pkgs []*source // those with kernels, by path

	unroll map[place]int // rounds of loops
}

// source is a package with kernels.
type source struct {
	path, name, dir string
	marks           []mark
	archs           []int // of cubins, in order
	arch            int   // that the PTX is for, if it is newer than that of the options
	ssa             *ssa.Package
}

// mark is a function that a comment makes a kernel.
type mark struct {
	name string
	line token.Position // of the comment
	opts string         // what follows the word in it

	variants []mark // without names
}

// config loads for the GPU: as linux/amd64 whatever the machine, so that the same text comes out on each.
func config(ctx context.Context, dir string, mode packages.LoadMode) *packages.Config {
	return &packages.Config{
		Context: ctx, Dir: dir, Mode: mode, BuildFlags: []string{"-tags=gpuc"},
		Env: append(os.Environ(), "GOOS=linux", "GOARCH=amd64", "CGO_ENABLED=0"),
	}
}

// load reads the packages that patterns name, and all that they import from outside the standard library, from source;
// the standard library, which is no device code, from its export data.
func load(ctx context.Context, dir string, patterns []string) (*loaded, error) {
	found, err := packages.Load(config(ctx, dir, packages.NeedName|packages.NeedFiles|packages.NeedImports|packages.NeedDeps|packages.NeedModule), patterns...)
	if err != nil {
		return nil, fmt.Errorf("gpuc: find %s: %w", strings.Join(patterns, " "), err)
	}
	l := &loaded{unroll: map[place]int{}}
	overlay := map[string][]byte{}
	for _, p := range found {
		s, err := scan(p)
		if err != nil {
			return nil, err
		}
		if len(s.marks) == 0 {
			continue
		}
		// The file that is to be written is taken as it will be, but without PTX: so nothing depends on an older one.
		overlay[filepath.Join(s.dir, GoFile)] = goFile(s.name, s.kernels(), nil, false)
		l.pkgs = append(l.pkgs, s)
	}
	if len(l.pkgs) == 0 {
		return nil, fmt.Errorf("gpuc: no kernel in %s: one is a function with the comment %q", strings.Join(patterns, " "), marker)
	}
	slices.SortFunc(l.pkgs, func(a, b *source) int { return strings.Compare(a.path, b.path) })
	return l, l.check(ctx, dir, found, overlay)
}

// check types and builds them.
func (l *loaded) check(ctx context.Context, dir string, found []*packages.Package, overlay map[string][]byte) error {
	wanted := map[string]bool{}
	for _, s := range l.pkgs {
		wanted[s.path] = true
	}
	var roots []string
	var visit func(p *packages.Package)
	seen := map[string]bool{}
	visit = func(p *packages.Package) {
		if seen[p.PkgPath] || p.Module == nil { // no module: the standard library
			return
		}
		seen[p.PkgPath] = true
		roots = append(roots, p.PkgPath)
		for _, q := range p.Imports {
			visit(q)
		}
	}
	for _, p := range found {
		if wanted[p.PkgPath] {
			visit(p)
		}
	}
	slices.Sort(roots)
	cfg := config(ctx, dir, packages.NeedName|packages.NeedFiles|packages.NeedCompiledGoFiles|packages.NeedImports|packages.NeedExportFile|
		packages.NeedTypes|packages.NeedTypesInfo|packages.NeedTypesSizes|packages.NeedSyntax|packages.NeedModule)
	cfg.Overlay, cfg.Fset = overlay, token.NewFileSet()
	pkgs, err := packages.Load(cfg, roots...)
	if err != nil {
		return fmt.Errorf("gpuc: load %s: %w", strings.Join(roots, " "), err)
	}
	rep := newReporter(cfg.Fset, dir)
	typed := slices.ContainsFunc(pkgs, func(p *packages.Package) bool { return slices.ContainsFunc(p.Errors, inSource) })
	for _, p := range pkgs {
		for _, s := range l.pkgs {
			if s.path == p.PkgPath {
				s.signatures(rep, p.Types)
			}
		}
		for _, f := range p.Syntax {
			unrolls(rep, cfg.Fset, f, l.unroll)
		}
		for _, e := range p.Errors {
			at := parsePos(e.Pos)
			// Of what is wrong in a source, the go command tells again; of a signature, the generated file would.
			if (inSource(e) || !typed) && filepath.Base(at.Filename) != GoFile {
				rep.addAt(rep.short(at), nil, e.Msg)
			}
		}
	}
	if err := rep.err(); err != nil {
		return err
	}
	prog, built := ssautil.Packages(pkgs, ssa.InstantiateGenerics)
	l.prog, l.fset = prog, cfg.Fset
	for i, p := range pkgs {
		built[i].Build()
		for _, s := range l.pkgs {
			if s.path == p.PkgPath {
				s.ssa = built[i]
			}
		}
	}
	return nil
}

func inSource(e packages.Error) bool {
	return e.Kind == packages.TypeError || e.Kind == packages.ParseError
}

// parsePos reads "file:line:col".
func parsePos(s string) token.Position {
	var p token.Position
	parts := strings.Split(s, ":")
	p.Filename = parts[0]
	if len(parts) > 1 {
		_, _ = fmt.Sscan(parts[1], &p.Line)
	}
	if len(parts) > 2 {
		_, _ = fmt.Sscan(parts[2], &p.Column)
	}
	return p
}

// marker is the comment above a kernel, variant one below it, cubins the one, anywhere in a package, that lists what its
// PTX is assembled for.
const (
	marker  = "//gpu:kernel"
	variant = "//gpu:variant"
	cubins  = "//gpu:cubin"
	newer   = "//gpu:arch" // the oldest GPU of the package, where its kernels need a newer one than others
)

// scan finds the marked functions of a package, before its types are known: what is generated names them.
func scan(p *packages.Package) (*source, error) {
	s := &source{path: p.PkgPath, name: p.Name}
	fset := token.NewFileSet()
	for _, file := range p.GoFiles {
		s.dir = filepath.Dir(file)
		if filepath.Base(file) == GoFile {
			continue
		}
		f, err := parser.ParseFile(fset, file, nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return nil, fmt.Errorf("gpuc: parse: %w", err)
		}
		for _, g := range f.Comments {
			for _, c := range g.List {
				if rest, ok := strings.CutPrefix(c.Text, newer+" "); ok {
					o := Options{Arch: strings.TrimSpace(rest)}
					if err := o.validate(); err != nil {
						return nil, fmt.Errorf("%s: %w", fset.Position(c.Pos()), err)
					}
					s.arch = max(s.arch, o.number())
				}
				if rest, ok := strings.CutPrefix(c.Text, cubins+" "); ok {
					if err := s.wants(rest); err != nil {
						return nil, fmt.Errorf("%s: %w", fset.Position(c.Pos()), err)
					}
				}
			}
		}
		for _, d := range f.Decls {
			fn, ok := d.(*ast.FuncDecl)
			if !ok || fn.Doc == nil {
				continue
			}
			for _, c := range fn.Doc.List {
				if rest, ok := strings.CutPrefix(c.Text, marker); ok && (rest == "" || rest[0] == ' ') {
					s.marks = append(s.marks, mark{name: fn.Name.Name, line: fset.Position(c.Pos()), opts: strings.TrimSpace(rest)})
				}
				if rest, ok := strings.CutPrefix(c.Text, variant); ok {
					if n := len(s.marks); n == 0 || s.marks[n-1].name != fn.Name.Name {
						return nil, fmt.Errorf("%s: %s stands above %s, which is no kernel: it belongs under %s", fset.Position(c.Pos()), variant, fn.Name.Name, marker)
					}
					k := &s.marks[len(s.marks)-1]
					k.variants = append(k.variants, mark{line: fset.Position(c.Pos()), opts: strings.TrimSpace(rest)})
				}
			}
		}
	}
	slices.SortFunc(s.marks, func(a, b mark) int { return strings.Compare(a.name, b.name) })
	return s, nil
}

// wants takes a list of architectures.
func (s *source) wants(list string) error {
	for _, word := range strings.Fields(list) {
		n, err := strconv.Atoi(strings.TrimPrefix(word, "sm_"))
		if err != nil || !strings.HasPrefix(word, "sm_") || !slices.Contains(CubinArchs, n) {
			return fmt.Errorf("cubin for %q: accepted are sm_80, sm_90, sm_100", word)
		}
		s.archs = append(s.archs, n)
	}
	slices.Sort(s.archs)
	s.archs = slices.Compact(s.archs)
	return nil
}

// kernels is those of the package as goFile takes them, before anything is known of them.
func (s *source) kernels() []Kernel {
	var all []Kernel
	for _, m := range s.marks {
		all = append(all, Kernel{Name: m.name})
	}
	return all
}
