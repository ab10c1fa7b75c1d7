// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package cuda_test

import (
	"context"
	"io"
	"log/slog"
	"testing"
	"time"

	"github.com/doorbell-net/doorbell/gpu"
	"github.com/doorbell-net/doorbell/internal/device"
	"github.com/doorbell-net/doorbell/internal/device/cuda"
	"github.com/doorbell-net/doorbell/internal/device/cuda/cudatest"
	"github.com/doorbell-net/doorbell/internal/device/devicetest"
)

// double is a test double of the driver, of which it is told which kernels it runs.
type double struct{ *cudatest.Driver }

func newDouble(t testing.TB) *double {
	t.Helper()
	return &double{cudatest.New(t, cudatest.Of(devicetest.CountKernel), cudatest.Of(devicetest.MeetKernel), cudatest.Of(devicetest.RoundsKernel),
		cudatest.Of(devicetest.StepKernel), cudatest.Of(devicetest.PairKernel), cudatest.Of(devicetest.GateKernel), cudatest.Of(devicetest.FailKernel),
		cudatest.Of(devicetest.FillKernel), cudatest.Of(nothingKernel), cudatest.Of(gpu.NewKernel("Fat", nothing, "")), cudatest.Of(gpu.NewKernel("Deep", nothing, "")))}
}

func (d *double) open(o cuda.Options) *cuda.Device { d.Helper(); return d.openOr(d.try(o)) }
func (d *double) try(o cuda.Options) (*cuda.Device, error) {
	o.Library = d.Path
	if o.Log == nil {
		o.Log = slog.New(slog.NewTextHandler(io.Discard, nil))
	}
	return cuda.Open(o)
}

func (d *double) openOr(dev *cuda.Device, err error) *cuda.Device {
	d.Helper()
	if err != nil {
		d.Fatal(err)
	}
	return dev
}

func nothing(gpu.Thread, struct{}) {}

// nothingKernel is made as a variable of a package is, so that Open loads it.
var nothingKernel = gpu.NewKernel("Nothing", nothing, ".version 6.3\n.target sm_70\n.address_size 64\n.visible .entry Nothing()\n{\n\tret;\n}\n")

// within waits for a stream.
func within(t testing.TB, s device.Stream) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), devicetest.Bound)
	defer cancel()
	err := s.Wait(ctx)
	if ctx.Err() != nil {
		t.Fatalf("the stream did not end: %v", err)
	}
	return err
}

var one = device.Grid{Blocks: 1, Warps: 1}

// gated is a kernel that holds its stream until open is called.
type gated struct {
	testing.TB
	stream     device.Stream
	word, late device.Memory
}

func gate(t testing.TB, dev *cuda.Device) *gated {
	t.Helper()
	g := &gated{TB: t, stream: dev.NewStream(), word: must[device.Memory](t)(dev.AllocHost(4)), late: must[device.Memory](t)(dev.Alloc(4))}
	a := devicetest.GateArgs{Open: word32(g.word), Late: word32(g.late), Patience: uint64(20 * time.Second)}
	if err := g.stream.Launch(devicetest.GateKernel.Bind(a), one); err != nil {
		t.Fatal(err)
	}
	return g
}

// release lets the kernel end.
func (g *gated) release() { gpu.Store(word32(g.word), 1, gpu.Release, gpu.ScopeSys) }

// open lets it end, waits for that, and gives all back.
func (g *gated) open() {
	g.Helper()
	g.release()
	if err := within(g, g.stream); err != nil {
		g.Error(err)
	}
	g.close()
}

func (g *gated) close() {
	g.Helper()
	shut(g, g.stream.Close)
	shut(g, g.word.Free)
	shut(g, g.late.Free)
}

func word32(m device.Memory) gpu.Ptr[uint32] { return gpu.Cast[uint32](m.Ptr()) }

func shut(t testing.TB, f func() error) {
	t.Helper()
	if err := f(); err != nil {
		t.Error(err)
	}
}

func must[T any](t testing.TB) func(v T, err error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}
