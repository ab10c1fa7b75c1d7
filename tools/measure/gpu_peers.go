// SPDX-License-Identifier: Apache-2.0

package main

import "fmt"

// What bench/gpu/run.sh --peers measures, on two GPUs of a host: each side is a process for each GPU, or the peers' own programs.
const (
	rawCommand     = "peers/raw"
	ncclCommand    = "peers/nccl"
	nvshmemCommand = "peers/nvshmem"
	deepepCommand  = "peers/deepep.sh"
	lsaPeers       = "run -n 2 --device cuda -- ./gpu.test -test.run ^TestPeers$ -test.v"
	twoGPUs        = " -n 2 --device cuda --timeout 5s"
	lsaTrip        = "bench pingpong --sizes 8 --lsa on" + twoGPUs
	hostTrip       = "bench pingpong --sizes 8 --net shm --windows host" + twoGPUs
	deviceTrip     = "bench pingpong --sizes 8" + twoGPUs
	largePuts      = "bench bw --sizes 4M" + twoGPUs
	htCommand      = "bench ht --tokens 4096 --experts 256" + twoGPUs
	htFP8Command   = htCommand + " --dtype fp8"
	llCommand      = "bench ll --tokens 128 --experts 288 --dtype fp8" + twoGPUs
)

func figureGBps(name string) func(*gpuRun) float64 {
	return func(r *gpuRun) float64 { return r.floors[name].GBps }
}

// labelled is the median of the row of that label.
func labelled(label string) func(*gpuRun) float64 {
	return func(r *gpuRun) float64 { return r.bench.of(label).P50 }
}

