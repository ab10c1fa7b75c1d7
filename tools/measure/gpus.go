// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
)

// visibleGPUs is what nvidia-smi tells of each GPU of this machine, a line each.
func visibleGPUs() ([]string, error) {
	args := []string{"--query-gpu=name,driver_version", "--format=csv,noheader"}
	if some := os.Getenv("CUDA_VISIBLE_DEVICES"); some != "" {
		args = append(args, "-i", some)
	}
	out, err := exec.Command("nvidia-smi", args...).Output()
	if err != nil {
		return nil, fmt.Errorf("ask which GPUs there are: %w", err)
	}
	lines := slices.DeleteFunc(strings.Split(string(out), "\n"), func(l string) bool { return strings.TrimSpace(l) == "" })
	if len(lines) == 0 {
		return nil, fmt.Errorf("nvidia-smi names no GPU: %q", out)
	}
	return lines, nil
}

// onGPUs chooses the cases of one GPU, and those over all that there are. share is overGPUs'.
func onGPUs(share bool) func(gpus int) []gpuCase {
	return func(gpus int) []gpuCase { return append(gpuCases(), overGPUs(gpus, share)...) }
}

// overGPUs are cases of 2, 4 and 8 ranks. Where there are as many GPUs, each rank is a process on one of its own; of fewer, but
// several, they are dealt to these by one process; on one GPU, if they may share it, that is a dry run of the same programs, in
// which nothing crosses between GPUs.
func overGPUs(gpus int, share bool) (all []gpuCase) {
	for _, ranks := range []int{2, 4, 8} {
		flags, where := " --device cuda --timeout 5s", "a GPU each"
		switch {
		case ranks <= gpus:
		case gpus > 1:
			flags, where = fmt.Sprintf("%s --gpus %d", lsaFlags, gpus), fmt.Sprintf("dealt to %d GPUs", gpus)
		case share:
			flags, where = lsaFlags, "one GPU shared, a dry run"
		default:
			continue
		}
		add := func(bench, what, unit, better string, pick func(*gpuRun) float64, part string) {
			name, args, _ := strings.Cut(bench, " ")
			all = append(all, gpuCase{name: fmt.Sprintf("%d ranks, %s%s%s", ranks, name, strings.ReplaceAll(args, "--", " "), part), what: what + ", " + where,
				unit: unit, better: better, ours: fmt.Sprintf("bench %s -n %d %s%s", name, ranks, args, flags), pick: pick})
		}
		add("pingpong --sizes 8 --lsa on", "round trip by stores", "us", "less", gpuP50, "")
		add("pingpong --sizes 8", "round trip by puts", "us", "less", gpuP50, "")
		add("bw --sizes 4M", "puts in flight", "GB/s", "more", gpuGBps, "")
		add("alltoall --sizes 4K --lsa on", "a round by stores", "us", "less", gpuP50, "")
		add("alltoall --sizes 1M --lsa on", "a round by stores", "us", "less", gpuP50, "")
		for _, op := range []string{"dispatch", "combine"} {
			add("ll --tokens 128 --experts 256 --dtype fp8", "hidden 7,168, top-8, by stores", "us", "less", labelled(op), ", "+op)
			add("ht --tokens 1024 --experts 256", "hidden 7,168, top-8, BF16, by stores", "us", "less", labelled(op), ", "+op)
		}
	}
	return all
}
