// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package gpu_test

import (
	"context"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/doorbell-net/doorbell/bench/kernels"
	"github.com/doorbell-net/doorbell/internal/device/cuda"
	_ "github.com/doorbell-net/doorbell/moe" // its kernels are loaded too, as in the command
)

// taken is a log handler that keeps how long the kernels took to load.
type taken struct {
	slog.Handler
	modules *time.Duration
}

func (h taken) Enabled(context.Context, slog.Level) bool { return true }

func (h taken) Handle(_ context.Context, r slog.Record) error {
	if r.Message == "kernels loaded" {
		r.Attrs(func(a slog.Attr) bool {
			if a.Key == "took" {
				*h.modules = a.Value.Duration()
			}
			return true
		})
	}
	return nil
}

// TestLoad prints how long it takes to open the GPU, and how much of that the kernels take. CUDA_CACHE_DISABLE=1 has the
// driver compile them.
func TestLoad(t *testing.T) {
	needGPU(t)
	var modules time.Duration
	start := time.Now()
	d, err := cuda.Open(cuda.Options{Log: slog.New(taken{slog.DiscardHandler, &modules})})
	if err != nil {
		t.Fatal(err)
	}
	open := time.Since(start)
	if n, err := d.CooperativeBlocks(kernels.PingPongKernel.Code(), 1); err != nil || n < 1 {
		t.Errorf("of %s %d blocks are resident: %v", kernels.PingPongKernel.Name(), n, err)
	}
	if err := d.Close(); err != nil {
		t.Error(err)
	}
	if modules == 0 {
		t.Fatal("nothing said that the kernels were loaded")
	}
	fmt.Printf("load: {\"open_s\":%.4f,\"modules_s\":%.4f}\n", open.Seconds(), modules.Seconds())
}
