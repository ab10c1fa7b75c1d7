// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"slices"
)

// moeRow is the row of an operation with so many tokens, of zeros if there is none.
func moeRow(r *gpuRun, label string, tokens int) (row resultRow) {
	if i := slices.IndexFunc(r.bench.Rows, func(row resultRow) bool { return row.Label == label && row.MoE.Tokens == tokens }); i >= 0 {
		row = r.bench.Rows[i]
	}
	return row
}

// moeP50 is the median of an operation with so many tokens.
func moeP50(label string, tokens int) func(*gpuRun) float64 {
	return func(r *gpuRun) float64 { return moeRow(r, label, tokens).P50 }
}

// moving is the rate at which an operation moves all bytes of all ranks; 0 without a figure.
func moving(label string, tokens int) func(*gpuRun) float64 {
	return func(r *gpuRun) float64 {
		row := moeRow(r, label, tokens)
		if row.P50 == 0 {
			return 0
		}
		return (row.MoE.OwnBytes + row.MoE.LSABytes + row.MoE.NetworkBytes) / row.P50 / 1e3
	}
}

// message is an operation's time for each message that crosses the network, of all ranks; 0 without a figure.
func message(label string, tokens int) func(*gpuRun) float64 {
	return func(r *gpuRun) float64 {
		row := moeRow(r, label, tokens)
		if row.MoE.NetworkBytes == 0 {
			return 0
		}
		return row.P50 * row.MoE.MessageBytes / row.MoE.NetworkBytes
	}
}

// crossing is the rate, one way, of the bytes of an operation that ranks store into other GPUs or read there.
func crossing(label string) func(*gpuRun) float64 {
	return func(r *gpuRun) float64 {
		row := r.bench.of(label)
		if row.P50 == 0 {
			return 0
		}
		return row.MoE.LSABytes / float64(len(row.MoE.PerRank)) / row.P50 / 1e3
	}
}

// moeOp is an operation, and what it may take at most.
type moeOp struct{ label, target string }

var (
	llOps = []moeOp{{label: "dispatch"}, {label: "combine"}}
	htOps = []moeOp{{label: "dispatch"}, {label: "dispatch again"}, {label: "combine"}}
)

// moeCases are dispatch and combine on one GPU, by its clock. Targets of one rank are DeepEP 1.2.1's medians there.
func moeCases() (all []gpuCase) {
	add := func(name, what, args string, tokens int, ops ...moeOp) {
		for _, op := range ops {
			all = append(all, gpuCase{name: name + ", " + op.label, what: what, unit: "us", better: "less", target: op.target, ours: "bench " + args + lsaFlags, pick: moeP50(op.label, tokens)})
		}
	}
	for _, x := range []struct {
		tokens             int
		fp8, bf16, combine string
	}{{1, "14.6", "15.3", "13.2"}, {8, "15.1", "16.2", "14.2"}, {128, "20.9", "26.2", "25.2"}} {
		at, most := fmt.Sprintf("ll, 1 rank, %d tokens", x.tokens), func(us string) string { return "at most " + us + " us" }
		const what, args = "288 experts, hidden 7,168, top-8, all local, L2 emptied before", "ll -n 1 --experts 288 --tokens 1,8,128"
		add(at+", FP8", what, args+" --dtype fp8", x.tokens, moeOp{"dispatch", most(x.fp8)}, moeOp{"combine", most(x.combine)})
		add(at+", BF16", what, args, x.tokens, moeOp{"dispatch", most(x.bf16)}, moeOp{"combine", most(x.combine)})
	}
	for _, ranks := range []int{4, 8} {
		add(fmt.Sprintf("ll, %d ranks, 128 tokens, FP8", ranks), "256 experts, hidden 7,168, top-8, ranks of one process, by stores", fmt.Sprintf("ll -n %d --experts 256 --tokens 128 --dtype fp8", ranks), 128, llOps...)
	}
	for _, x := range []struct{ ranks, tokens int }{{4, 4096}, {8, 1024}} { // of 8 with 4,096 the host would compare 2.5 GB in each check
		name, args := fmt.Sprintf("ht, %d ranks, %d tokens, BF16", x.ranks, x.tokens), fmt.Sprintf("ht -n %d --experts 256 --tokens %d", x.ranks, x.tokens)
		add(name, "256 experts, hidden 7,168, top-8, ranks of one process, by stores", args, x.tokens, htOps...)
		for _, op := range htOps {
			all = append(all, gpuCase{name + ", " + op.label + ", of the device copy", "all bytes of all ranks, those to the own rank too, over the median", "GB/s", "more", "at least 0.8x",
				"bench " + args + lsaFlags, moving(op.label, x.tokens), "the driver's copy of 512 MiB within the GPU", floorsCommand, figureGBps("device copy, 512 MiB")})
		}
	}
	for _, x := range []struct {
		form   string
		tokens int
		ops    []moeOp
	}{{"ll", 128, llOps}, {"ht", 1024, htOps}} {
		name, args := fmt.Sprintf("%s, 4 ranks on 2 virtual nodes, %d tokens", x.form, x.tokens), fmt.Sprintf("%s -n 4 --experts 32 --ranks-per-node 2 --tokens %d", x.form, x.tokens)
		const what = "32 experts, hidden 7,168, top-8, BF16, stores inside a node and puts by the proxy between"
		add(name, what, args, x.tokens, x.ops...)
		for _, op := range llOps {
			all = append(all, gpuCase{name + ", " + op.label + ", a message", "the median over the messages between nodes, of all ranks, through pinned memory of the host", "us", "less", "",
				"bench " + args + lsaFlags, message(op.label, x.tokens), "the driver's copy of 14 KiB within the GPU, back to back", floorsCommand, floorP50("device copy, 14 KiB", 1)})
		}
	}
	return all
}

// twinCases are the phases of dispatch and combine, and the quantisation of rows, beside their twins.
func twinCases() (all []gpuCase) {
	add := func(command, what string, names ...string) {
		for _, name := range names {
			all = append(all, gpuCase{name: name + ", twin", what: what, unit: "us", better: "less", target: "at most 1.03x",
				ours: command, peer: "the same kernels in CUDA C++, in turn in one process"})
		}
	}
	const one = "hidden 7,168, top-8 of 288 experts, all local, L2 emptied before"
	for _, x := range []struct{ name, what string }{
		{"1 rank, 1 token", one}, {"1 rank, 128 tokens", one},
		{"4 ranks, 128 tokens", "hidden 7,168, top-8 of 256 experts, ranks of one process, by stores"}, {"8 ranks, 128 tokens", "the same"},
	} {
		at := "LL, " + x.name + ", FP8, "
		add(llTwinsCommand, x.what, at+"send", at+"receive", at+"return", at+"combine")
	}
	add(llTwinsCommand, one, "LL, 1 rank, 128 tokens, BF16, send", "LL, 1 rank, 128 tokens, BF16, receive")
	add(llTwinsCommand, "hidden 7,168, one rank, sent to nobody", "FP8, 4,096 rows, quantise")
	const many = "4,096 tokens of hidden 7,168, top-8 of 256 experts, ranks of one process"
	for _, at := range []string{"HT, 4 ranks, BF16, ", "HT, 8 ranks, BF16, ", "HT, 4 ranks, BF16, 256 channels, ", "HT, 8 ranks, BF16, 128 channels, "} {
		add(htTwinsCommand, many, at+"dispatch", at+"dispatch again", at+"combine")
	}
	add(htTwinsCommand, many, "HT, 4 ranks, FP8, dispatch", "HT, 4 ranks, FP8, dispatch again")
	return all
}
