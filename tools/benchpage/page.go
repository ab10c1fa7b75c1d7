// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io/fs"
	"strconv"
	"strings"
)

// stat and row are lines of tools/measure.
type stat struct{ Min, Median, Max float64 }

type row struct {
	Case, What, Unit, Better, Peer, Target, Command, Date, Machine, Note string
	PeerCmd                                                              string `json:"peer_command"`
	Ours                                                                 stat
	Theirs, Ratio                                                        *stat
	Rounds, GPUs                                                         int
	Load                                                                 float64 `json:"load1"`
}

// peer is a line of bench/peers/run --json.
type peer struct {
	Peer, Case, Unit, Stat, Version, Command, Date, Machine string
	Bytes                                                   int64
	Value                                                   *float64
	Rounds                                                  int
}

// lines reads the objects of a file of JSON lines.
func lines[T any](dir fs.FS, name string) ([]T, error) {
	text, err := fs.ReadFile(dir, name)
	if err != nil {
		return nil, err
	}
	var all []T
	sc := bufio.NewScanner(bytes.NewReader(text))
	sc.Buffer(nil, 1<<20)
	for n := 1; sc.Scan(); n++ {
		var v T
		if err := json.Unmarshal(sc.Bytes(), &v); err != nil {
			return nil, fmt.Errorf("%s, line %d: %w", name, n, err)
		}
		all = append(all, v)
	}
	return all, sc.Err()
}

// page is bench/README.md.
func page(dir fs.FS) ([]byte, error) {
	var b bytes.Buffer
	p := func(format string, a ...any) { fmt.Fprintf(&b, format+"\n", a...) }
	p(`<!-- SPDX-License-Identifier: Apache-2.0 -->
<!-- Made by tools/benchpage from bench/results. Do not edit. -->
# What it costs

No figure here crossed a network's wire: rows named tcp went over the loopback interface, all others through memory. But for those
of GPUs, kernels ran as goroutines on CPU cores: these are figures of one machine and of our software's own cost.
Each was measured beside the peer in its row, in turn, in one run.

    go run ./tools/measure -out bench/results/spine.jsonl    # ours and the C peers, round by round
    bench/peers/run --json > bench/results/peers.jsonl       # UCX, Open MPI and bare C by themselves
    bench/gpu/bundle.sh DIR; DIR/run.sh                      # on a GPU: ours, its twins in CUDA C++, bare kernels
    DIR/run.sh --peers                                       # on two GPUs: ours, bare kernels, NCCL, NVSHMEM, DeepEP
    go run ./tools/benchpage                                 # this page

How rows are to be read: [peers](peers/README.md) for the others; for ours, ranks are processes bound to a core each (unless a
progress thread polls beside the kernels), payloads and signals of every run were compared, median and minimum of small
round trips are of means of 16 (a look at the clock takes as long as a line's way), p99 and longest of single ones.
`)
	rows, err := lines[row](dir, "spine.jsonl")
	if err != nil {
		return nil, err
	}
	for _, set := range split(rows) {
		p("## Ours, %s: %s\n", set[0].Date, set[0].Machine)
		p("| case | ours: median (min - max) | peer: median (min - max) | ratio: median (min - max) | target | rounds, load |")
		p("|---|---|---|---|---|---|")
		for _, r := range set {
			theirs, ratio := "", ""
			if r.Theirs != nil && r.Ratio != nil {
				theirs = fmt.Sprintf("%s: %s", r.Peer, r.Theirs.in(r.Unit))
				ratio = r.Ratio.in("x")
			}
			note := ""
			if r.Note != "" {
				note = " (" + r.Note + ")"
			}
			p("| **%s**: %s%s | %s | %s | %s | %s | %d, %.1f |", r.Case, r.What, note, r.Ours.in(r.Unit), theirs, ratio, r.Target, r.Rounds, r.Load)
		}
		p("\nCommands:\n")
		for _, r := range set {
			text := "`" + r.Command + "`"
			if r.PeerCmd != "" {
				text += " against `" + r.PeerCmd + "`"
			}
			p("- %s: %s", r.Case, text)
		}
		p("")
	}
	if err := gpuPage(p, dir); err != nil {
		return nil, err
	}
	peers, err := lines[peer](dir, "peers.jsonl")
	if err != nil {
		return nil, err
	}
	if len(peers) > 0 {
		p("## Peers by themselves, %s: %s\n", peers[0].Date, peers[0].Machine)
		p("| peer, case | bytes | median | best | unit | samples | version |\n|---|---|---|---|---|---|---|")
		for i, m := range peers {
			if m.Stat != "median" {
				continue
			}
			best := ""
			for _, o := range append(peers[max(i-1, 0):i:i], peers[i+1:min(i+2, len(peers))]...) {
				if o.Stat == "min" && o.Peer == m.Peer && o.Case == m.Case && o.Bytes == m.Bytes {
					best = figure(o.Value)
				}
			}
			p("| %s %s | %d | %s | %s | %s | %d | %s |", m.Peer, m.Case, m.Bytes, figure(m.Value), best, m.Unit, m.Rounds, m.Version)
		}
	}
	return b.Bytes(), nil
}

// split cuts rows into runs on one day and machine, newest last.
func split(rows []row) (sets [][]row) {
	for _, r := range rows {
		if n := len(sets); n > 0 && sets[n-1][0].Date == r.Date && sets[n-1][0].Machine == r.Machine {
			sets[n-1] = append(sets[n-1], r)
		} else {
			sets = append(sets, []row{r})
		}
	}
	return sets
}

func (s stat) in(unit string) string {
	if unit == "x" {
		return fmt.Sprintf("%sx (%s - %s)", short(s.Median), short(s.Min), short(s.Max))
	}
	return fmt.Sprintf("%s %s (%s - %s)", short(s.Median), unit, short(s.Min), short(s.Max))
}

func figure(v *float64) string {
	if v == nil {
		return "did not end"
	}
	return short(*v)
}

func short(v float64) string {
	s := strconv.FormatFloat(v, 'g', 3, 64)
	if strings.Contains(s, "e") {
		s = strconv.FormatFloat(v, 'f', 0, 64)
	}
	return s
}
