// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package moe_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/doorbell-net/doorbell"
	"github.com/doorbell-net/doorbell/internal/device/cuda/cudatest"
	"github.com/doorbell-net/doorbell/moe"
	"github.com/doorbell-net/doorbell/moe/ref"
)

// lowLatency is what the double runs of the low-latency form, and what the tests take for the experts.
var lowLatency = []cudatest.Kernel{
	cudatest.Of(moe.LLCountKernel), cudatest.Of(moe.LLSendKernel), cudatest.Of(moe.LLReceiveKernel),
	cudatest.Of(moe.LLReturnKernel), cudatest.Of(moe.LLCombineKernel), cudatest.Of(experts),
}

// TestReplaysOverDriver: on the cuda device a graph records six launches on each rank, and a replay is one call of the
// driver that brings the same arguments each time; what comes of it is right all the same.
func TestReplaysOverDriver(t *testing.T) {
	cudatest.InPlace(t, func(d *cudatest.Driver) { replayOverDriver(t, d) }, lowLatency...)
}

// TestRecoverOverDriver: on the cuda device too, ranks go on without one that is lost, in new windows.
func TestRecoverOverDriver(t *testing.T) {
	cudatest.InPlace(t, func(*cudatest.Driver) { recoverOverDriver(t) }, lowLatency...)
}

func recoverOverDriver(t *testing.T) {
	o := moe.Options{MaxTokens: 5, Hidden: 64, TopK: 3, Experts: 9}
	w := worldOf(t, 3, doorbell.Options{Device: "cuda", Log: quiet()}, o, one)
	defer w.close()
	p := problem(spread(t, 1, 3, o), o.Hidden, 5, 1)
	if err := w.check(p, ref.ExpertFn); err != nil {
		t.Fatal(err)
	}
	if err := w.comms[2].Close(); err != nil {
		t.Error(err)
	}
	s, err := solveWithout(p, moe.BF16, ref.ExpertFn, []int{2})
	if err != nil {
		t.Fatal(err)
	}
	if err := each(2, func(r int) error {
		st := w.comms[r].Stream()
		defer st.Close()
		one, err := w.step(s, r, st)
		if err != nil {
			return err
		}
		if err := lostOnly(one.fused(), []int{2}); err != nil {
			return err
		}
		if err := w.recover(r, []int{0, 1}); err != nil {
			return err
		}
		w.bufs[r].Measure(true)
		if err := one.fused(); err != nil {
			return err
		}
		got, err := w.bufs[r].Stats()
		if err == nil && got.LSA.Messages+got.GIN.Messages == 0 {
			err = fmt.Errorf("rank %d counted %+v", r, got)
		}
		return err
	}); err != nil {
		t.Error(err)
	}
}

func replayOverDriver(t *testing.T, d *cudatest.Driver) {
	const ranks, times = 2, 20
	args := map[string][]string{} // that each kernel came with
	d.Launched = func(kernel string, a []byte) { args[kernel] = append(args[kernel], string(a)) }
	w := worldOf(t, ranks, doorbell.Options{Device: "cuda"}, moe.Options{MaxTokens: 3, Hidden: 16, TopK: 2, Experts: 5, Copies: 2}, one)
	defer w.close()
	var recs [ranks]*recording
	var err error
	launches := d.Count("cuLaunchKernel")
	for r := range recs {
		if recs[r], err = w.record(r, whole, w.opt.MaxTokens); err != nil {
			t.Fatal(err)
		}
	}
	if n := d.Count("cuLaunchKernel") - launches; n != 6*ranks {
		t.Errorf("%d launches were recorded, want 6 on each of %d ranks", n, ranks)
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
