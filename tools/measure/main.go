// SPDX-License-Identifier: Apache-2.0

// Command measure runs our benchmarks and their peers in turn, round by round, and appends what came out to a file of
// JSON lines. bench/README.md is made of those files by tools/benchpage.
//
//	go run ./tools/measure -out bench/results/spine.jsonl
//
// Each round runs ours and then the peer, so that both see the machine as it is just then; a row has the minimum and the
// median of each over the rounds, and of the ratios round by round.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"
)

func main() {
	out := flag.String("out", "", "`FILE` to append to; empty: standard output")
	rounds := flag.Int("rounds", 15, "rounds of each case")
	only := flag.String("case", "", "run only cases whose name contains `TEXT`")
	gpu := flag.String("gpu", "", "measure on a GPU instead, with the programs in `DIR`, as bench/gpu/run.sh does")
	share := flag.Bool("share", false, "with -gpu, also run the cases of more ranks than there are GPUs, all ranks on one: a dry run")
	peers := flag.Bool("peers", false, "with -gpu, measure two GPUs, beside NCCL, NVSHMEM and DeepEP, as bench/gpu/run.sh --peers does")
	moe := flag.Bool("moe", false, "with -gpu, measure dispatch and combine")
	wqes := flag.Bool("wqes", false, "with -gpu, count what WQEs cost the device")
	bound := flag.Duration("for", time.Hour, "with -gpu, how long it may take: rows are made of what has run by then")
	flag.Parse()
	pick := onGPUs(*share)
	switch {
	case *peers:
		pick = func(int) []gpuCase { return peerCases() }
	case *wqes:
		pick = func(int) []gpuCase { return wqeCases() }
	case *moe:
		pick = func(int) []gpuCase { return append(moeCases(), twinCases()...) }
	}
	if err := run(*out, *rounds, *only, *gpu, *bound, pick); err != nil {
		fmt.Fprintln(os.Stderr, "measure:", err)
		os.Exit(1)
	}
}

// Stat is what some rounds gave.
type Stat struct {
	Min    float64 `json:"min"`
	Median float64 `json:"median"`
	Max    float64 `json:"max"`
}

func statOf(v []float64) Stat {
	s := slices.Sorted(slices.Values(v))
	return Stat{s[0], s[len(s)/2], s[len(s)-1]}
}

// Row is one line of a results file.
type Row struct {
	Case    string  `json:"case"`
	What    string  `json:"what"`
	Unit    string  `json:"unit"`
	Better  string  `json:"better"` // "less" or "more"
	Ours    Stat    `json:"ours"`
	Peer    string  `json:"peer,omitempty"`
	Theirs  *Stat   `json:"theirs,omitempty"`
	Ratio   *Stat   `json:"ratio,omitempty"` // ours / theirs, round by round
	Target  string  `json:"target,omitempty"`
	Rounds  int     `json:"rounds"`
	GPUs    int     `json:"gpus,omitempty"` // that the ranks of ours ran on together
	Command string  `json:"command"`
	PeerCmd string  `json:"peer_command,omitempty"`
	Date    string  `json:"date"`
	Machine string  `json:"machine"`
	Load    float64 `json:"load1"` // before the rounds
	Note    string  `json:"note,omitempty"`
}

// env is where the programs are.
type env struct {
	dir, doorbell string
	cpus          [2]string
}

// run measures cases, or with gpu those that pick chooses for its GPUs, with the programs in that folder.
func run(out string, rounds int, only, gpu string, bound time.Duration, pick func(gpus int) []gpuCase) (err error) {
	to := os.Stdout
	if out != "" {
		if to, err = os.OpenFile(out, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644); err != nil {
			return err
		}
		defer to.Close()
	}
	if gpu != "" {
		ctx, cancel := context.WithTimeout(context.Background(), bound)
		defer cancel()
		return runGPU(ctx, gpu, to, rounds, only, pick)
	}
	dir, err := os.MkdirTemp("", "doorbell-measure")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	e := &env{dir: dir, doorbell: filepath.Join(dir, "doorbell"), cpus: [2]string{"0", "1"}}
	if err := sh("go", "build", "-o", e.doorbell, "./cmd/doorbell"); err != nil {
		return err
	}
	for _, c := range []string{"pingpong", "memcpy", "socket", "meet"} {
		if err := sh("cc", "-std=c11", "-O2", "-o", filepath.Join(dir, c), filepath.Join("bench", "peers", c+".c")); err != nil {
			return fmt.Errorf("build the C peer: %w", err)
		}
	}
	enc := json.NewEncoder(to)
	for _, c := range append(cases, socketCases...) {
		if !strings.Contains(c.name, only) {
			continue
		}
		fmt.Fprintln(os.Stderr, c.name)
		row, err := c.measure(e, rounds)
		if errors.Is(err, exec.ErrNotFound) {
			fmt.Fprintln(os.Stderr, "left out:", err)
			continue
		}
		if err != nil {
			return fmt.Errorf("%s: %w", c.name, err)
		}
		if err := enc.Encode(row); err != nil {
			return err
		}
	}
	return nil
}

func sh(name string, args ...string) error {
	c := exec.Command(name, args...)
	c.Stderr = os.Stderr
	return c.Run()
}

