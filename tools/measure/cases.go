// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

func p50(r result) float64     { return 1e3 * r.Rows[0].P50 }
func minns(r result) float64   { return 1e3 * r.Rows[0].Min }
func p99(r result) float64     { return r.Rows[0].P99 }
func longest(r result) float64 { return r.Rows[0].Max / 1e3 }
func mops(r result) float64    { return r.Rows[0].Mops }

// meanns is the mean of a round trip of two pairs at once.
func meanns(r result) float64 { return 2e3 / r.Rows[0].Mops }

// gbps is the bandwidth of the row whose label begins so.
func gbps(label string) func(result) float64 {
	return func(r result) float64 {
		for _, row := range r.Rows {
			if strings.HasPrefix(row.Label, label) {
				return row.GBps
			}
		}
		return 0
	}
}

// p50Of is the median of the row of that label, in microseconds.
func p50Of(label string) func(result) float64 {
	return func(r result) float64 { return r.of(label).P50 }
}

// copyRatio is how long the row of that label took beside the memcpys that it needs, in one run.
func copyRatio(label string) func(result) float64 {
	return func(r result) float64 { return r.of(label).MoE.CopyRatio }
}

const (
	ll8   = "ll --local -n 8 --tokens 128 --experts 256 --dtype fp8"
	ll16  = "ll --local -n 16 --ranks-per-node 8 --tokens 128 --experts 256 --dtype fp8"
	ll64  = "ll --local -n 64 --ranks-per-node 8 --tokens 128 --experts 256 --dtype fp8 --hidden 512"
	ht8   = "ht --local -n 8 --tokens 4096 --experts 256 --dtype fp8"
	ht16  = "ht --local -n 16 --ranks-per-node 8 --tokens 4096 --experts 256 --dtype fp8 --hidden 1024"
	pp    = "pingpong -n 2 --sizes 8"
	fused = "fused -n 4 --sizes 64K --lsa off"
)

var (
	bareMedian = c("pingpong", "10 1", "line", "0", true)
	bareBest   = c("pingpong", "10 1", "line", "0", false)
	hot        = c("memcpy", "8 256 1", "hot", "4194304", true)
	cold       = c("memcpy", "8 256 1", "cold", "4194304", true)
)

