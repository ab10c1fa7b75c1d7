// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// wqesCommand has NVIDIA's profiler count what the kernels of a test execute, whose launches the test tells of.
const wqesCommand = "ncu gpu.test -test.run ^TestWQETwins$/^cuda$ -test.v"

// counted are the profiler's counters and what each is.
var counted = []struct{ counter, what string }{
	{"smsp__inst_executed.sum", "instructions"},
	{"smsp__inst_executed_op_global_st.sum", "stores"},
	{"l1tex__t_bytes_pipe_lsu_mem_global_op_st.sum", "bytes stored"},
}

const doorbells = "doorbells" // the test counts them

// nicPostCommand has kernels post by one thread and by several, with a doorbell for each put and for 16.
const nicPostCommand = "bench post -n 2 --sizes 8" + lsaFlags + " --backend gdaki"

// mopsOf is the rate of the row of that label.
func mopsOf(label string) func(*gpuRun) float64 {
	return func(r *gpuRun) float64 { return r.bench.of(label).Mops }
}

// errNoCounters is of a machine that has no profiler, or does not let this user count.
var errNoCounters = errors.New("instructions cannot be counted here")

// wqeCases are what a put over a NIC that kernels drive costs the device, beside its twin.
func wqeCases() (all []gpuCase) {
	for _, shape := range []string{
		"one thread, write", "one thread, write, signal", "one thread, value", "one thread, value, signal", "a block's, write, signal",
		"shared by all, write", "shared by all, value, signal", "32 lanes, write", "32 lanes, write, signal",
	} {
		add := func(what string) {
			all = append(all, gpuCase{name: "WQEs, " + shape + ", " + what, what: "of a warp for each put, posted to an emulated NIC (softnic)", unit: "a put", better: "less",
				target: "at most 1.1x", ours: wqesCommand, peer: "the same WQEs by CUDA C++"})
		}
		for _, c := range counted {
			add(c.what)
		}
		add(doorbells)
	}
	for _, way := range [][2]string{{"one thread", ""}, {"one thread", ", signal"}, {"shared by all", ""}, {"shared by all", ", signal"}} {
		batched := way[0] + ", 16 a doorbell" + way[1]
		all = append(all, gpuCase{name: "emulated NIC: puts posted, " + batched, what: "8 B, by a kernel, to the queue of softnic, a program: figures of no NIC", unit: "M/s", better: "more",
			ours: nicPostCommand, pick: mopsOf(batched), peer: "the same, a doorbell each", theirs: nicPostCommand, pickTheirs: mopsOf(way[0] + way[1])})
	}
	return all
}

// countWQEs runs the command.
func countWQEs(ctx context.Context, dir string) (map[string]turns, error) {
	ncu, err := exec.LookPath("ncu")
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errNoCounters, err)
	}
	log := filepath.Join(dir, "wqes.csv")
	var counters []string
	for _, c := range counted {
		counters = append(counters, c.counter)
	}
	args := append([]string{"--csv", "--log-file", log, "--print-units", "base", "--clock-control", "none", "--cache-control", "none",
		"-k", "regex:^WQEs", "--metrics", strings.Join(counters, ",")}, strings.Fields(wqesCommand)[1:]...)
	args[slices.Index(args, "gpu.test")] = filepath.Join(dir, "gpu.test")
	c := exec.CommandContext(ctx, ncu, args...)
	c.Dir, c.Env = dir, append(os.Environ(), "DOORBELL_CUDA_TEST=1")
	out, err := c.CombinedOutput()
	said, lerr := os.ReadFile(log)
	if bytes.Contains(append(out, said...), []byte("ERR_NVGPUCTRPERM")) {
		return nil, fmt.Errorf("%w: the driver lets only an administrator count (ERR_NVGPUCTRPERM)", errNoCounters)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %s%s", err, out, said)
	}
	if lerr != nil {
		return nil, lerr
	}
	return readCounts(out, said)
}

// counting is a launch of which the test told.
type counting struct {
	Case        string
	Ours        bool
	Puts, Bells float64
}

// readCounts reads what a put costs, by case: of a shape's first launch and its last, which posts more, each counter's difference by
// that of the puts. told has the test's lines, in the order of the launches; said is the profiler's table, a line for each counter
// of each launch.
func readCounts(told, said []byte) (map[string]turns, error) {
	var launches []counting
	for line := range bytes.Lines(told) {
		if text, ok := bytes.CutPrefix(line, []byte("launch: ")); ok {
			var l counting
			if err := json.Unmarshal(text, &l); err != nil {
				return nil, fmt.Errorf("line %q: %w", line, err)
			}
			launches = append(launches, l)
		}
	}
	values, err := readTable(said)
	if err != nil {
		return nil, err
	}
	type side struct {
		shape string
		ours  bool
	}
	first := map[side]int{}
	all := map[string]turns{}
	for i, l := range launches {
		if i >= len(values) {
			return nil, fmt.Errorf("the profiler counted %d launches, the test made %d", len(values), len(launches))
		}
		s := side{l.Case, l.Ours}
		f, again := first[s]
		if !again {
			first[s] = i
			continue
		}
		puts := l.Puts - launches[f].Puts
		if !(puts > 0) {
			return nil, fmt.Errorf("launch %d of %s posts %v puts, the first one %v: more are accepted", i, l.Case, l.Puts, launches[f].Puts)
		}
		keep := func(what string, n float64) {
			name := "WQEs, " + l.Case + ", " + what
			p := all[name]
			if l.Ours {
				p.Ours = []float64{n / puts}
			} else {
				p.Theirs = []float64{n / puts}
			}
			all[name] = p
		}
		for _, c := range counted {
			keep(c.what, values[i][c.counter]-values[f][c.counter])
		}
		keep(doorbells, l.Bells-launches[f].Bells)
	}
	for name, p := range all {
		if len(p.Ours) != len(p.Theirs) {
			return nil, fmt.Errorf("%s: of one side alone", name)
		}
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("it told of no two launches: %s", told)
	}
	return all, nil
}

// readTable reads the profiler's lines of comma-separated values: the counters of each launch, in order.
func readTable(text []byte) (all []map[string]float64, err error) {
	at := bytes.Index(text, []byte(`"ID"`))
	if at < 0 {
		return nil, fmt.Errorf("the profiler printed no table: %q", text)
	}
	rows, err := csv.NewReader(bytes.NewReader(text[at:])).ReadAll()
	if err != nil {
		return nil, fmt.Errorf("the profiler's table: %w", err)
	}
	id, name, value := slices.Index(rows[0], "ID"), slices.Index(rows[0], "Metric Name"), slices.Index(rows[0], "Metric Value")
	if name < 0 || value < 0 {
		return nil, fmt.Errorf("the profiler's table has columns %q: ID, Metric Name and Metric Value are accepted", rows[0])
	}
	last := ""
	for _, row := range rows[1:] {
		v, err := strconv.ParseFloat(strings.ReplaceAll(row[value], ",", ""), 64)
		if err != nil {
			return nil, fmt.Errorf("the profiler's table: line %q: %w", row, err)
		}
		if row[id] != last || len(all) == 0 {
			last, all = row[id], append(all, map[string]float64{})
		}
		all[len(all)-1][row[name]] = v
	}
	return all, nil
}
