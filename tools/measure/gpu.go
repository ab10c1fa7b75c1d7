// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// gpuCase is one comparison on a GPU. Cases that name the same command share its run of a round.
type gpuCase struct {
	name, what, unit, better, target string
	ours                             string // command
	pick                             func(*gpuRun) float64
	peer, theirs                     string
	pickTheirs                       func(*gpuRun) float64
}

// inTurns says whether the case's command measures ours and the twin in turn, row by row.
func (c *gpuCase) inTurns() bool { return c.peer != "" && c.theirs == "" }

// gpuRun is what one command gave in one round.
type gpuRun struct {
	bench  result
	floors map[string]floor
	pairs  map[string]turns
	load   load
}

type floor struct {
	Floor string
	P50   float64 `json:"p50_us"`
	Min   float64 `json:"min_us"`
	GBps  float64
	Error string
}

type load struct {
	Open    float64 `json:"open_s"`
	Modules float64 `json:"modules_s"`
}

const (
	floorsCommand = "floors"
	loadCommand   = "gpu.test -test.run ^TestLoad$ -test.v"
	lsaFlags      = " --device cuda --local --timeout 5s"
	gpuFlags      = lsaFlags + " --net shm --windows host"
	ginCommand    = "bench pingpong -n 2 --sizes 8" + gpuFlags
	hbmCommand    = "bench pingpong -n 2 --sizes 8" + lsaFlags
	tcpCommand    = hbmCommand + " --net tcp --windows host"
	stagedCommand = hbmCommand + " --net staged+tcp"
	lsaCommand    = "bench pingpong -n 2 --sizes 8 --lsa on" + lsaFlags
	postCommand   = "bench post -n 2 --sizes 8,64K" + gpuFlags
	rateCommand   = "bench rate -n 2 --iters 200000" + gpuFlags
	allCommand    = "bench alltoall -n 4 --sizes 4K --lsa on" + lsaFlags
	twin          = " --ptx twins.ptx"
	inTurn        = twin + " --pairs 16"
)

// enough is how many rounds of so many are made of a command: fewer of those that take long, or measure many turns themselves.
func enough(cmd string, rounds int) int {
	switch {
	case cmd == loadCommand:
		return min(rounds, 3)
	case cmd == copiesCommand, cmd == llTwinsCommand, cmd == htTwinsCommand, cmd == wqesCommand, cmd == deepepCommand, strings.HasPrefix(cmd, "bench ll "), strings.HasPrefix(cmd, "bench ht "):
		return min(rounds, 1)
	}
	return rounds
}

func gpuP50(r *gpuRun) float64  { return r.bench.Rows[0].P50 }
func gpuMin(r *gpuRun) float64  { return r.bench.Rows[0].Min }
func gpuMops(r *gpuRun) float64 { return r.bench.Rows[0].Mops }
func gpuGBps(r *gpuRun) float64 { return r.bench.Rows[0].GBps }

// nsPerPut is what one put took, of the row of that label and size.
func nsPerPut(label string, bytes int64) func(*gpuRun) float64 {
	return func(r *gpuRun) float64 {
		for _, row := range r.bench.Rows {
			if row.Label == label && row.Bytes == bytes {
				return 1e3 / row.Mops
			}
		}
		return 0
	}
}

func floorP50(name string, times float64) func(*gpuRun) float64 {
	return func(r *gpuRun) float64 { return times * r.floors[name].P50 }
}

func floorMin(name string) func(*gpuRun) float64 {
	return func(r *gpuRun) float64 { return r.floors[name].Min }
}