func peerCases() []gpuCase {
	const word, lsaWay, put = "two GPUs, 8 B and flag, release by add", "NCCL LSA, 8 B and flag, release by add, 1 thread", "NVSHMEM put with signal, 8 B, 1 thread"
	trip := gpuCase{what: "round trip between two GPUs, by stores, one thread", unit: "us", better: "less", ours: lsaTrip, pick: gpuP50}
	against := func(name, target, peer, command string, pick func(*gpuRun) float64) gpuCase {
		c := trip
		c.name, c.target, c.peer, c.theirs, c.pickTheirs = name, target, peer, command, pick
		return c
	}
	all := []gpuCase{
		against("NVLink: store + signal, 8 B", "at most 1.1x", "two bare kernels, 8 B and a flag raised by a releasing add", rawCommand, floorP50(word, 1)),
		against("NVLink: store + signal, 8 B, NCCL", "", "the same through NCCL's LSA pointers", ncclCommand, floorP50(lsaWay, 1)),
		against("NVLink: store + signal, 8 B, NVSHMEM", "at most 1x", "NVSHMEM, putmem_signal_nbi by one thread", nvshmemCommand, floorP50(put, 1)),
		{"NVLink: LSA barrier", "two GPUs, one warp each", "us", "less", "at most 1x", lsaPeers, floorP50("LSA barrier, 32 threads, GPUs of their own", 1),
			"NCCL's, 32 threads", ncclCommand, floorP50("NCCL LSA barrier, 32 threads", 1)},
		{"NVLink: put + signal, 8 B, host windows", "round trip between two GPUs, by the proxy", "us", "less", "at most 1.2x", hostTrip, gpuP50,
			"twice a flag's round trip CPU - GPU - CPU", floorsCommand, floorP50("cpu-gpu-cpu flag", 2)},
		{name: "NVLink: put + signal, 8 B, device windows", what: "the same, windows in the GPUs' memory", unit: "us", better: "less", target: "at most 12 us", ours: deviceTrip, pick: gpuP50},
		{"NVLink: puts of 4 MiB", "16 in flight, windows in the GPUs' memory", "GB/s", "more", "at least 0.9x", largePuts, gpuGBps,
			"16 copies of 4 MiB that the host queues", rawCommand, figureGBps("two GPUs, 16 copies of 4 MiB")},
	}
	for _, k := range []struct{ ours, raw, what string }{{"LSA copy", "stores", "512 MiB by stores, 1,024 threads a block"}, {"LSA bulk copy", "bulk copies", "512 MiB by bulk copies, one thread a block"}} {
		for _, blocks := range []int{4, 8, 16, 32, 64, 132} {
			target := ""
			switch {
			case blocks >= 64:
				target = "at least 0.92x"
			case blocks >= 16:
				target = "at least 0.84x"
			}
			ours := figureGBps(fmt.Sprintf("%s to the other GPU, %d blocks", k.ours, blocks))
			all = append(all,
				gpuCase{fmt.Sprintf("NVLink: %s, %d blocks", k.ours, blocks), k.what, "GB/s", "more", target, lsaPeers, ours,
					"the copy engine", rawCommand, figureGBps("two GPUs, copy engine")},
				gpuCase{fmt.Sprintf("NVLink: %s, %d blocks, bare", k.ours, blocks), "the same", "GB/s", "more", "at least 0.95x", lsaPeers, ours,
					"a bare kernel", rawCommand, figureGBps(fmt.Sprintf("two GPUs, %s, %d blocks", k.raw, blocks))})
		}
	}
	first := len(all)
	for _, op := range []struct{ label, theirs string }{{"dispatch", "DeepEP LL dispatch, FP8, 128 tokens"}, {"combine", "DeepEP LL combine, 128 tokens"}} {
		all = append(all, gpuCase{"NVLink: LL " + op.label + ", 128 tokens", "hidden 7168, top 8 of 288 experts, FP8 dispatch", "us", "less", "at most 1x", llCommand, labelled(op.label),
			"DeepEP v1.2.1, kernel times of its own test", deepepCommand, floorP50(op.theirs, 1)})
	}
	for _, x := range []struct{ format, command, label, theirs string }{
		{"FP8", htFP8Command, "dispatch again", "DeepEP HT dispatch (FP8), 4096 tokens"}, {"FP8", htFP8Command, "dispatch", "DeepEP HT dispatch (FP8), 4096 tokens"},
		{"BF16", htCommand, "dispatch again", "DeepEP HT dispatch (BF16), 4096 tokens"}, {"BF16", htCommand, "dispatch", "DeepEP HT dispatch (BF16), 4096 tokens"},
		{"BF16", htCommand, "combine", "DeepEP HT combine, 4096 tokens"},
	} {
		all = append(all, gpuCase{"NVLink: HT " + x.label + ", 4096 tokens, " + x.format, "hidden 7168, top 8 of 256 experts", "us", "less", "at most 1x", x.command, labelled(x.label),
			"DeepEP v1.2.1, the best of its own test's tuning, which dispatches with a known layout (cached handle)", deepepCommand, floorP50(x.theirs, 1)})
	}
	for _, c := range all[first:] { // ours also where theirs cannot be had
		c.name, c.target, c.peer, c.theirs, c.pickTheirs = c.name+", alone", "", "", "", nil
		all = append(all, c)
	}
	for _, x := range []struct{ format, command, label, target string }{
		{"BF16", htCommand, "dispatch again", "at least 0.85x"}, {"BF16", htCommand, "dispatch", ""}, {"BF16", htCommand, "combine", "at least 0.85x"},
		{"FP8", htFP8Command, "dispatch again", ""}, {"FP8", htFP8Command, "dispatch", ""},
	} {
		all = append(all, gpuCase{"NVLink: HT " + x.label + ", 4096 tokens, " + x.format + ", of the NVLink limit",
			"the rows of a rank that cross NVLink, each with what stands beside it and none that stays on its rank, over the median", "GB/s", "more", x.target,
			x.command, crossing(x.label), "the copy engine", rawCommand, figureGBps("two GPUs, copy engine")})
	}
	alone := func(command, unit string, names ...string) {
		for _, n := range names {
			c := gpuCase{name: "peer: " + n, what: "nothing of ours", unit: unit, better: "less", ours: command, pick: floorP50(n, 1)}
			if unit == "GB/s" {
				c.better, c.pick = "more", figureGBps(n)
			}
			all = append(all, c)
		}
	}
	alone(rawCommand, "us", "two GPUs, flag, relaxed", "two GPUs, flag, release", "two GPUs, 8 B and flag, release", word)
	alone(rawCommand, "GB/s", "two GPUs, copy engine")
	alone(nvshmemCommand, "us", put, "NVSHMEM put with signal, 8 B, 32 threads", "NVSHMEM put with signal, 8 B, 256 threads",
		"NVSHMEM put with signal, 7168 B, 256 threads", "NVSHMEM put with signal, 7168 B, 1024 threads")
	alone(nvshmemCommand, "GB/s", "NVSHMEM put, 16 blocks of 1024 threads", "NVSHMEM put, 64 blocks of 1024 threads")
	for _, what := range []string{"all-reduce", "all-gather", "all-to-all"} {
		for _, bytes := range []int{8, 64 << 10, 1 << 20, 64 << 20} {
			alone(ncclCommand, "us", fmt.Sprintf("NCCL %s, %d B", what, bytes))
		}
	}
	return all
}
