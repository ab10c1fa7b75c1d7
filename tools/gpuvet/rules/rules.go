// SPDX-License-Identifier: Apache-2.0

// Package rules is an analyser of device code, in the manner of go vet. It finds
//
//   - loops that wait by a plain load: a compiler may load once and for all, and nothing orders what comes after;
//   - gpu.LoadNC and gpu.LoadOnce of what the same kernel writes, or of a window, which peers write: the load may come from a
//     cache that nobody invalidates (PTX ISA, "ld.global.nc");
//   - operations whose scope is narrower than who reaches their word: one block's on memory that is not a gpu.Shared, one
//     device's on words that peers or the host read and write;
//   - device atomics on words of the host's memory, and host atomics on words of the device's: over PCIe neither is atomic
//     against the other.
//
// An address is followed through the functions of its package to the field that it was loaded from. What cannot be
// followed is not reported, save a block's scope. A line that is right all the same says why, on it or above it:
//
//	//gpuvet:ok reason
package rules

import (
	"go/token"
	"strings"

	"golang.org/x/tools/go/analysis"
	"golang.org/x/tools/go/analysis/passes/buildssa"
	"golang.org/x/tools/go/ssa"
)

// Analyzer has all rules.
var Analyzer = &analysis.Analyzer{
	Name:     "gpuvet",
	Doc:      "find in device code what the CPU hides: plain waits, stale cached loads, narrow scopes, atomics across PCIe",
	Requires: []*analysis.Analyzer{buildssa.Analyzer},
	Run:      run,
}

func run(pass *analysis.Pass) (any, error) {
	if pass.Pkg.Path() == gpuPath { // the vocabulary's own bodies are the CPU's
		return nil, nil
	}
	c := newChecker(pass)
	for _, f := range c.funcs {
		for _, b := range f.Blocks {
			for _, in := range b.Instrs {
				if call, ok := in.(*ssa.Call); ok {
					c.call(f, call)
				}
			}
		}
		if c.device[f] {
			c.spins(f)
		}
	}
	c.cached()
	return nil, nil
}

// call holds one call against the rules of scopes and atomics.
func (c *checker) call(f *ssa.Function, call *ssa.Call) {
	name := word(call)
	switch {
	case name == "" && c.device[f]:
	case name == "":
		if fn := call.Call.StaticCallee(); fn != nil && fn.Pkg != nil && fn.Pkg.Pkg.Path() == "sync/atomic" && len(call.Call.Args) > 0 {
			c.hostAtomic(f, call)
		}
	case c.device[f]:
		c.scope(f, call, name)
		if strings.HasPrefix(name, "Atomic") {
			c.deviceAtomic(f, call, name)
		}
	case strings.HasPrefix(name, "Atomic"):
		c.hostAtomic(f, call)
	}
}

// report reports unless the line is excused.
func (c *checker) report(pos token.Pos, format string, args ...any) {
	p := c.pass.Fset.Position(pos)
	if c.excused[line{p.Filename, p.Line}] || c.excused[line{p.Filename, p.Line - 1}] {
		return
	}
	c.pass.Reportf(pos, format, args...)
}