// gpuCases is what bench/gpu/run.sh measures.
func gpuCases() []gpuCase {
	const flag, word, nvcc, turn = "cpu-gpu-cpu flag", "two kernels, 8 B and flag, release by add", "the same kernel in CUDA C++", ", in turn in one process"
	all := []gpuCase{
		{"put + signal, 8 B, median", "round trip between two ranks of one GPU, by the proxy, windows in host memory", "us", "less", "at most 1.2x",
			ginCommand, gpuP50, "twice a flag's round trip CPU - GPU - CPU", floorsCommand, floorP50(flag, 2)},
		{name: "put + signal, 8 B, twin", what: "the same", unit: "us", better: "less", target: "at most 1.03x", ours: ginCommand + inTurn, peer: nvcc + turn},
		{name: "put + signal, 8 B, device windows", what: "round trip by the proxy and the driver's stores, windows in device memory", unit: "us", better: "less",
			target: "at most 12 us", ours: hbmCommand, pick: gpuP50},
		{name: "over tcp, 8 B, host windows", what: "round trip over loopback TCP, windows in host memory", unit: "us", better: "less", ours: tcpCommand, pick: gpuP50},
		{name: "over tcp, 8 B, device windows", what: "the same, staged, windows in device memory", unit: "us", better: "less",
			target: "at most that over TCP with host windows and that by the proxy with device windows, together", ours: stagedCommand, pick: gpuP50},
		{"store + signal, 8 B, median", "round trip between two ranks of one GPU, by stores, windows in device memory", "us", "less", "at most 1.1x",
			lsaCommand, gpuP50, "two bare kernels, 8 B and a flag raised by a releasing add", floorsCommand, floorP50(word, 1)},
		{"store + signal, 8 B, minimum", "the same, minimum", "us", "less", "at most 1.1x",
			lsaCommand, gpuMin, "two bare kernels, minimum", floorsCommand, floorMin(word)},
		{name: "store + signal, 8 B, twin", what: "the same, median", unit: "us", better: "less", target: "at most 1.03x", ours: lsaCommand + inTurn, peer: nvcc + turn},
		{"all to all, 4 KiB, 4 ranks, twin", "a round by stores, 4 ranks of one GPU", "us", "less", "at most 1.03x", allCommand, gpuP50, nvcc, allCommand + twin, gpuP50},
		{"puts of 8 B per second, twin", "each word compared at the receiver", "M/s", "more", "at least 0.97x", rateCommand, gpuMops, nvcc, rateCommand + twin, gpuMops},
		{"kernels loaded, cold", "all kernels of the benchmarks and of moe, by the driver, its cache off", "s", "less", "at most 1 s",
			loadCommand, func(r *gpuRun) float64 { return r.load.Modules }, "", "", nil},
		{"device opened beside that", "driver, context, pinned memory", "s", "less", "", loadCommand, func(r *gpuRun) float64 { return r.load.Open - r.load.Modules }, "", "", nil},
	}
	for _, p := range []struct {
		label string
		bytes int64
	}{{"one thread", 8}, {"one thread, signal", 8}, {"one thread, signal", 65536}, {"shared by all, signal", 8}} {
		all = append(all, gpuCase{fmt.Sprintf("post, %d B, %s, twin", p.bytes, p.label), "device time of a put, posted back to back", "ns", "less", "at most 1.03x",
			postCommand, nsPerPut(p.label, p.bytes), nvcc, postCommand + twin, nsPerPut(p.label, p.bytes)})
	}
	all = append(all, selfCases()...)
	all = append(all, copyCases()...)
	for _, f := range []string{flag, "stream write to kernel to cpu", "two kernels, flag, relaxed", "two kernels, flag, release", "two kernels, 8 B and flag, release", word, word + ", over places"} {
		all = append(all, gpuCase{name: "floor: " + f, what: "round trip, nothing of ours", unit: "us", better: "less", ours: floorsCommand, pick: floorP50(f, 1)})
	}
	return all
}