var cases = []benchCase{
	{name: "pingpong 8 B, proxy, assisted, median", what: "round trip of put + signal between two processes", unit: "ns", better: "less", target: "at most 3x",
		ours: bench(pp+" --progress assisted", p50), peer: "bare cache line in C", theirs: bareMedian},
	{name: "pingpong 8 B, proxy, assisted, minimum", what: "the same, minimum", unit: "ns", better: "less", target: "at most 3x",
		ours: bench(pp+" --progress assisted", minns), peer: "bare cache line in C", theirs: bareBest},
	{name: "pingpong 8 B, proxy, thread, median", what: "the same, a progress thread in each process: four busy threads on two cores", unit: "ns", better: "less",
		ours: bench(pp+" --progress thread", p50), peer: "bare cache line in C", theirs: bareMedian},
	{name: "pingpong 8 B, LSA, median", what: "round trip of store + signal", unit: "ns", better: "less", target: "at most 1.3x",
		ours: bench(pp+" --lsa on", p50), peer: "bare cache line in C", theirs: bareMedian},
	{name: "pingpong 8 B, LSA, minimum", what: "the same, minimum", unit: "ns", better: "less", target: "at most 1.3x",
		ours: bench(pp+" --lsa on", minns), peer: "bare cache line in C", theirs: bareBest},
	{name: "softnic, 8 B", what: "round trip of put + signal by the emulated NIC: what it costs to emulate one, no comparison of backends", unit: "ns", better: "less", target: "at most 1.5x",
		ours: bench(pp+" --progress assisted --backend gdaki", p50), peer: "the proxy over the same wire", theirs: bench(pp+" --progress assisted --backend proxy", p50)},
	{name: "softnic, 8 B, tcp", what: "the same over loopback TCP", unit: "us", better: "less", target: "at most 1.5x",
		ours: bench(pp+" --net tcp --progress assisted --backend gdaki", p50us), peer: "the proxy over the same wire", theirs: bench(pp+" --net tcp --progress assisted --backend proxy", p50us)},
	{name: "bw 4 MiB, hot", what: "puts of 4 MiB, one source and one destination", unit: "GB/s", better: "more", target: "at least 0.95x",
		ours: bench("bw -n 2 --sizes 4M", gbps("hot")), peer: "memcpy of the same size, hot", theirs: hot},
	{name: "bw 4 MiB, cold", what: "puts of 4 MiB along 256 MiB", unit: "GB/s", better: "more", target: "at least 0.95x",
		ours: bench("bw -n 2 --sizes 4M", gbps("cold")), peer: "memcpy of the same size, cold", theirs: cold},
	{name: "rate, assisted", what: "8-byte puts of window words, each compared at the receiver, over 2 s", unit: "M/s", better: "more", target: "at least 8 M/s",
		ours: bench("rate -n 2 --progress assisted", mops), rounds: 7},
	{name: "rate, thread", what: "the same with a progress thread in each process", unit: "M/s", better: "more", target: "at least 5 M/s where cores allow",
		ours: bench("rate -n 2 --progress thread", mops), rounds: 7, note: "four busy threads on two cores"},
	{name: "4 ranks on 2 cores", what: "round trips of both pairs together", unit: "M/s", better: "more", target: "at least 0.5x",
		ours: bench("pingpong -n 4 --sizes 8", mops), peer: "two ranks", theirs: bench(pp, mops)},
	{name: "4 ranks on 2 cores, p99", what: "single round trips", unit: "us", better: "less", target: "at most 100 us", ours: bench("pingpong -n 4 --sizes 8", p99)},
	{name: "4 ranks on 2 cores, longest", what: "single round trips", unit: "ms", better: "less", target: "at most 20 ms", ours: bench("pingpong -n 4 --sizes 8", longest)},
	{name: "alltoall 4 ranks, 64 KiB", what: "each rank to each, processes, by stores", unit: "us", better: "less",
		ours: bench("alltoall -n 4 --sizes 64K", func(r result) float64 { return r.Rows[0].P50 }), rounds: 7},
	{name: "rmsnorm-allgather, fused, 4 ranks, 64 KiB", what: "16 rows of 1,024 of each rank normalised and put to all, processes", unit: "us", better: "less",
		ours: bench(fused, p50Of("rmsnorm-allgather fused")), peer: "the same, two kernels", theirs: bench(fused, p50Of("rmsnorm-allgather unfused")), rounds: 7},
	{name: "rmsnorm-allgather, fused, beside the host", what: "the same", unit: "us", better: "less",
		ours: bench(fused, p50Of("rmsnorm-allgather fused")), peer: "the same, the host between kernels", theirs: bench(fused, p50Of("rmsnorm-allgather host")), rounds: 7},
	{name: "gemv-allreduce, fused, 4 ranks, 64 KiB", what: "16,384 rows by 64 columns on each rank, parts put to all and added up, processes", unit: "us", better: "less",
		ours: bench(fused, p50Of("gemv-allreduce fused")), peer: "the same, two kernels", theirs: bench(fused, p50Of("gemv-allreduce unfused")), rounds: 7},
	{name: "gemv-allreduce, fused, beside the host", what: "the same", unit: "us", better: "less",
		ours: bench(fused, p50Of("gemv-allreduce fused")), peer: "the same, the host between kernels", theirs: bench(fused, p50Of("gemv-allreduce host")), rounds: 7},
	{name: "ll dispatch, 4 ranks", what: "64 tokens a rank, hidden 7,168, top-8, 32 experts, BF16", unit: "us", better: "less",
		ours: bench("ll -n 4", func(r result) float64 { return r.Rows[0].P50 }), rounds: 7},
	{name: "ll combine, 4 ranks", what: "the same", unit: "us", better: "less",
		ours: bench("ll -n 4", func(r result) float64 { return r.Rows[1].P50 }), rounds: 7},
	{name: "ll dispatch, FP8", what: "the same, quantised on the way", unit: "us", better: "less",
		ours: bench("ll -n 4 --dtype fp8", p50Of("dispatch")), peer: "BF16", theirs: bench("ll -n 4", p50Of("dispatch")), rounds: 7},
	{name: "ll dispatch beside memcpys", what: "the same: mean operation over the memcpys of put and pack, measured in turn on all ranks", unit: "x", better: "less", target: "at most 1.5x",
		ours: bench("ll -n 4", copyRatio("dispatch")), rounds: 7},
	{name: "ll combine beside memcpy", what: "the same: mean operation over the memcpy of its input", unit: "x", better: "less", target: "at most 2x",
		ours: bench("ll -n 4", copyRatio("combine")), rounds: 7},
	{name: "ll dispatch, 8 ranks", what: "128 tokens a rank, hidden 7,168, top-8 of 256 experts, FP8, goroutines of one process", unit: "us", better: "less",
		ours: bench(ll8, p50Of("dispatch")), rounds: 1},
	{name: "ll combine, 8 ranks", what: "the same, BF16", unit: "us", better: "less", ours: bench(ll8, p50Of("combine")), rounds: 1},
	{name: "ll dispatch, 16 ranks on 2 virtual nodes", what: "the same, FP8", unit: "us", better: "less", ours: bench(ll16, p50Of("dispatch")), rounds: 1},
	{name: "ll combine, 16 ranks on 2 virtual nodes", what: "the same, BF16", unit: "us", better: "less", ours: bench(ll16, p50Of("combine")), rounds: 1},
	{name: "ll dispatch, 64 ranks on 8 virtual nodes", what: "the same at hidden 512: there is no memory for more", unit: "us", better: "less", ours: bench(ll64, p50Of("dispatch")), rounds: 1},
	{name: "ll combine, 64 ranks on 8 virtual nodes", what: "the same, BF16", unit: "us", better: "less", ours: bench(ll64, p50Of("combine")), rounds: 1},
	{name: "ht dispatch beside memcpys", what: "4,096 tokens a rank, hidden 7,168, top-8 of 32 experts, BF16, 4 processes: mean operation over the memcpys of its rows", unit: "x", better: "less",
		ours: bench("ht -n 4", copyRatio("dispatch")), rounds: 3},
	{name: "ht combine beside memcpys", what: "the same: mean operation over the memcpys of what it reads", unit: "x", better: "less",
		ours: bench("ht -n 4", copyRatio("combine")), rounds: 3},
	{name: "ht dispatch, 8 ranks", what: "4,096 tokens a rank, hidden 7,168, top-8 of 256 experts, FP8, goroutines of one process", unit: "us", better: "less",
		ours: bench(ht8, p50Of("dispatch")), rounds: 1},
	{name: "ht combine, 8 ranks", what: "the same, BF16", unit: "us", better: "less", ours: bench(ht8, p50Of("combine")), rounds: 1},
	{name: "ht dispatch, 16 ranks on 2 virtual nodes", what: "the same at hidden 1,024: there is no memory for more", unit: "us", better: "less", ours: bench(ht16, p50Of("dispatch")), rounds: 1},
	{name: "ht combine, 16 ranks on 2 virtual nodes", what: "the same, BF16", unit: "us", better: "less", ours: bench(ht16, p50Of("combine")), rounds: 1},
	{name: "ll, wall time", what: "the whole command, without the build", unit: "s", better: "less", target: "at most 10 s",
		ours: timed("bench ll -n 4 --json"), rounds: 5},
	{name: "ll, memory", what: "resident in all processes together, shared pages counted in each", unit: "MiB", better: "less", target: "below 1,024 MiB",
		ours: resident("bench ll -n 4 --json --iters 60"), rounds: 3},
	{name: "get 8 B", what: "a get and its flush, two ranks of a process", unit: "ns", better: "less", target: "at most 1.3x",
		ours: gobench("Get/8B"), peer: "round trip of put + signal", theirs: gobench("PutWait/8B/small8"), rounds: 7},
	{name: "strong signal", what: "round trip of 8 B with it, two ranks of a process", unit: "ns", better: "less", target: "at most 1.1x",
		ours: gobench("Signal/strong"), peer: "with a weak one", theirs: gobench("Signal/weak"), rounds: 7},
	{name: "puts beside 512 idle queues", what: "a put of 8 B, two ranks of a process", unit: "ns", better: "less", target: "at most 1.1x",
		ours: gobench("IdleQueues/512"), peer: "beside 4", theirs: gobench("IdleQueues/4"), rounds: 7},
	{name: "puts beside 4,096 idle queues", what: "the same; the sweep's share grows with the queues", unit: "ns", better: "less",
		ours: gobench("IdleQueues/4096"), peer: "beside 4", theirs: gobench("IdleQueues/4"), rounds: 7},
	{name: "GIN barrier, 4 processes", what: "barriers with FencePut, one after another, mean", unit: "ns", better: "less", target: "at most 4x",
		ours: barrier("gin", 4), peer: "round trip of 8 B, 4 ranks, mean", theirs: bench("pingpong -n 4 --sizes 8", meanns), rounds: 7},
	{name: "LSA barrier, 4 processes", what: "the same by stores", unit: "ns", better: "less", target: "at most 2x",
		ours: barrier("lsa", 4), peer: "round trip of 8 B by stores, 4 ranks, mean", theirs: bench("pingpong -n 4 --sizes 8 --lsa on", meanns), rounds: 7},
	{name: "LSA barrier, 4 processes, beside C", what: "the same; the round trips above need no change of process on a core, a barrier of four on two cores does", unit: "ns", better: "less",
		ours: barrier("lsa", 4), peer: "stores to each, sched_yield at each look, in C", theirs: c("meet", "20", "all-to-all", "0", true), rounds: 7},
	{name: "GIN barrier, 8 ranks in process", what: "barriers with FencePut, one after another, mean", unit: "ns", better: "less", target: "at most 20 us",
		ours: barrier("gin", 0), rounds: 7},
	{name: "idle job", what: "four ranks with a device communicator each that do nothing for 10 s", unit: "% of a core", better: "less", target: "below 2 %",
		ours: idle(), rounds: 3},
}

