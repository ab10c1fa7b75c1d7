// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"fmt"
)

// What measures our kernels and others' in turn itself, and prints a pair for each case.
const (
	copiesCommand  = "gpu.test -test.run ^TestCopies$ -test.v"
	llTwinsCommand = "gpu.test -test.run ^TestLLTwins$/^cuda$ -test.v"
	htTwinsCommand = "gpu.test -test.run ^TestHTTwins$/^cuda$ -test.v"
)

// turns is what ours and theirs gave, turn by turn.
type turns struct {
	Case         string
	Ours, Theirs []float64
}

// readPairs reads the lines that begin with "pair: ".
func readPairs(out []byte) (map[string]turns, error) {
	all := map[string]turns{}
	for line := range bytes.Lines(out) {
		text, ok := bytes.CutPrefix(line, []byte("pair: "))
		if !ok {
			continue
		}
		var p turns
		if err := json.Unmarshal(text, &p); err != nil {
			return nil, fmt.Errorf("line %q: %w", line, err)
		}
		if len(p.Ours) == 0 || len(p.Ours) != len(p.Theirs) {
			return nil, fmt.Errorf("line %q: %d turns of ours and %d of theirs: as many of each, and one at least, are accepted", line, len(p.Ours), len(p.Theirs))
		}
		all[p.Case] = p
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("it printed no pair: line: %s", out)
	}
	return all, nil
}

// turnsOf is what a run measured of the case, ours and the other in turn.
func (c *gpuCase) turnsOf(r *gpuRun) (p turns) {
	if r.pairs != nil {
		return r.pairs[c.name]
	}
	for rows := r.bench.Rows; len(rows) > 1; rows = rows[2:] {
		p.Ours, p.Theirs = append(p.Ours, rows[0].P50), append(p.Theirs, rows[1].P50)
	}
	return p
}

// copyCases is copies from a window to an LSA peer's on one GPU, by number of blocks.
func copyCases() (all []gpuCase) {
	for _, k := range []struct{ name, what, target, peer string }{
		{"LSA copy, %d blocks, unrolled", "128 MiB by stores, 1,024 threads a block", "at least 0.95x", "a bare copy, 16 bytes a thread, eight loads on their way"},
		{"LSA copy, %d blocks, twin", "the same", "at least 0.95x", "the same kernel in CUDA C++"},
		{"bulk copy, %d blocks, twin", "128 MiB by bulk copies, one thread a block", "at least 0.97x", "the same kernel in CUDA C++"},
	} {
		for _, blocks := range []int{1, 2, 4, 8, 16, 32, 64, 132} {
			all = append(all, gpuCase{name: fmt.Sprintf(k.name, blocks), what: k.what, unit: "GB/s", better: "more", target: k.target,
				ours: copiesCommand, peer: k.peer + ", in turn in one process"})
		}
	}
	return all
}
