// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package moe_test

import (
	"flag"
	"fmt"
	"slices"
	"testing"

	"github.com/doorbell-net/doorbell"
	"github.com/doorbell-net/doorbell/internal/device/cuda/cudatest"
	"github.com/doorbell-net/doorbell/internal/env"
	"github.com/doorbell-net/doorbell/internal/moetest"
	"github.com/doorbell-net/doorbell/moe"
)

// lowLatency is what the double runs of the low-latency form, and what the tests take for the experts.
var lowLatency = []cudatest.Kernel{
	cudatest.Of(moe.LLDispatchKernel), cudatest.Of(moe.LLCombineKernel), cudatest.Of(moetest.ExpertsKernel),
}

// highThroughput is that of the other form.
var highThroughput = []cudatest.Kernel{
	cudatest.Of(moe.HTLayoutKernel), cudatest.Of(moe.HTTellKernel), cudatest.Of(moe.HTDispatchKernel), cudatest.Of(moe.HTCombineKernel),
	cudatest.Of(moe.HTReadyKernel), cudatest.Of(moe.HTValuesKernel), cudatest.Of(moetest.HTExpertsKernel),
}

// TestReplaysOverDriver: on the cuda device a graph records three launches on each rank, and a replay is one call of the
// driver that brings the same arguments each time; what comes of it is right all the same.
func TestReplaysOverDriver(t *testing.T) {
	cudatest.InPlace(t, func(d *cudatest.Driver) { replayOverDriver(t, d) }, lowLatency...)
}

// TestOverDriver: what these tests hold they also hold on the cuda device, on which run.sh of bench/gpu has a GPU run them: graphs of
// the high-throughput form, ranks that are lost in the middle, replays that wait for one that replays no more.
func TestOverDriver(t *testing.T) {
	cudatest.Unwatched(t)
	cudatest.InPlace(t, func(d *cudatest.Driver) {
		t.Setenv(env.Device.Name(), "cuda")
		d.Set("sms", 4) // the CPU has all warps to run
		if err := flag.Set("rapid.checks", "1"); err != nil {
			t.Fatal(err)
		}
		t.Run("HT graph", func(t *testing.T) { htGraph(t, 9, 2) })
		t.Run("HT recover", TestHTRecover)
		t.Run("recover", TestRecover)
		t.Run("replay alone", TestReplayAlone)
	}, slices.Concat(lowLatency, highThroughput)...)
}

func replayOverDriver(t *testing.T, d *cudatest.Driver) {
	const ranks, times = 2, 8
	args := map[string][]string{} // that each kernel came with
	d.Launched = func(kernel string, a []byte) { args[kernel] = append(args[kernel], string(a)) }
	w := worldOf(t, ranks, doorbell.Options{Device: "cuda"}, moe.Options{MaxTokens: 3, Hidden: 16, TopK: 2, Experts: 5, Copies: 2}, one)
	defer w.close()
	var recs [ranks]*recording
	launches := d.Count("cuLaunchKernel")
	if err := each(ranks, func(r int) (err error) {
		recs[r], err = w.record(r, whole, w.opt.MaxTokens)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	if n := d.Count("cuLaunchKernel") - launches; n != 3*ranks {
		t.Errorf("%d launches were recorded, want 3 on each of %d ranks", n, ranks)
	}
	launches = d.Count("cuLaunchKernel")
	var all [times][]*solved
	for i := range all {
		all[i] = []*solved{draw(t, w, uint64(i+1))}
	}
	if err := each(ranks, func(r int) error {
		st := w.comms[r].Stream()
		defer st.Close()
		for i := range all {
			if err := recs[r].replay(st, all[i]); err != nil {
				return fmt.Errorf("replay %d: %w", i, err)
			}
		}
		return recs[r].Close()
	}); err != nil {
		t.Fatal(err)
	}
	if n, l := d.Count("cuGraphLaunch"), d.Count("cuLaunchKernel")-launches; n != ranks*times || l != 0 {
		t.Errorf("%d launches of graphs and %d of kernels, want %d and 0", n, l, ranks*times)
	}
	if len(args) != len(lowLatency) {
		t.Errorf("%d kernels ran, want %d", len(args), len(lowLatency))
	}
	for name, all := range args {
		if different := len(slices.Compact(slices.Sorted(slices.Values(all)))); len(all) != ranks*times || different != ranks {
			t.Errorf("%s ran %d times with %d different arguments, want %d times with those of %d ranks", name, len(all), different, ranks*times, ranks)
		}
	}
}
