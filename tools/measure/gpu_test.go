// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// fakeProgram writes a script that takes the place of a measured program.
func fakeProgram(t *testing.T, dir, name, script string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+script), 0o755); err != nil {
		t.Fatal(err)
	}
}

// TestGPURows: figures of a round come from the commands that the cases name, each run once, ratios are of one round, and a
// command that fails costs its rows alone.
func TestGPURows(t *testing.T) {
	dir := t.TempDir()
	fakeProgram(t, dir, "nvidia-smi", "echo 'Fake GPU, 1.2.3'")
	fakeProgram(t, dir, "floors", `echo '{"floor":"cpu-gpu-cpu flag","p50_us":2,"min_us":1}'`)
	fakeProgram(t, dir, "doorbell", `case "$*" in
*pairs*) echo '{"verified":true,"rows":[{"p50_us":5},{"p50_us":4},{"p50_us":3},{"p50_us":6}]}';;
*host*) echo '{"verified":true,"rows":[{"bytes":8,"p50_us":5,"min_us":4}]}';;
*) echo 'no such kernel' >&2; exit 1;;
esac`)
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	var out strings.Builder
	err := runGPU(t.Context(), dir, &out, 2, "put + signal", onGPUs(false))
	if err == nil || !strings.Contains(err.Error(), "no such kernel") {
		t.Errorf("a command's failure is not told: %v", err)
	}
	got := out.String()
	if strings.Count(got, "\n") != 2 || !strings.Contains(got, `"ratio":{"min":1.25,"median":1.25,"max":1.25}`) || !strings.Contains(got, "Fake GPU, driver 1.2.3") ||
		!strings.Contains(got, `"rounds":2`) || !strings.Contains(got, `"ratio":{"min":0.5,`) || !strings.Contains(got, `"max":1.25},`) ||
		!strings.Contains(got, `"rounds":4`) { // of what is measured in turn, a pair is a round
		t.Errorf("rows:\n%s", got)
	}
	over, cancel := context.WithCancel(t.Context())
	cancel()
	if err := runGPU(over, dir, io.Discard, 2, "put + signal", onGPUs(false)); !errors.Is(err, context.Canceled) {
		t.Errorf("with no time: %v", err)
	}
	fakeProgram(t, dir, "gpu.test", `echo 'pair: {"case":"bulk copy, 16 blocks, twin","ours":[8,6,9],"theirs":[4,4,4]}'`)
	out.Reset()
	if err := runGPU(t.Context(), dir, &out, 2, "bulk copy, 16 ", onGPUs(false)); err != nil || !strings.Contains(out.String(), `"ratio":{"min":1.5,"median":2,"max":2.25}`) || !strings.Contains(out.String(), `"rounds":3,`) {
		t.Errorf("%v, rows of pairs:\n%s", err, out.String())
	}
	for _, bad := range []string{"nothing", `pair: {"case":"x","ours":[1],"theirs":[]}`, "pair: 3"} {
		fakeProgram(t, dir, "gpu.test", "echo '"+bad+"'")
		if err := runGPU(t.Context(), dir, &out, 1, "bulk copy, 16 ", onGPUs(false)); err == nil {
			t.Errorf("%q was read", bad)
		}
	}
	fakeProgram(t, dir, "doorbell", `echo '{"verified":false,"error":"a byte is wrong","rows":[{"bytes":8,"p50_us":5}]}'`)
	out.Reset()
	if err := runGPU(t.Context(), dir, &out, 1, "put + signal", onGPUs(false)); err == nil || out.Len() > 0 || !strings.Contains(err.Error(), "a byte is wrong") {
		t.Errorf("wrong bytes made rows: %v\n%s", err, out.String())
	}
}

// TestOverGPUs: ranks of as many as there are GPUs have one each; more are dealt to several, or share one where they may, and rows
// say how many GPUs the ranks were on.
func TestOverGPUs(t *testing.T) {
	for _, c := range []struct {
		gpus             int
		share            bool
		processes, local int // cases
	}{{1, false, 0, 0}, {1, true, 0, 27}, {2, false, 9, 18}, {4, true, 18, 9}, {8, false, 27, 0}, {16, true, 27, 0}} {
		processes, local := 0, 0
		for _, x := range overGPUs(c.gpus, c.share) {
			if strings.Contains(x.ours, "--local") {
				local++
				if dealt := fmt.Sprintf("--gpus %d", c.gpus); strings.Contains(x.ours, dealt) != (c.gpus > 1) {
					t.Errorf("%d GPUs: %s", c.gpus, x.ours)
				}
			} else {
				processes++
			}
		}
		if processes != c.processes || local != c.local {
			t.Errorf("%d GPUs, share %v: %d cases of processes and %d of one, want %d and %d", c.gpus, c.share, processes, local, c.processes, c.local)
		}
	}
	dir := t.TempDir()
	fakeProgram(t, dir, "nvidia-smi", "printf 'Fake GPU, 1.2.3\\nFake GPU, 1.2.3\\n'")
	fakeProgram(t, dir, "doorbell", `echo '{"verified":true,"rows":[{"bytes":8,"gpus":2,"p50_us":5}]}'`)
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	var out strings.Builder
	if err := runGPU(t.Context(), dir, &out, 1, "2 ranks, pingpong", onGPUs(false)); err != nil || strings.Count(out.String(), `"gpus":2`) != 2 {
		t.Errorf("%v: %s", err, out.String())
	}
}