// probe measures one thing once.
type probe struct {
	text string // command, for the row
	run  func(e *env) (float64, error)
}

type benchCase struct {
	name, what, unit, better, target, note string
	ours                                   probe
	peer                                   string
	theirs                                 probe
	rounds                                 int // fewer than asked for, where one takes long
}

func (c *benchCase) measure(e *env, rounds int) (Row, error) {
	if c.rounds > 0 {
		rounds = min(rounds, c.rounds)
	}
	row := Row{
		Case: c.name, What: c.what, Unit: c.unit, Better: c.better, Target: c.target, Rounds: rounds, Command: c.ours.text, Note: c.note,
		Date: time.Now().UTC().Format(time.DateOnly), Load: systemLoad(), Machine: machine(),
	}
	var ours, theirs, ratios []float64
	for range rounds {
		o, err := c.ours.run(e)
		if err != nil {
			return row, err
		}
		ours = append(ours, o)
		if c.theirs.run == nil {
			continue
		}
		t, err := c.theirs.run(e)
		if err != nil {
			return row, err
		}
		theirs = append(theirs, t)
		ratios = append(ratios, o/t)
	}
	row.Ours = statOf(ours)
	if len(theirs) > 0 {
		t, r := statOf(theirs), statOf(ratios)
		row.Peer, row.PeerCmd, row.Theirs, row.Ratio = c.peer, c.theirs.text, &t, &r
	}
	return row, nil
}

// result is what a probe reads of a benchmark's JSON.
type result struct {
	Verified bool
	Error    string
	Rows     []resultRow
}

type resultRow struct {
	Label        string
	Bytes        int64
	GPUs         int
	Mops, GBps   float64
	P50          float64 `json:"p50_us"`
	P99          float64 `json:"p99_us"`
	Min          float64 `json:"min_us"`
	Max          float64 `json:"max_us"`
	CheckedBytes int64   `json:"checked_bytes"`
	MoE          struct {
		Tokens       int
		OwnBytes     float64    `json:"own_bytes"` // these of all ranks
		LSABytes     float64    `json:"lsa_bytes"`
		NetworkBytes float64    `json:"network_bytes"`
		MessageBytes float64    `json:"message_bytes"`
		PerRank      []struct{} `json:"per_rank"`
		CopyRatio    float64    `json:"copy_ratio"`
	}
}

// of is the row of that label, of zeros if there is none.
func (r *result) of(label string) (row resultRow) {
	if i := slices.IndexFunc(r.Rows, func(row resultRow) bool { return row.Label == label }); i >= 0 {
		row = r.Rows[i]
	}
	return row
}

// bench is a probe of "doorbell bench ARGS": what pick takes out of a verified result.
func bench(args string, pick func(result) float64) probe {
	return probe{text: "doorbell bench " + args, run: func(e *env) (float64, error) {
		ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
		defer cancel()
		out, err := exec.CommandContext(ctx, e.doorbell, append(append([]string{"bench"}, strings.Fields(args)...), "--json")...).Output()
		var r result
		derr := json.Unmarshal(out, &r)
		if err != nil || derr != nil || !r.Verified {
			return 0, errors.Join(fmt.Errorf("bench %s: not verified: %s", args, r.Error), err, derr)
		}
		return pick(r), nil
	}}
}

func machine() string {
	cpu := "unknown processor"
	text, _ := os.ReadFile("/proc/cpuinfo")
	for line := range strings.Lines(string(text)) {
		if k, v, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(k) == "model name" {
			cpu = strings.TrimSpace(v)
			break
		}
	}
	release, _ := os.ReadFile("/proc/sys/kernel/osrelease")
	return fmt.Sprintf("%s, %d cores, Linux %s, %s", cpu, runtime.NumCPU(), strings.TrimSpace(string(release)), runtime.Version())
}

// systemLoad is the machine's load average: what else was running.
func systemLoad() (l float64) {
	text, _ := os.ReadFile("/proc/loadavg")
	_, _ = fmt.Sscan(string(text), &l)
	return l
}

// c is a probe of one of the C programs in bench/peers: median or best of the line with that name and size.
func c(program, args, line, bytes string, median bool) probe {
	return probe{text: fmt.Sprintf("bench/peers/%s.c CPU CPU %s: %s %s", program, args, line, bytes), run: func(e *env) (float64, error) {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		out, err := exec.CommandContext(ctx, filepath.Join(e.dir, program), append(e.cpus[:], strings.Fields(args)...)...).Output()
		if err != nil {
			return 0, fmt.Errorf("run %s: %w", program, err)
		}
		sc := bufio.NewScanner(strings.NewReader(string(out)))
		for sc.Scan() {
			f := strings.Split(sc.Text(), "\t")
			if len(f) < 5 || f[0] != line || f[1] != bytes {
				continue
			}
			at := 2
			if median {
				at = 3
			}
			var v float64
			if _, err := fmt.Sscan(f[at], &v); err != nil {
				return 0, fmt.Errorf("read %q of %s: %w", f[at], program, err)
			}
			return v, nil
		}
		return 0, fmt.Errorf("%s printed no line %q for %s bytes", program, line, bytes)
	}}
}