// runGPU measures what pick chooses for so many GPUs, with the programs that bench/gpu/bundle.sh put into dir. What has not ended when
// ctx does is left out, and told.
func runGPU(ctx context.Context, dir string, out io.Writer, rounds int, only string, pick func(gpus int) []gpuCase) error {
	gpus, err := visibleGPUs()
	if err != nil {
		return err
	}
	var cases []gpuCase
	var commands []string
	for _, c := range pick(len(gpus)) {
		if !strings.Contains(c.name, only) {
			continue
		}
		cases = append(cases, c)
		for _, cmd := range []string{c.ours, c.theirs} {
			if cmd != "" && !slices.Contains(commands, cmd) {
				commands = append(commands, cmd)
			}
		}
	}
	gpu, driver, _ := strings.Cut(strings.TrimSpace(gpus[0]), ", ")
	if len(gpus) > 1 {
		gpu = fmt.Sprintf("%d x %s", len(gpus), gpu)
	}
	where := gpu + ", driver " + driver + "; " + machine()
	loadBefore := systemLoad()
	runs := map[string][]*gpuRun{}
	var failed []error
	for round := range rounds {
		for _, cmd := range commands {
			if round >= enough(cmd, rounds) {
				continue
			}
			r, err := runCommand(ctx, dir, cmd)
			if notHere(cmd, err) {
				fmt.Fprintf(os.Stderr, "left out: %s: %v\n", cmd, err)
			} else if err != nil {
				failed = append(failed, fmt.Errorf("round %d: %s: %w", round, cmd, err))
				fmt.Fprintln(os.Stderr, failed[len(failed)-1])
			}
			runs[cmd] = append(runs[cmd], r)
		}
	}
	enc := json.NewEncoder(out)
	for _, c := range cases {
		row, ok := c.row(runs)
		if !ok {
			fmt.Fprintf(os.Stderr, "left out, without a figure: %s\n", c.name)
			continue
		}
		row.Machine, row.Load = where, loadBefore
		row.Date = time.Now().UTC().Format(time.DateOnly)
		if err := enc.Encode(row); err != nil {
			return err
		}
		ratio := ""
		if row.Ratio != nil {
			ratio = fmt.Sprintf("  %.3fx of %.3f", row.Ratio.Median, row.Theirs.Median)
		}
		fmt.Fprintf(os.Stderr, "%-45s %10.3f %-4s (min %.3f)%s  %s\n", row.Case, row.Ours.Median, row.Unit, row.Ours.Min, ratio, row.Target)
	}
	return errors.Join(failed...)
}

// row is the case's line, of the rounds in which both sides ran.
func (c *gpuCase) row(runs map[string][]*gpuRun) (Row, bool) {
	row := Row{Case: c.name, What: c.what, Unit: c.unit, Better: c.better, Target: c.target, Command: "doorbell " + c.ours}
	if !ofCommand(c.ours) {
		row.Command = c.ours
	}
	var ours, theirs, ratios []float64
	for i, r := range runs[c.ours] {
		if r == nil {
			continue
		}
		if c.inTurns() {
			p := c.turnsOf(r)
			ours, theirs = append(ours, p.Ours...), append(theirs, p.Theirs...)
			for i := range p.Ours {
				ratios = append(ratios, p.Ours[i]/p.Theirs[i])
			}
			continue
		}
		if c.theirs != "" {
			if i >= len(runs[c.theirs]) || runs[c.theirs][i] == nil {
				continue
			}
			t := c.pickTheirs(runs[c.theirs][i])
			theirs, ratios = append(theirs, t), append(ratios, c.pick(r)/t)
		}
		ours = append(ours, c.pick(r))
	}
	if len(ours) == 0 || slices.Contains(ours, 0) || slices.Contains(theirs, 0) {
		return row, false // a command has no such figure
	}
	row.Rounds, row.Ours = len(ours), statOf(ours)
	for _, r := range runs[c.ours] {
		if r != nil && len(r.bench.Rows) > 0 {
			row.GPUs = r.bench.Rows[0].GPUs
		}
	}
	if len(theirs) > 0 {
		t, r := statOf(theirs), statOf(ratios)
		row.Peer, row.Theirs, row.Ratio, row.PeerCmd = c.peer, &t, &r, c.theirs
		if ofCommand(c.theirs) {
			row.PeerCmd = "doorbell " + c.theirs
		}
	}
	return row, true
}

