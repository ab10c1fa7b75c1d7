// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"
)

// gpuPages is what figures of GPUs are called, and what they are of.
var gpuPages = []struct{ file, title, text string }{
	{"gpu.jsonl", "On a GPU", "Ranks are of one process on one GPU, so that nothing crosses NVLink, where a case does not say more. A twin is the same kernel in CUDA C++, launched by the same\n" +
		"host code on the same memory (`bench/gpu/*.cu`); floors are bare kernels (`bench/gpu/floors.cu`)."},
	{"gpu-peers.jsonl", "Two GPUs over NVLink", "Two ranks, a process and a GPU each where a case does not say more, beside bare kernels, NCCL, NVSHMEM and DeepEP in the same run\n" +
		"(`bench/gpu/peers`). Nothing was multicast, and there was no NIC."},
}

// gpuPage adds the figures of GPUs, where there are some.
func gpuPage(p func(string, ...any), dir fs.FS) error {
	for _, g := range gpuPages {
		if err := gpuSets(p, dir, g.file, g.title, g.text); err != nil {
			return err
		}
	}
	return nil
}

// gpuSets adds a file's figures, by day and machine.
func gpuSets(p func(string, ...any), dir fs.FS, file, title, text string) error {
	rows, err := lines[row](dir, file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, set := range split(rows) {
		p("## %s, %s: %s\n", title, set[0].Date, set[0].Machine)
		p("%s\n", text)
		p("| case | ours: median, minimum | beside it: median, minimum | ratio: median (min - max) | target | verdict | rounds |")
		p("|---|---|---|---|---|---|---|")
		for _, r := range set {
			theirs, ratio := "", ""
			if r.Theirs != nil && r.Ratio != nil {
				theirs = fmt.Sprintf("%s: %s, %s %s", r.Peer, short(r.Theirs.Median), short(r.Theirs.Min), r.Unit)
				ratio = r.Ratio.in("x")
			}
			what := r.What
			if r.GPUs > 1 {
				what += fmt.Sprintf(", %d GPUs", r.GPUs)
			}
			p("| **%s**: %s | %s, %s %s | %s | %s | %s | %s | %d |", r.Case, what, short(r.Ours.Median), short(r.Ours.Min), r.Unit, theirs, ratio,
				r.Target, verdict(r), r.Rounds)
		}
		p("\nCommands:\n")
		said := map[string]bool{}
		for _, r := range set {
			for _, c := range []string{r.Command, r.PeerCmd} {
				if c != "" && !said[c] {
					said[c] = true
					p("- `%s`", c)
				}
			}
		}
		p("")
	}
	return nil
}

// verdict says whether a row's median is where its target wants it: "at most 1.2x" is of the ratio, "at most 1 s" of the
// figure. Empty without a target that says a number.
func verdict(r row) string {
	var bound float64
	var unit string
	most, isMost := strings.CutPrefix(r.Target, "at most ")
	least, isLeast := strings.CutPrefix(r.Target, "at least ")
	text := most
	if isLeast {
		text = least
	}
	if !isMost && !isLeast {
		return ""
	}
	if n, _ := fmt.Sscanf(text, "%f%s", &bound, &unit); n < 2 {
		if n, _ = fmt.Sscanf(text, "%f %s", &bound, &unit); n < 2 {
			return ""
		}
	}
	value := r.Ours.Median
	if unit == "x" {
		if r.Ratio == nil {
			return ""
		}
		value = r.Ratio.Median
	}
	if isMost && value <= bound || isLeast && value >= bound {
		return "met"
	}
	return "**missed**"
}
