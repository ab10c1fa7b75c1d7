// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
	"pgregory.net/rapid"

	"github.com/doorbell-net/doorbell/internal/env"
)

func TestParseSizes(t *testing.T) {
	for in, want := range map[string][]int64{
		"8":           {8},
		"0":           {0},
		"4..64":       {4, 8, 16, 32, 64},
		"8..8":        {8},
		"8,64,1K":     {8, 64, 1024},
		"64, 8":       {64, 8},
		"1KiB..4k,3":  {1024, 2048, 4096, 3},
		"2M..4M,0,1G": {2 << 20, 4 << 20, 0, 1 << 30},
	} {
		if got, err := parseSizes(in); err != nil || !slices.Equal(got, want) {
			t.Errorf("%q: %v %v, want %v", in, got, err, want)
		}
	}
	for _, in := range []string{"", ",", "8,", "4..", "..4", "4...8", "x", "-4", "3..6", "4..6", "8..4", "0..8", "8,8", "4..16,8", "2T", "1e3", "9223372036854775807"} {
		if got, err := parseSizes(in); err == nil {
			t.Errorf("%q was taken for %v", in, got)
		}
	}
	if got, err := parseSizes("4..4M"); err != nil || len(got) != 21 || got[20] != 4<<20 {
		t.Errorf("4..4M: %v %v", got, err)
	}
}

// TestSizesAgainstLoop: a range is what a plain loop over exponents gives.
func TestSizesAgainstLoop(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a := rapid.IntRange(0, 40).Draw(t, "a")
		b := rapid.IntRange(a, 40).Draw(t, "b")
		var want []int64
		for e := a; e <= b; e++ {
			want = append(want, 1<<e)
		}
		got, err := parseSizes(fmt.Sprintf("%d..%d", int64(1)<<a, int64(1)<<b))
		if err != nil || !slices.Equal(got, want) {
			t.Fatalf("%v %v, want %v", got, err, want)
		}
	})
}

func FuzzParseSizes(f *testing.F) {
	for _, s := range []string{"4..4M", "8,64,1K", "", "0", "1..1T,3"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		sizes, err := parseSizes(s)
		if err == nil && (len(sizes) == 0 || len(sizes) > maxSizes || slices.Min(sizes) < 0 || slices.Max(sizes) > maxSize) {
			t.Fatalf("%q: %v", s, sizes)
		}
	})
}

func parse(t *testing.T, bench, args string, vars map[string]string) (benchConfig, error) {
	t.Helper()
	i := slices.IndexFunc(benchKinds, func(k benchKind) bool { return k.name == bench })
	b := &benchFlags{kind: benchKinds[i]}
	f := pflag.NewFlagSet(bench, pflag.ContinueOnError)
	b.register(f)
	if err := f.Parse(strings.Fields(args)); err != nil {
		t.Fatal(err)
	}
	return b.config(env.From(vars))
}

func TestConfigDefaults(t *testing.T) {
	c, err := parse(t, "pingpong", "", nil)
	if err != nil || c.Ranks != 2 || c.LSA || len(c.Sizes) != 21 || c.Timeout != 30*time.Second || c.Warmup != -1 || c.Seed == 0 ||
		c.Net != "auto" || c.backend != "auto" || c.Device != "auto" || c.Progress != "auto" {
		t.Errorf("%+v %v", c, err)
	}
	if c, err = parse(t, "ll", "", nil); err != nil || c.Ranks != 4 || !c.LSA || len(c.Tokens) != 1 || c.Tokens[0] != 64 || c.Hidden != 7168 || c.TopK != 8 ||
		c.Experts != 32 || c.DType != "bf16" || len(c.Sizes) != 0 {
		t.Errorf("%+v %v", c, err)
	}
	if c, err = parse(t, "ht", "", nil); err != nil || !slices.Equal(c.Tokens, []int{4096}) || c.Form != "slots" || c.Ring != 0 || c.Channels != 0 || c.Wire != "" {
		t.Errorf("%+v %v", c, err)
	}
	if c, err = parse(t, "ht", "--form rings --tokens 1K,4K --gating groups:4:2", nil); err != nil || !slices.Equal(c.Tokens, []int{1024, 4096}) || c.Ring != 128 {
		t.Errorf("%+v %v", c, err)
	}
	if c, err = parse(t, "rate", "", nil); err != nil || !slices.Equal(c.Sizes, []int64{8}) {
		t.Errorf("%+v %v", c, err)
	}
}

