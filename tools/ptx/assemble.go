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

// stacks is the kernels that may have local memory: the most bytes, whether they are spills too, and why that does no harm. No
// other kernel may have any, on any architecture: where variables leave the registers, each use of them is a trip to memory.
var stacks = map[string]stack{
	"github.com/doorbell-net/doorbell/compiler/internal/sample.Values": {256, false, "tries arrays that are indexed by variables; only tests run it"},

	"github.com/doorbell-net/doorbell/moe.HTCombine_OneNode1": {8, true, "one register is missing on sm_80, for a word that is read once a token"},
	"github.com/doorbell-net/doorbell/moe.LLDispatch_Near1":   {8, true, "one register is missing on sm_80, none on later ones"},

	"github.com/doorbell-net/doorbell/bench/kernels.SelfByBlock_DC_NIC1":            {16, true, nicSpills},
	"github.com/doorbell-net/doorbell/examples/alltoall.AllToAll_DC_NIC1":           {32, true, nicSpills},
	"github.com/doorbell-net/doorbell/examples/fused/layers.GatherReduce_DC_NIC1":   {8, true, nicSpills},
	"github.com/doorbell-net/doorbell/examples/fused/layers.Gather_DC_NIC1":         {16, true, nicSpills},
	"github.com/doorbell-net/doorbell/examples/fused/layers.MultiplyReduce_DC_NIC1": {24, true, nicSpills},
	"github.com/doorbell-net/doorbell/examples/fused/layers.NormGather_DC_NIC1":     {24, true, nicSpills},
	"github.com/doorbell-net/doorbell/examples/kvhandoff.Prefill_DC_NIC1":           {56, true, nicSpills},
	"github.com/doorbell-net/doorbell/examples/pingpong.PingPong_DC_NIC1":           {8, true, nicSpills},
	"github.com/doorbell-net/doorbell/internal/gintest.Ops_DC_NIC1":                 {168, true, nicSpills},
	"github.com/doorbell-net/doorbell/internal/gintest.Start_DC_NIC1":               {48, true, nicSpills},
	"github.com/doorbell-net/doorbell/internal/gintest.Team_DC_NIC1":                {152, true, nicSpills},
}

type stack struct {
	bytes  int
	spills bool
	why    string
}

const nicSpills = "drives a NIC, which takes more registers; it has run over no NIC yet"

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
		if s := stacks[name]; u.Stack > s.bytes || u.SpillStores+u.SpillLoads > 0 && !s.spills {
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
