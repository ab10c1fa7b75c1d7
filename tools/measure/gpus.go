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

// overGPUs are cases of 2, 4 and 8 ranks. Where there are as many GPUs, each rank is a process on one of its own; else, if they
// may share, they are of one process on one GPU: a dry run of the same programs, in which nothing crosses between GPUs.
func overGPUs(gpus int, share bool) (all []gpuCase) {
	for _, ranks := range []int{2, 4, 8} {
		flags, where := " --device cuda --timeout 5s", "a GPU each"
		if ranks > gpus {
			if !share {
				break
			}
			flags, where = lsaFlags, "one GPU shared, a dry run"
		}
		for _, c := range []struct {
			bench, what, unit, better string
			pick                      func(*gpuRun) float64
		}{
			{"pingpong --sizes 8 --lsa on", "round trip by stores", "us", "less", gpuP50},
			{"pingpong --sizes 8", "round trip by puts", "us", "less", gpuP50},
			{"bw --sizes 4M", "puts in flight", "GB/s", "more", gpuGBps},
			{"alltoall --sizes 4K --lsa on", "a round by stores", "us", "less", gpuP50},
			{"alltoall --sizes 1M --lsa on", "a round by stores", "us", "less", gpuP50},
		} {
			name, args, _ := strings.Cut(c.bench, " ")
			all = append(all, gpuCase{name: fmt.Sprintf("%d ranks, %s%s", ranks, name, strings.ReplaceAll(args, "--", " ")), what: c.what + ", " + where,
				unit: c.unit, better: c.better, ours: fmt.Sprintf("bench %s -n %d %s%s", name, ranks, args, flags), pick: c.pick})
		}
	}
	return all
}
