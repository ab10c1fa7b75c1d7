// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"go/token"

	"golang.org/x/tools/go/ssa"
)

// stale are the loads that may come from a cache that is not coherent.
var stale = map[string]bool{"LoadNC": true, "LoadOnce": true}

// written is which argument of a function of the vocabulary is the address that it writes to.
var written = map[string]int{
	"Ptr.Store": 0, "Store": 0, "AtomicAdd": 0, "AtomicCAS": 0, "AtomicExch": 0, "AtomicMax": 0,
	"CopyWarp": 1, "CopyBlock": 1, "CopyThread": 0, "StoreOnce": 0, "CopyBulkOut": 1,
}

// cached finds gpu.LoadNC and gpu.LoadOnce of what the kernel writes, or peers.
func (c *checker) cached() {
	reported := map[token.Pos]bool{}
	report := func(pos token.Pos, format string, args ...any) {
		if !reported[pos] {
			reported[pos] = true
			c.report(pos, format, args...)
		}
	}
	for _, kernel := range c.kernels {
		all := map[*ssa.Function]bool{}
		c.reach([]*ssa.Function{kernel}, all)
		var loads []*ssa.Call
		stores := map[field]token.Pos{}
		for f := range all {
			for _, b := range f.Blocks {
				for _, in := range b.Instrs {
					switch in := in.(type) {
					case *ssa.Store:
						c.mark(stores, in.Addr, in.Pos())
					case *ssa.Call:
						name := word(in)
						if at, ok := written[name]; ok {
							c.mark(stores, in.Call.Args[at], in.Pos())
						}
						if stale[name] {
							loads = append(loads, in)
						}
					}
				}
			}
		}
		for _, load := range loads {
			for _, o := range c.origins(load.Call.Args[0]) {
				if o.kind != pointee {
					continue
				}
				if o.field.in(far) {
					report(load.Pos(), "gpu.%s of memory that peers or the host write (%s): it may be stale; use Load", word(load), o.field)
				} else if at, ok := stores[o.field]; ok {
					p := c.pass.Fset.Position(at)
					report(load.Pos(), "gpu.%s of %s, which kernel %s also writes, at line %d: it may be stale; use Load", word(load), o.field, kernel.Name(), p.Line)
				}
			}
		}
	}
}

func (c *checker) mark(stores map[field]token.Pos, addr ssa.Value, pos token.Pos) {
	for _, o := range c.origins(addr) {
		if o.kind == pointee {
			stores[o.field] = pos
		}
	}
}
