// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package cuda_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/doorbell-net/doorbell/internal/device"
	"github.com/doorbell-net/doorbell/internal/device/cuda"
	"github.com/doorbell-net/doorbell/internal/device/devicetest"
)

// TestStreamsUsedAgain: streams that come and go, also those that graphs are recorded on, are those of the driver that were laid
// when the card was opened, and have done a kernel and copies; all are given back at the end.
func TestStreamsUsedAgain(t *testing.T) {
	d := newDouble(t)
	dev := d.open(cuda.Options{})
	made := d.Count("cuStreamCreateWithPriority")
	if k, c := d.Count("cuLaunchKernel"), d.Count("cuMemcpyAsync"); made < 4 || k != made || c != 3*made {
		t.Errorf("%d streams, which have done %d kernels and %d copies", made, k, c)
	}
	for round := range 20 {
		all := make([]device.Stream, 3)
		for i := range all {
			all[i] = dev.NewStream()
			for range round % 3 {
				if err := all[i].Launch(nothingKernel.Bind(struct{}{}), one); err != nil {
					t.Fatal(err)
				}
			}
		}
		for _, s := range all {
			if err := within(t, s); err != nil {
				t.Fatal(err)
			}
			shut(t, s.Close)
		}
		g := must[device.Graph](t)(dev.Capture(func(s device.Stream) error { return s.Launch(nothingKernel.Bind(struct{}{}), one) }))
		shut(t, g.Close)
	}
	if n := d.Count("cuStreamCreateWithPriority"); n != made {
		t.Errorf("the driver made %d streams, %d of them later", n, n-made)
	}
	shut(t, dev.Close)
	if n := d.Count("streams"); n != 0 {
		t.Errorf("%d streams of the driver are left", n)
	}
}

// TestOpenStuckGPU: a GPU that does nothing of what is queued is not opened, which is said by the timeout, and nothing is called that
// would wait for it.
func TestOpenStuckGPU(t *testing.T) {
	d := newDouble(t)
	d.Set("held", 1)
	if dev, err := d.try(cuda.Options{Timeout: 20 * time.Millisecond}); err == nil {
		shut(t, dev.Close)
		t.Error("it was opened")
	} else {
		says(t, err, "GPU 0", "within 20ms", "does another program hold it", "does nothing of what is queued")
	}
	if n := d.Count("cuMemFree_v2") + d.Count("cuMemFreeHost") + d.Count("cuModuleUnload") + d.Count("cuDevicePrimaryCtxRelease_v2"); n != 0 {
		t.Errorf("%d calls that wait for the GPU", n)
	}
	d.Set("held", 0)
	shut(t, d.open(cuda.Options{}).Close) // the context is the process's: once it goes on, it may be opened, and goes with its last user
	d.Ask("cuDevicePrimaryCtxRelease_v2", 0)
}

// TestUnfinishedStream: a stream that failed with items on its way is nobody else's afterwards: they may still store how far
// they are.
func TestUnfinishedStream(t *testing.T) {
	d := newDouble(t)
	d.Set("devices", 2)
	dev, other := d.open(cuda.Options{}), d.open(cuda.Options{LocalRank: 1})
	g, foreign := gate(t, dev), other.NewStream()
	d.Until("running", 1)
	g.stream.WaitEvent(foreign.Record())
	shut(t, g.stream.Close) // it has failed, so nothing is waited for
	s := dev.NewStream()
	if err := s.Launch(nothingKernel.Bind(struct{}{}), one); err != nil || within(t, s) != nil {
		t.Fatalf("a stream beside one that failed: %v", err)
	}
	g.release()
	d.Until("running", 0)
	for _, f := range []func() error{s.Close, foreign.Close, g.word.Free, g.late.Free, dev.Close, other.Close} {
		shut(t, f)
	}
}

// TestStreamsShareQueues: from the first stream on that the hardware has no queue for, the log says what may come of it.
func TestStreamsShareQueues(t *testing.T) {
	t.Setenv("CUDA_DEVICE_MAX_CONNECTIONS", "8")
	d := newDouble(t)
	var log bytes.Buffer
	dev := d.open(cuda.Options{Log: slog.New(slog.NewTextHandler(&log, nil))})
	var all []device.Stream
	for i := range 9 { // 4 were laid for kernels, and 2 for copies
		all = append(all, dev.NewStream())
		if said := strings.Contains(log.String(), "more streams than hardware queues"); said != (i >= 6) {
			t.Errorf("%d streams, said %v: %s", i+1, said, log.String())
		}
	}
	if n := strings.Count(log.String(), "more streams"); n != 1 {
		t.Errorf("said %d times", n)
	}
	for _, s := range all {
		shut(t, s.Close)
	}
	shut(t, dev.Close)
}