// timed is how long a command takes, in seconds.
func timed(args string) probe {
	return probe{text: "doorbell " + args, run: func(e *env) (float64, error) {
		start := time.Now()
		_, err := exec.Command(e.doorbell, strings.Fields(args)...).Output()
		return time.Since(start).Seconds(), err
	}}
}

// resident is the most memory that a command and its children had together, in MiB, looked at every 20 ms.
func resident(args string) probe {
	return probe{text: "doorbell " + args, run: func(e *env) (float64, error) {
		cmd := exec.Command(e.doorbell, strings.Fields(args)...)
		if err := cmd.Start(); err != nil {
			return 0, err
		}
		done := make(chan error, 1)
		go func() { done <- cmd.Wait() }()
		most := 0.0
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case err := <-done:
				return most, err
			case <-tick.C:
				most = max(most, residentOf(e.doorbell))
			}
		}
	}}
}

// residentOf adds up the memory of all processes that run a program.
func residentOf(program string) (mib float64) {
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	for _, d := range dirs {
		if exe, err := os.Readlink(filepath.Join(d, "exe")); err != nil || exe != program {
			continue
		}
		var pages, rss float64
		text, _ := os.ReadFile(filepath.Join(d, "statm"))
		if n, _ := fmt.Sscan(string(text), &pages, &rss); n == 2 {
			mib += rss * float64(os.Getpagesize()) / (1 << 20)
		}
	}
	return mib
}