// notHere says whether a peer's program is not there, or said that it cannot run on this machine, or nothing can be counted here.
func notHere(cmd string, err error) bool {
	var ended *exec.ExitError
	return errors.Is(err, errNoCounters) || strings.HasPrefix(cmd, "peers/") && (errors.Is(err, fs.ErrNotExist) || errors.As(err, &ended) && ended.ExitCode() == 3)
}

// ofCommand says whether a command is one of doorbell's.
func ofCommand(cmd string) bool {
	return strings.HasPrefix(cmd, "bench ") || strings.HasPrefix(cmd, "run ")
}

// readFloors reads lines of JSON, those that have the mark and from there on.
func (r *gpuRun) readFloors(out []byte, mark string) error {
	for line := range bytes.Lines(out) {
		_, text, marked := bytes.Cut(line, []byte(mark))
		if !marked {
			continue
		}
		var f floor
		if err := json.Unmarshal(text, &f); err != nil || f.Error != "" {
			return fmt.Errorf("line %q: %w %s", line, err, f.Error)
		}
		r.floors[f.Floor] = f
	}
	if len(r.floors) == 0 {
		return fmt.Errorf("it printed no figure: %s", out)
	}
	return nil
}

// runCommand runs a command of a case once.
func runCommand(ctx context.Context, dir, cmd string) (*gpuRun, error) {
	limit := 40 * time.Second
	switch cmd {
	case llTwinsCommand, htTwinsCommand, wqesCommand:
		limit = 60 * time.Second
	case deepepCommand:
		limit = 150 * time.Second
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	if cmd == wqesCommand {
		pairs, err := countWQEs(ctx, dir)
		if err != nil {
			return nil, err
		}
		return &gpuRun{pairs: pairs}, nil
	}
	args := strings.Fields(cmd)
	program := filepath.Join(dir, args[0])
	if args[0] == "bench" {
		program, args = filepath.Join(dir, "doorbell"), append([]string{"", "bench"}, append(args[1:], "--json")...)
	}
	if args[0] == "run" {
		program, args = filepath.Join(dir, "doorbell"), append([]string{""}, args...)
	}
	c := exec.CommandContext(ctx, program, args[1:]...)
	c.Dir = dir
	c.Env = append(os.Environ(), "DOORBELL_CUDA_TEST=1")
	if cmd == loadCommand {
		c.Env = append(c.Env, "CUDA_CACHE_DISABLE=1")
	}
	var bad bytes.Buffer
	c.Stderr = &bad
	out, err := c.Output()
	if err != nil {
		return nil, fmt.Errorf("%w: %s", err, strings.TrimSpace(bad.String()))
	}
	r := &gpuRun{floors: map[string]floor{}}
	switch cmd {
	case floorsCommand, rawCommand, ncclCommand, nvshmemCommand, deepepCommand, ncclSelf, nvshmemSelf:
		return r, r.readFloors(out, "")
	case lsaPeers, selfCommand:
		return r, r.readFloors(out, "figure: ")
	case loadCommand:
		_, rest, ok := bytes.Cut(out, []byte("load: "))
		if !ok {
			return nil, fmt.Errorf("it printed no load: line: %s", out)
		}
		return r, json.NewDecoder(bytes.NewReader(rest)).Decode(&r.load)
	case copiesCommand, llTwinsCommand, htTwinsCommand:
		r.pairs, err = readPairs(out)
		return r, err
	}
	if err := json.Unmarshal(out, &r.bench); err != nil {
		return nil, err
	}
	if !r.bench.Verified || len(r.bench.Rows) == 0 {
		return nil, fmt.Errorf("not verified: %s", r.bench.Error)
	}
	return r, nil
}
