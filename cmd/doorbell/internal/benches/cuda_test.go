// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package benches

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/doorbell-net/doorbell"
	"github.com/doorbell-net/doorbell/bench/kernels"
	"github.com/doorbell-net/doorbell/examples/fused/layers"
	"github.com/doorbell-net/doorbell/internal/device/cuda"
	"github.com/doorbell-net/doorbell/internal/device/cuda/cudatest"
	"github.com/doorbell-net/doorbell/moe"
)

// TestVerifiedOverDriver: on the cuda device every benchmark verifies, ll and ht on one rank and on several that share a GPU, or two,
// inside a node and between two, over the proxy and over a NIC that kernels drive. The driver's double holds that the host
// touches no device memory while nothing runs, and makes no call that waits for a kernel while one does.
func TestVerifiedOverDriver(t *testing.T) {
	cudatest.Unwatched(t)
	cudatest.InPlace(t, func(d *cudatest.Driver) {
		d.Set("sms", 4) // the CPU has all warps to run
		d.Set("devices", 2)
		for _, name := range names {
			at := []shared{{2, 1, 0, moe.BF16, "proxy"}}
			if name == "ll" || name == "ht" {
				at = []shared{{1, 1, 0, moe.BF16, "proxy"}, {1, 1, 0, moe.FP8, "proxy"}, {4, 1, 0, moe.FP8, "proxy"}, {4, 1, 2, moe.BF16, "proxy"}, {3, 2, 0, moe.FP8, "proxy"}}
			}
			if name != "bw" && name != "fused" { // those have nothing of it that the others have not
				at = append(at, shared{2, 1, 1, moe.FP8, "gdaki"})
			}
			for _, s := range at {
				t.Log(name, s, time.Now())
				verifiedOverDriver(t, name, s)
			}
		}
	}, driven...)
}

// TestDirectBetweenGPUs: puts between device windows of ranks as processes have them, and of ranks of one process, all verified.
// Where the ranks have a GPU each they are copied from the one to the other; where they share one nothing is copied within it, but
// what makes streams ready.
func TestDirectBetweenGPUs(t *testing.T) {
	cudatest.Unwatched(t)
	cudatest.InPlace(t, func(d *cudatest.Driver) {
		d.Set("sms", 4)
		cfg := small(false)
		cfg.Sizes, cfg.Iters = []int64{4096}, 10
		for _, gpus := range []int{1, 2} {
			d.Set("devices", gpus)
			first, err := cuda.Open(cuda.Options{}) // loads the kernels before a rank that shares the GPU uses it
			if err != nil {
				t.Fatal(err)
			}
			comms, errs := make([]*doorbell.Comm, 2), make([]error, 2)
			var ranks sync.WaitGroup
			for r := range comms {
				ranks.Go(func() {
					comms[r], errs[r] = doorbell.Open(t.Context(), doorbell.Options{Rank: r, Size: 2, LocalSize: 2, LocalRank: r,
						Addr: fmt.Sprintf("unix:@doorbell-gpus-%d-%d", os.Getpid(), gpus), Job: "gpus", Device: "cuda", Net: "dma", Timeout: 10 * time.Second})
				})
			}
			if ranks.Wait(); errors.Join(errs...) != nil {
				t.Fatal(errors.Join(errs...))
			}
			direct(t, d, gpus, comms, cfg)
			comms, err = doorbell.Local(2, doorbell.Options{Device: "cuda", LocalGPUs: gpus, Timeout: 10 * time.Second})
			if err != nil {
				t.Fatal(err)
			}
			direct(t, d, gpus, comms, cfg)
			if err := first.Close(); err != nil {
				t.Error(err)
			}
		}
	}, driven...)
}

// direct has two ranks on so many GPUs put, and looks at what was copied.
func direct(t *testing.T, d *cudatest.Driver, gpus int, comms []*doorbell.Comm, cfg Config) {
	t.Helper()
	within, between := d.Count("copies within"), d.Count("copies between")
	r, err := runOn(comms, "bw", cfg)
	if err != nil || !r.Verified {
		t.Fatalf("%d GPUs: verified %v: %q %v", gpus, r.Verified, r.Error, err)
	}
	if row := r.Rows[0]; row.GPUs != gpus || row.Emulated != (gpus == 1) {
		t.Errorf("%d GPUs: the row says %d, emulated: %v", gpus, row.GPUs, row.Emulated)
	}
	within, between = d.Count("copies within")-within, d.Count("copies between")-between
	if direct := between >= cfg.Iters; within != 0 || direct != (gpus == 2) {
		t.Errorf("%d GPUs: %d copies within them, %d between them", gpus, within, between)
	}
}

// shared is how ranks share GPUs.
type shared struct {
	ranks, gpus, perNode int
	format               moe.Format
	backend              string
}

func verifiedOverDriver(t *testing.T, name string, s shared) {
	cfg := small(true)
	cfg.Iters, cfg.Flush, cfg.Hidden, cfg.Format = 8, 1<<14, 256, s.format
	r, err := runAll(t, name, s.ranks, doorbell.Options{Device: "cuda", LocalGPUs: s.gpus, RanksPerNode: s.perNode, Backend: s.backend}, sized(name, cfg))
	if err != nil || !r.Verified || len(r.Rows) == 0 {
		t.Errorf("%s, %+v: verified %v: %q %v", name, s, r.Verified, r.Error, err)
	}
	for _, row := range r.Rows {
		if row.CheckedBytes == 0 || row.Iters == 0 || row.GPUs != s.gpus || row.Device != "cuda" || s.backend == "gdaki" && row.NIC != "softnic" || row.MoE != nil && (row.MoE.Clock != "device" || row.P50US <= 0) {
			t.Errorf("%s, %+v: row proves nothing: %+v", name, s, row)
		}
	}
}

// driven are the kernels that the double runs.
var driven = []cudatest.Kernel{
	cudatest.Of(kernels.AllToAllKernel), cudatest.Of(kernels.BandwidthKernel), cudatest.Of(kernels.CheckKernel), cudatest.Of(kernels.FillKernel),
	cudatest.Of(kernels.PingPongKernel), cudatest.Of(kernels.PostKernel), cudatest.Of(kernels.RateKernel), cudatest.Of(kernels.SignalsKernel),
	cudatest.Of(kernels.BatchKernel), cudatest.Of(kernels.PostedKernel), cudatest.Of(kernels.StampTimeKernel),
	cudatest.Of(layers.GatherKernel), cudatest.Of(layers.GatherReduceKernel), cudatest.Of(layers.MultiplyKernel), cudatest.Of(layers.MultiplyReduceKernel),
	cudatest.Of(layers.NormKernel), cudatest.Of(layers.NormGatherKernel), cudatest.Of(layers.ReduceKernel),
	cudatest.Of(moe.LLDispatchKernel),
	cudatest.Of(moe.LLCombineKernel), cudatest.Of(moe.LLSignalsKernel),
	cudatest.Of(moe.HTLayoutKernel), cudatest.Of(moe.HTTellKernel), cudatest.Of(moe.HTDispatchKernel), cudatest.Of(moe.HTCombineKernel),
	cudatest.Of(moe.HTReadyKernel), cudatest.Of(moe.HTValuesKernel),
}
