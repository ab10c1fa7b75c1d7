// SPDX-License-Identifier: Apache-2.0

//go:build !lockstep

// Kernels here are written for warps of one lane.

package soft_test

import (
	"context"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/doorbell-net/doorbell/gpu"
	"github.com/doorbell-net/doorbell/internal/device"
	"github.com/doorbell-net/doorbell/internal/device/devicetest"
	"github.com/doorbell-net/doorbell/internal/device/soft"
	"github.com/doorbell-net/doorbell/internal/sys"
	"github.com/doorbell-net/doorbell/internal/testenv"
)

// run launches f on a device of its own and waits.
func run(t testing.TB, o soft.Options, g device.Grid, f func(gpu.Thread)) {
	t.Helper()
	d := soft.New(o)
	s := d.NewStream()
	ctx, cancel := context.WithTimeout(t.Context(), devicetest.Bound)
	defer cancel()
	k := gpu.NewKernel(t.Name(), func(t gpu.Thread, _ struct{}) { f(t) }, "")
	if err := s.Launch(k.Bind(struct{}{}), g); err != nil {
		t.Fatal(err)
	}
	if err := s.Wait(ctx); err != nil {
		t.Fatalf("%+v", err)
	}
	for _, err := range []error{s.Close(), d.Close()} {
		if err != nil {
			t.Error(err)
		}
	}
}

// TestHiddenDependence has block 0 wait for block 1's flag in a grid that is not cooperative. With one block resident
// it waits in vain, and by the order of the seeds block 1 sometimes comes first; a cooperative grid always passes.
func TestHiddenDependence(t *testing.T) {
	late := func(o soft.Options, cooperative bool) (late bool) {
		var flag uint32
		run(t, o, device.Grid{Blocks: 2, Warps: 1, Cooperative: cooperative}, func(th gpu.Thread) {
			if th.Block() == 1 {
				gpu.Store(gpu.PtrTo(&flag), 1, gpu.Release, gpu.ScopeGPU)
				return
			}
			bound := uint64(2 * time.Millisecond)
			if cooperative {
				bound = uint64(devicetest.Bound)
			}
			start := th.Clock()
			for round := int32(0); !late && gpu.Load(gpu.PtrTo(&flag), gpu.Acquire, gpu.ScopeGPU) == 0; round++ {
				waited := th.Clock() - start
				late = waited > bound
				th.Idle(round, waited)
			}
		})
		return late
	}
	if !late(soft.Options{Resident: 1}, false) {
		t.Error("block 0 saw the flag of block 1, which starts after it has ended")
	}
	first, second := 0, 0
	for seed := uint64(1); seed <= 16; seed++ {
		if late(soft.Options{Resident: 1, Seed: seed}, false) {
			first++
		} else {
			second++
		}
		if late(soft.Options{Resident: 1, Seed: seed}, true) {
			t.Errorf("seed %d: a block of a cooperative grid waited in vain", seed)
		}
	}
	if first == 0 || second == 0 {
		t.Errorf("of 16 seeds %d ran block 0 first and %d block 1: both orders are wanted", first, second)
	}
}

// TestWakesSleeper: a kernel's Wake ends a long sleep on the word. One that comes before the sleep lets none begin.
func TestWakesSleeper(t *testing.T) {
	word := uint32(1)
	woken := make(chan struct{})
	go func() {
		sys.FutexWait(&word, 1, time.Hour)
		close(woken)
	}()
	time.Sleep(20 * time.Millisecond) // sleep: nothing tells that a thread sleeps in a futex
	run(t, soft.Options{}, device.Grid{Blocks: 1, Warps: 1}, func(th gpu.Thread) { th.Wake(gpu.PtrTo(&word)) })
	select {
	case <-woken:
	case <-time.After(devicetest.Bound):
		t.Error("the sleeper was not woken")
	}
}

// TestMovedReturnsAtOnce: a thread that moved data looks again before it sleeps, however long it has waited.
func TestMovedReturnsAtOnce(t *testing.T) {
	d := soft.New(soft.Options{CrowdedProcess: true, CrowdedMachine: true})
	d.SetProgress(func() bool { return true })
	start := time.Now()
	for i := range int32(5000) { // a sleep each would be five seconds
		if !d.Idle(i, uint64(time.Hour)) {
			t.Fatal("data was moved, and Idle says it was not")
		}
	}
	if took := time.Since(start); took > 2*time.Second {
		t.Errorf("5000 calls that moved data took %v", took)
	}
}

// plantEnv names the block that TestPlanted is to run, in a process of its own.
const plantEnv = "TEST_PLANT"

// TestPlanted has warps write a word of their block each and read their neighbour's, with or without a barrier between;
// TestPlantedRace calls it in a process of its own.
func TestPlanted(t *testing.T) {
	plant := os.Getenv(plantEnv)
	if plant == "" {
		t.Skipf("%s names no plant: it is run by TestPlantedRace", plantEnv)
	}
	var shared gpu.Shared[[4]int64]
	run(t, soft.Options{}, device.Grid{Blocks: 2, Warps: 4}, func(th gpu.Thread) {
		c := shared.Of(th)
		c[th.Warp()] = int64(th.Warp()) + 1
		if plant == "clean" {
			th.SyncBlock()
		}
		// All are under way before one looks: a warp that ends orders what it did before the next one's start.
		for start := th.Clock(); th.Clock()-start < uint64(5*time.Millisecond); {
			runtime.Gosched()
		}
		if c[(th.Warp()+1)%4] > 4 {
			panic("a word that nobody wrote")
		}
	})
}

// TestPlantedRace shows that the race detector sees a barrier that is missing, and nothing where it is.
func TestPlantedRace(t *testing.T) {
	if !testenv.Race {
		t.Skip("this test binary is built without -race: there is no detector to see the planted race")
	}
	for _, plant := range []string{"missing", "clean"} {
		ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
		defer cancel()
		cmd := exec.CommandContext(ctx, os.Args[0], "-test.run=^TestPlanted$", "-test.v")
		cmd.Env = append(os.Environ(), plantEnv+"="+plant, "GORACE=atexit_sleep_ms=0")
		out, err := cmd.CombinedOutput()
		seen := strings.Contains(string(out), "WARNING: DATA RACE")
		if wanted := plant == "missing"; seen != wanted || (err != nil) != wanted || strings.Contains(string(out), "SKIP") {
			t.Errorf("%s: a race was seen: %v; ended with %v\n%s", plant, seen, err, out)
		}
	}
}