func TestConfigFlagsBeatEnvironment(t *testing.T) {
	vars := map[string]string{"DOORBELL_NET": "tcp", "DOORBELL_TIMEOUT": "7s", "DOORBELL_SEED": "11", "DOORBELL_PROGRESS": "thread"}
	c, err := parse(t, "bw", "", vars)
	if err != nil || c.Net != "tcp" || c.Timeout != 7*time.Second || c.Seed != 11 || c.Progress != "thread" {
		t.Errorf("%+v %v", c, err)
	}
	c, err = parse(t, "bw", "--net fault+shm --timeout 2s --seed 0 --progress assisted --lsa on", vars)
	if err != nil || c.Net != "fault+shm" || c.Timeout != 2*time.Second || c.Seed != 0 || c.Progress != "assisted" || !c.LSA {
		t.Errorf("%+v %v", c, err)
	}
	for args, want := range map[string]string{"": "proxy", "--backend gdaki": "gdaki"} {
		if c, err := parse(t, "bw", args, map[string]string{"NCCL_GIN_TYPE": "2"}); err != nil || c.backend != want || c.Backend != strings.TrimPrefix(args, "--backend ") {
			t.Errorf("%q: %+v %v", args, c, err)
		}
	}
	for name, value := range map[string]string{"DOORBELL_PROGRESS": "magic", "NCCL_GIN_TYPE": "4"} {
		if _, err := parse(t, "bw", "", map[string]string{name: value}); codeOf(err) != 2 {
			t.Errorf("%s=%s: %v", name, value, err)
		}
	}
}

// TestConfigUnderLauncher: all ranks of a job come to the same settings, and to a seed that another job has not.
func TestConfigUnderLauncher(t *testing.T) {
	seeds := map[uint64]bool{}
	for _, job := range []string{"a", "b"} {
		for rank := range 3 {
			c, err := parse(t, "alltoall", "", map[string]string{"DOORBELL_RANK": fmt.Sprint(rank), "DOORBELL_WORLD_SIZE": "6", "DOORBELL_JOB": job, "DOORBELL_RANKS_PER_NODE": "3"})
			if err != nil || c.Ranks != 6 || c.RanksPerNode != 3 {
				t.Fatalf("%+v %v", c, err)
			}
			seeds[c.Seed] = true
		}
	}
	if len(seeds) != 2 {
		t.Errorf("two jobs have %d seeds", len(seeds))
	}
	if _, err := parse(t, "bw", "--local", map[string]string{"DOORBELL_RANK": "0", "DOORBELL_WORLD_SIZE": "2"}); codeOf(err) != 2 {
		t.Errorf("%v", err)
	}
}

func TestConfigJSON(t *testing.T) {
	c, err := parse(t, "ll", "--json --seed 5 --plot x.svg --routing r.txt", nil)
	if err != nil {
		t.Fatal(err)
	}
	b, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	want := `{"ranks":4,"ranks_per_node":0,"net":"auto","backend":"auto","device":"auto","local":false,"progress":"auto","bind":true,"iters":0,"warmup":-1,` +
		`"seed":5,"timeout":"30s","lsa":"on","hidden":7168,"topk":8,"experts":32,"dtype":"bf16","wire":"expert","gating":"uniform","routing":"r.txt"}`
	if string(b) != want {
		t.Errorf("got  %s\nwant %s", b, want)
	}
}

// TestHostsFromEnvironment: one line serves all hosts, where each has its number in its environment.
func TestHostsFromEnvironment(t *testing.T) {
	vars := map[string]string{"DOORBELL_NODES": "2", "DOORBELL_NODE_RANK": "1", "DOORBELL_TOKEN": "x"}
	c, err := parse(t, "bw", "-n 4 --rendezvous node0:4711 --seed 1", vars)
	if err != nil || c.Nodes != 2 || c.NodeRank != 1 {
		t.Errorf("%+v %v", c, err)
	}
	if c, err = parse(t, "bw", "-n 4 --rendezvous node0:4711 --seed 1 --node-rank 0 --nodes 4", vars); err != nil || c.Nodes != 4 || c.NodeRank != 0 {
		t.Errorf("flags: %+v %v", c, err)
	}
	if _, err = parse(t, "bw", "--nodes 1", vars); codeOf(err) != 2 {
		t.Errorf("node rank 1 of 1: %v", err)
	}
	if _, err = parse(t, "bw", "", map[string]string{"DOORBELL_NODES": "many"}); codeOf(err) != 2 {
		t.Errorf("%v", err)
	}
	// A rank has them too if someone sets them by hand; it is a rank all the same.
	vars["DOORBELL_RANK"], vars["DOORBELL_WORLD_SIZE"], vars["DOORBELL_LOCAL_SIZE"], vars["DOORBELL_LOCAL_RANK"] = "3", "6", "2", "1"
	if c, err = parse(t, "bw", "--nodes 3 --rendezvous a:1", vars); err != nil || c.Ranks != 6 || c.Nodes != 3 || c.me == nil || c.me.Rank != 3 {
		t.Errorf("a rank: %+v %v", c, err)
	}
}

// TestShellOfAnotherLauncher: in a shell that srun gave, bench starts its ranks itself.
func TestShellOfAnotherLauncher(t *testing.T) {
	c, err := parse(t, "bw", "", map[string]string{"SLURM_PROCID": "0", "SLURM_NTASKS": "1", "SLURM_STEP_ID": "0", "SLURM_JOB_ID": "7"})
	if err != nil || c.me != nil || c.Ranks != 2 {
		t.Errorf("%+v %v", c, err)
	}
}