// TestMoERows: a row is of its operation and its number of tokens, and figures made of its bytes are.
func TestMoERows(t *testing.T) {
	dir := t.TempDir()
	fakeProgram(t, dir, "nvidia-smi", "echo 'Fake GPU, 1.2.3'")
	fakeProgram(t, dir, "doorbell", `echo '{"verified":true,"rows":[{"label":"dispatch","p50_us":3,"moe":{"tokens":1}},{"label":"combine","p50_us":4,"moe":{"tokens":1}},
{"label":"dispatch","p50_us":5,"moe":{"tokens":128}},{"label":"combine","p50_us":6,"moe":{"tokens":128}},
{"label":"combine","p50_us":100,"moe":{"tokens":4096,"own_bytes":1e7,"lsa_bytes":2e7,"network_bytes":1e7}},
{"label":"dispatch","p50_us":50,"moe":{"tokens":1024,"own_bytes":7,"message_bytes":14432,"network_bytes":1443200}}]}' | tr -d '\n'`)
	fakeProgram(t, dir, "floors", `echo '{"floor":"device copy, 512 MiB","GBps":500}
{"floor":"device copy, 14 KiB","p50_us":2}'`)
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	for name, want := range map[string]string{
		"ll, 1 rank, 1 tokens, FP8, dispatch": `"min":3,`, "ll, 1 rank, 1 tokens, FP8, combine": `"min":4,`,
		"ll, 1 rank, 128 tokens, BF16, dispatch": `"min":5,`, "ll, 1 rank, 128 tokens, BF16, combine": `"min":6,`, "ht, 4 ranks, 4096 tokens, BF16, dispatch": "",
		"ht, 4 ranks, 4096 tokens, BF16, combine, of the device copy":      `"ratio":{"min":0.8,`,
		"ht, 4 ranks on 2 virtual nodes, 1024 tokens, dispatch, a message": `"ratio":{"min":0.25,`,
	} {
		var out strings.Builder
		err := runGPU(t.Context(), dir, &out, 1, name, func(int) []gpuCase { return moeCases() })
		if rows := strings.Count(out.String(), "\n"); err != nil || !strings.Contains(out.String(), want) || rows != min(len(want), 1) {
			t.Errorf("%s: %d rows, %v:\n%s", name, rows, err, out.String())
		}
	}
}

// TestPeerRows: rows of two GPUs come from the peers' programs and from ours under a launcher, whose lines bear a rank. A program
// that is not there, or says by its status that it cannot run, costs its rows alone and is no failure.
func TestPeerRows(t *testing.T) {
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "peers"), 0o700); err != nil {
		t.Fatal(err)
	}
	fakeProgram(t, dir, "nvidia-smi", `echo 'Fake GPU, 1.2.3
Fake GPU, 1.2.3'`)
	fakeProgram(t, dir, "peers/raw", `echo '{"floor":"two GPUs, copy engine","GBps":400}
{"floor":"two GPUs, stores, 16 blocks","GBps":350}'`)
	fakeProgram(t, dir, "doorbell", `echo '[1] PASS
[0] figure: {"floor":"LSA copy to the other GPU, 16 blocks","GBps":300}'`)
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	var out strings.Builder
	if err := runGPU(t.Context(), dir, &out, 2, "LSA copy, 16 blocks", func(int) []gpuCase { return peerCases() }); err != nil {
		t.Error(err)
	}
	for _, want := range []string{`"ratio":{"min":0.75,"median":0.75,"max":0.75}`, `"ours":{"min":300,`, `"theirs":{"min":350,`, "2 x Fake GPU, driver 1.2.3", `"command":"doorbell run -n 2`, `"target":"at least 0.84x"`} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %s in\n%s", want, out.String())
		}
	}
	for _, status := range []string{"", "exit 3", "exit 1"} {
		if status != "" {
			fakeProgram(t, dir, "peers/nccl", status)
		}
		failed := status == "exit 1"
		out.Reset()
		err := runGPU(t.Context(), dir, &out, 1, "peer: NCCL all-reduce, 8 B", func(int) []gpuCase { return peerCases() })
		if (err != nil) != failed || out.Len() > 0 {
			t.Errorf("NCCL with %q: %v (want an error: %v), rows\n%s", status, err, failed, out.String())
		}
	}
}