// TestLocalMemory: what the largest kernel takes of local memory is held before any kernel runs, also of one that is loaded
// later, so that no launch has the GPU wait for kernels that run (the double counts those).
func TestLocalMemory(t *testing.T) {
	d := newDouble(t)
	dev := d.open(cuda.Options{})
	deep := kernelOf("Deep", header(".visible .entry Deep()\n{ ret; }\n"))
	if _, err := dev.CooperativeBlocks(deep.Code(), 1); err != nil { // loads it
		t.Fatal(err)
	}
	if _, err := dev.CooperativeBlocks(kernelOf("Nothing", header(".visible .entry Nothing()\n{ ret; }\n")).Code(), 1); err != nil {
		t.Fatal(err)
	}
	if held, times := d.Count("stack"), d.Count("cuCtxSetLimit"); held != 5000 || times != 1 {
		t.Errorf("%d bytes a thread are held, set %d times; want 5000, once", held, times)
	}
	g := gate(t, dev)
	s := dev.NewStream()
	if err := s.Launch(deep.Bind(struct{}{}), one); err != nil || within(t, s) != nil {
		t.Errorf("launch: %v", err)
	}
	g.open()
	shut(t, s.Close)
	shut(t, dev.Close)

	d = newDouble(t)
	dev = d.open(cuda.Options{})
	d.FailCall("cuCtxSetLimit", 1, 2)
	s = dev.NewStream()
	if err := s.Launch(deep.Bind(struct{}{}), one); err != nil || within(t, s) != nil {
		t.Errorf("launch where it is not held: %v", err)
	}
	shut(t, s.Close)
	shut(t, dev.Close)
}

// TestLateWaitTells: a wait that comes to its deadline says of each rank's stream whether the GPU has come to its kernel.
func TestLateWaitTells(t *testing.T) {
	d := newDouble(t)
	var devs [2]*cuda.Device
	for r := range devs {
		devs[r] = d.open(cuda.Options{Ranks: 2, Rank: 5 + r, Starts: true})
	}
	g := gate(t, devs[0])
	d.Until("running", 1)
	s := devs[1].NewStream()
	s.WaitEvent(g.stream.Record()) // as one that shares a hardware queue with it does
	for range 2 {
		if err := s.Launch(nothingKernel.Bind(struct{}{}), one); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	err := s.Wait(ctx)
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("wait: %v", err)
	}
	says(t, err, "0 of 3 items done", "of GPU 0: rank 5: 1 items left, the GPU has come to kernel Gate; rank 6: 3 items left")
	g.open()
	shut(t, s.Close)
	for _, dev := range devs {
		shut(t, dev.Close)
	}
}

// TestLateWaitOfGraph: a replay is come to like a launch.
func TestLateWaitOfGraph(t *testing.T) {
	d := newDouble(t)
	dev := d.open(cuda.Options{Starts: true})
	word, late := must[device.Memory](t)(dev.AllocHost(4)), must[device.Memory](t)(dev.Alloc(4))
	a := devicetest.GateArgs{Open: word32(word), Late: word32(late), Patience: uint64(devicetest.Bound)}
	graph := must[device.Graph](t)(dev.Capture(func(s device.Stream) error { return s.Launch(devicetest.GateKernel.Bind(a), one) }))
	g := &gated{t, dev.NewStream(), word, late}
	if err := g.stream.Replay(graph); err != nil {
		t.Fatal(err)
	}
	d.Until("running", 1)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	says(t, g.stream.Wait(ctx), "the GPU has come to kernel Gate")
	g.open()
	shut(t, graph.Close)
	shut(t, dev.Close)
}

// TestLateWaitBehind: of a stream that the GPU does nothing of, as one behind another's kernel in a hardware queue, a late wait
// says just that where launches say what the GPU has come to, else how to have them say it.
func TestLateWaitBehind(t *testing.T) {
	for starts, want := range map[bool]string{true: "the GPU has not come to kernel Nothing", false: "kernel Nothing first; DOORBELL_CUDA_STARTS=1 says"} {
		d := newDouble(t)
		dev := d.open(cuda.Options{Starts: starts})
		d.Set("held", 1)
		s := dev.NewStream()
		if err := s.Launch(nothingKernel.Bind(struct{}{}), one); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		says(t, s.Wait(ctx), "0 of 1 items done", want)
		cancel()
		d.Set("held", 0)
		if err := within(t, s); err != nil {
			t.Error(err)
		}
		shut(t, s.Close)
		shut(t, dev.Close)
	}
}