// idle is what four ranks that wait for nothing take of a core, in percent.
func idle() probe { return ranksOf("idle", "percent", 4) }

// barrier is what a barrier of that kind takes on average, in ns: of processes, or of 8 ranks of one.
func barrier(kind string, processes int) probe { return ranksOf("barrier", "ns", processes, kind) }

// ranksOf runs one of tools/measure's own, in a job of so many processes or, for 0, by itself, and adds up what its ranks say
// behind a word.
func ranksOf(name, word string, processes int, args ...string) probe {
	text := strings.Join(append([]string{"measure-" + name}, args...), " ")
	if processes > 0 {
		text = fmt.Sprintf("doorbell run -n %d -- %s", processes, text)
	}
	return probe{text: text, run: func(e *env) (float64, error) {
		exe := filepath.Join(e.dir, name)
		if _, err := os.Stat(exe); err != nil {
			if err := sh("go", "build", "-o", exe, "./tools/measure/"+name); err != nil {
				return 0, err
			}
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		cmd := exec.CommandContext(ctx, exe, args...)
		if processes > 0 {
			cmd = exec.CommandContext(ctx, e.doorbell, append([]string{"run", "-n", fmt.Sprint(processes), "--", exe}, args...)...)
		}
		out, err := cmd.Output()
		if err != nil {
			return 0, err
		}
		total := 0.0
		for line := range strings.Lines(string(out)) {
			var v float64
			if _, text, ok := strings.Cut(line, word+" "); ok && json.Unmarshal([]byte(strings.TrimSpace(text)), &v) == nil {
				total += v
			}
		}
		return total, nil
	}}
}
