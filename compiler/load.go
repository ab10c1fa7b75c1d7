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
)

// gpuPath is the vocabulary's package. Its functions are instructions.
const gpuPath = "github.com/doorbell-net/doorbell/gpu"

// loaded is typed and built sources.
type loaded struct {
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

// load reads the packages that patterns name, and all that they import from elsewhere, from source; what is no device code, the
// standard library and its system calls, from export data.
func load(ctx context.Context, dir string, patterns []string) (*loaded, error) {
	found, err := packages.Load(config(ctx, dir, packages.NeedName|packages.NeedFiles|packages.NeedImports|packages.NeedDeps|packages.NeedModule), patterns...)
	if err != nil {
		return nil, fmt.Errorf("gpuc: find %s: %w", strings.Join(patterns, " "), err)
	}
	l := &loaded{unroll: map[place]int{}}
	var roots []*packages.Package
	generated := map[string][]byte{}
	for _, p := range found {
		s, err := scan(p)
		if err != nil {
			return nil, err
		}
		if len(s.marks) == 0 {
			continue
		}
		// The file that is to be written is taken as it will be, but without PTX: so nothing depends on an older one.
		generated[filepath.Join(s.dir, GoFile)] = goFile(s.name, s.kernels(), nil, false)
		l.pkgs, roots = append(l.pkgs, s), append(roots, p)
	}
	if len(l.pkgs) == 0 {
		return nil, fmt.Errorf("gpuc: no kernel in %s: one is a function with the comment %q", strings.Join(patterns, " "), marker)
	}
	slices.SortFunc(l.pkgs, func(a, b *source) int { return strings.Compare(a.path, b.path) })
	return l, l.build(ctx, dir, roots, generated)
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
