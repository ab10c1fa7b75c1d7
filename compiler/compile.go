// SPDX-License-Identifier: Apache-2.0

package compiler

import (
	"context"
	"fmt"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// Options says what is compiled. The zero value is what is committed and shipped.
type Options struct {
	Arch   string // of the GPU, the oldest that the PTX runs on; DefaultArch if empty
	Checks bool   // bounds, divisors, shifts: a kernel that breaks one ends, and the driver says where
	Debug  bool   // lines of the source, for profilers and debuggers
}

// DefaultArch is the oldest architecture that has the memory model (ld.acquire, st.release, fence) and nanosleep. PTX of
// it is compiled by the driver for whatever newer GPU it finds, with that GPU's scheduling; little in the vocabulary
// needs a newer one. So one text serves all.
const DefaultArch = "sm_70"

// versions is the oldest PTX version that knows an architecture and nanosleep.
var versions = map[int]int{70: 63, 72: 63, 75: 63, 80: 70, 86: 71, 87: 74, 89: 78, 90: 80}

func (o *Options) validate() error {
	if o.Arch == "" {
		o.Arch = DefaultArch
	}
	if !regexp.MustCompile(`^sm_[0-9]+$`).MatchString(o.Arch) {
		return fmt.Errorf("gpuc: architecture %q: accepted are sm_70, sm_72, sm_75, sm_80, sm_86, sm_87, sm_89, sm_90", o.Arch)
	}
	if versions[o.number()] == 0 {
		return fmt.Errorf("gpuc: architecture %q: accepted are sm_70 (the oldest with a memory model), sm_72, sm_75, sm_80, sm_86, sm_87, sm_89, sm_90", o.Arch)
	}
	return nil
}

// number is the architecture's, which validate has seen.
func (o *Options) number() int {
	n, _ := strconv.Atoi(strings.TrimPrefix(o.Arch, "sm_"))
	return n
}

// nearest is the newest architecture that texts can be for and one runs.
func nearest(arch int) (near int) {
	for a := range versions {
		if a <= arch {
			near = max(near, a)
		}
	}
	return near
}

// feature is LLVM's name of the PTX version.
func (o *Options) feature() string { return fmt.Sprintf("ptx%d", versions[o.number()]) }

// Package is a package's kernels, compiled.
type Package struct {
	Path, Name, Dir string
	Kernels         []Kernel // by name
	PTX             string   // one module with all of them
	Arch            int      // of the oldest GPU that it runs on
	Archs           []int    // the cubins that its source asks for, as 90 for sm_90, in order
	Cubins          map[int][]byte
	newer           map[int]string // PTX that the cubin of an architecture is made of, where it has instructions that PTX lacks
}

// Kernel is one entry of a Package's PTX. It takes one parameter: the struct of arguments, by value, as Go lays it out.
type Kernel struct {
	Name         string
	Of           string // the kernel that it is a variant of, empty if it is none
	ArgBytes     int64
	MaxWarps     int // in a block
	Instructions int // of PTX
	LocalBytes   int // of memory that did not become registers: 0 is what a hot kernel wants
	fits         string
	split        bool // another way than its kernel's, and not only a faster one
}

// Compile compiles the kernels of the packages that patterns name, from dir as the go command sees it. Packages
// without kernels are left out. What is wrong with device code comes as Errors, all of it at once.
func Compile(ctx context.Context, dir string, patterns []string, opt Options) ([]*Package, error) {
	if err := opt.validate(); err != nil {
		return nil, err
	}
	tools, err := findTools(ctx)
	if err != nil {
		return nil, err
	}
	texts, err := lower(ctx, dir, patterns, opt)
	if err != nil {
		return nil, err
	}
	errs := make([]error, len(texts))
	var wg sync.WaitGroup
	free := make(chan struct{}, runtime.NumCPU())
	for i, t := range texts {
		wg.Go(func() {
			free <- struct{}{}
			defer func() { <-free }()
			opt := opt
			opt.Arch = fmt.Sprintf("sm_%d", t.pkg.Arch)
			errs[i] = tools.finish(ctx, t, opt)
		})
	}
	wg.Wait()
	var all []*Package
	for i, t := range texts {
		err := errs[i]
		switch {
		case err != nil: // the first package's
		case t.cubin == 0:
			all = append(all, t.pkg)
		default:
			err = all[len(all)-1].takeNewer(t)
		}
		if err != nil {
			return nil, err
		}
	}
	return all, nil
}

// takeNewer has the package's cubin of an architecture made of another text of the same kernels.
func (p *Package) takeNewer(t lowered) error {
	names := func(p *Package) (all []string) {
		for _, k := range p.Kernels {
			all = append(all, k.Name)
		}
		return all
	}
	if !slices.Equal(names(p), names(t.pkg)) {
		return fmt.Errorf("gpuc: %s: for sm_%d its kernels are %v, for sm_%d %v: variants that come out as their kernel are left out, and these are not the same",
			p.Path, p.Arch, names(p), t.pkg.Arch, names(t.pkg))
	}
	if p.newer == nil {
		p.newer = map[int]string{}
	}
	p.newer[t.cubin] = t.pkg.PTX
	return nil
}

// lowered is a package as LLVM's text, before optimisation.
type lowered struct {
	pkg   *Package
	text  string
	cubin int // 0; else it is of the package before, for its cubin of that architecture
}

// lower is Compile up to LLVM's text: all that can be wrong with device code is found here.
func lower(ctx context.Context, dir string, patterns []string, opt Options) ([]lowered, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, fmt.Errorf("gpuc: %w", err)
	}
	l, err := load(ctx, dir, patterns)
	if err != nil {
		return nil, err
	}
	var all []lowered
	rep := newReporter(l.fset, dir)
	for _, s := range l.pkgs {
		m, t := lowerFor(rep, opt, l.unroll, s, max(s.arch, opt.number()))
		all = append(all, t)
		for _, arch := range s.archs {
			near := nearest(arch)
			if len(m.lacking) > 0 && slices.Min(m.lacking) <= near {
				_, t := lowerFor(rep, opt, l.unroll, s, near)
				t.cubin = arch
				all = append(all, t)
			}
		}
	}
	if err := rep.err(); err != nil {
		return nil, err
	}
	return all, nil
}

// lowerFor is a package's text for one architecture.
func lowerFor(rep *reporter, opt Options, unroll map[place]int, s *source, arch int) (*module, lowered) {
	opt.Arch = fmt.Sprintf("sm_%d", arch)
	m := newModule(rep, opt, unroll)
	kernels := s.entries(rep)
	m.emit(kernels)
	p := &Package{Path: s.path, Name: s.name, Dir: s.dir, Arch: arch, Archs: s.archs}
	for _, k := range kernels {
		l := Kernel{Name: k.name, Of: k.of, split: k.split, ArgBytes: k.args, MaxWarps: k.warps}
		if k.of != "" {
			l.fits = fits(argsName(s.ssa.Pkg, k.fn.Signature), k.bound)
		}
		p.Kernels = append(p.Kernels, l)
	}
	return m, lowered{pkg: p, text: m.text(kernels)}
}
