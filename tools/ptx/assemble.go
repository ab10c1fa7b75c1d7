// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"

	"github.com/doorbell-net/doorbell/compiler"
)

// stacks is the kernels that may have local memory: the most bytes, and why it does no harm. No other kernel may have any,
// on any architecture: where variables leave the registers, each use of them is a trip to memory.
var stacks = map[string]struct {
	bytes int
	why   string
}{
	"github.com/doorbell-net/doorbell/compiler/internal/sample.Values": {256, "tries arrays that are indexed by variables; only tests run it"},
}

// assemble makes the cubins that packages ask for, and tells what is wrong with any kernel on any architecture.
func assemble(ctx context.Context, a *compiler.Assembler, pkgs []*compiler.Package, out io.Writer) (bad []string, err error) {
	used := make([][]compiler.Usage, len(pkgs))
	errs := make([]error, len(pkgs))
	var wg sync.WaitGroup
	for i, p := range pkgs {
		p.Cubins = map[int][]byte{}
		wg.Go(func() {
			for _, arch := range compiler.CubinArchs {
				if arch < p.Arch {
					continue // it has what that one lacks
				}
				cubin, all, err := a.Assemble(ctx, p, arch)
				if err != nil {
					errs[i] = err
					return
				}
				used[i] = append(used[i], all...)
				if slices.Contains(p.Archs, arch) {
					p.Cubins[arch] = cubin
				}
			}
		})
	}
	wg.Wait()
	for i, p := range pkgs {
		if errs[i] != nil {
			return nil, errs[i]
		}
		bad = append(bad, spills(p.Path, used[i])...)
	}
	fmt.Fprintf(out, "assembled for %v\n", compiler.CubinArchs)
	return bad, nil
}

// spills says which kernels have local memory that they should not have, and which should have some and have not.
func spills(path string, used []compiler.Usage) (bad []string) {
	most := map[string]int{}
	for _, u := range used {
		name := path + "." + u.Kernel
		most[name] = max(most[name], u.Stack)
		if u.Stack > stacks[name].bytes || u.SpillStores+u.SpillLoads > 0 {
			bad = append(bad, fmt.Sprintf("%s on sm_%d: %d bytes of stack, %d and %d bytes of spill stores and loads at %d registers; accepted are %d of stack",
				name, u.Arch, u.Stack, u.SpillStores, u.SpillLoads, u.Registers, stacks[name].bytes))
		}
	}
	for name, s := range stacks {
		if most[name] < s.bytes && strings.HasPrefix(name, path+".") {
			bad = append(bad, fmt.Sprintf("%s has %d bytes of stack at most, and %d are accepted: change the list", name, most[name], s.bytes))
		}
	}
	return bad
}
