// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package gpu_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/doorbell-net/doorbell"
	"github.com/doorbell-net/doorbell/bench/kernels"
	"github.com/doorbell-net/doorbell/gin"
	"github.com/doorbell-net/doorbell/gpu"
	"github.com/doorbell-net/doorbell/internal/env"
	"github.com/doorbell-net/doorbell/internal/testenv"
)

func needGPU(t testing.TB) {
	t.Helper()
	if on, err := env.GPUs.Get(nil); err != nil || !on {
		t.Skipf("%s is not 1: there may be no GPU here", env.GPUs.Name())
	}
}

const limit = 20 * time.Second

// job is one run of all bench kernels on one device: what each rank's memory holds after each step.
type job struct {
	device string
	seed   uint64
	mu     sync.Mutex
	left   map[string][]byte
}

func (j *job) keep(what string, rank int, b []byte) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.left[fmt.Sprintf("%s, rank %d", what, rank)] = b
}

// TestDifferential runs each kernel of bench/kernels on goroutines and on a GPU with the same seed: windows, signals and
// results are the same to the bit, times left out. (Those of examples are of main packages, which nobody imports, and those of
// examples/fused/layers have a reference of their own; WQEs drives a NIC, and is compared with its twin.)
func TestDifferential(t *testing.T) {
	needGPU(t)
	compare(t, "cuda")
}

// TestSameTwice holds the comparison itself: what a kernel leaves does not depend on who ran when.
func TestSameTwice(t *testing.T) { compare(t, "soft") }

// TestSameAtAnyWidth: warps of one lane and of 32 (-tags lockstep) leave the same. The digests were written by one lane.
func TestSameAtAnyWidth(t *testing.T) {
	pieces := map[string][]string{} // by kernel
	for _, ranks := range []int{2, 4} {
		for _, lsa := range []bool{false, true} {
			for what, left := range runJob(t, "soft", 1, ranks, lsa) {
				kernel, _, _ := strings.Cut(what, ",")
				pieces[kernel] = append(pieces[kernel], fmt.Sprintf("ranks=%d,lsa=%v: %s: %x\n", ranks, lsa, what, sha256.Sum256(left)))
			}
		}
	}
	got := ""
	for _, kernel := range slices.Sorted(maps.Keys(pieces)) {
		slices.Sort(pieces[kernel])
		got += fmt.Sprintf("%x  %s\n", sha256.Sum256([]byte(strings.Join(pieces[kernel], ""))), kernel)
	}
	const golden = "testdata/left.sha256"
	if *update && gpu.WarpSize == 1 {
		if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if string(want) != got {
		t.Errorf("warps of %d lanes leave\n%s\nwant (rewritten by -update, without -tags lockstep)\n%s", gpu.WarpSize, got, want)
	}
}

func compare(t *testing.T, device string) {
	random := testenv.Random(t)
	seed := random.Uint64()
	for _, ranks := range []int{2, 4} {
		for _, lsa := range []bool{false, true} {
			t.Run(fmt.Sprintf("ranks=%d,lsa=%v", ranks, lsa), func(t *testing.T) {
				want, got := runJob(t, "soft", seed, ranks, lsa), runJob(t, device, seed, ranks, lsa)
				if len(want) < 10*ranks {
					t.Errorf("only %d pieces of memory to compare", len(want))
				}
				for what, w := range want {
					g := got[what]
					if !bytes.Equal(g, w) {
						at := 0
						for at < min(len(g), len(w)) && g[at] == w[at] {
							at++
						}
						t.Errorf("%s: %d bytes on soft, %d on %s, the first that differs is number %d", what, len(w), len(g), device, at)
					}
				}
			})
		}
	}
}

func runJob(t *testing.T, device string, seed uint64, ranks int, lsa bool) map[string][]byte {
	t.Helper()
	comms, err := doorbell.Local(ranks, doorbell.Options{Device: device, Timeout: limit})
	if err != nil {
		t.Fatal(err)
	}
	j := &job{device: device, seed: seed, left: map[string][]byte{}}
	ends := make(chan error, ranks)
	for _, c := range comms {
		go func() {
			err := j.rank(c, lsa)
			if err != nil {
				c.Abort(err) // the others' waits for it end
			}
			ends <- err
		}()
	}
	for range comms {
		if err := <-ends; err != nil {
			t.Errorf("%s: %v", device, err)
		}
	}
	for _, c := range comms {
		if err := c.Close(); err != nil {
			t.Errorf("%s: %v", device, err)
		}
	}
	return j.left
}

const (
	windowBytes = kernels.RateSlots*8 + 4096
	resultBytes = 64
)

// rank runs the kernels one after another. Each step begins with the same memory on all ranks.
func (j *job) rank(c *doorbell.Comm, lsa bool) error {
	ctx, cancel := context.WithTimeout(context.Background(), 3*limit)
	defer cancel()
	alloc := c.AllocHost // the network reaches it
	if lsa {
		alloc = c.Alloc
	}
	var windows [2]*doorbell.Window
	for i := range windows {
		b, err := alloc(windowBytes)
		if err != nil {
			return err
		}
		if windows[i], err = c.Register(ctx, b); err != nil {
			return err
		}
	}
	out, err := c.Alloc(4096)
	if err != nil {
		return err
	}
	dc, err := c.DevComm(ctx, doorbell.Needs{Signals: 4, QueueDepth: 1024})
	if err != nil {
		return err
	}
	send, recv, st, me := windows[0], windows[1], c.Stream(), c.Rank()
	x := kernels.Exchange{
		DC: dc.Device(), Send: send.Device(), Recv: recv.Device(), Iters: 5, Every: 1, Peer: int32(c.Size() - 1 - me),
		Result: gpu.Cast[kernels.Result](out.Ptr()),
	}
	if lsa {
		x.LSA = 1
	}
	span := func(w *doorbell.Window, source int, bytes uint64) kernels.Span {
		return kernels.Span{At: w.Device().Base.Byte(8), Bytes: bytes, Seed: j.seed, Iter: 3, First: 1, Source: int32(source)}
	}
	base := [4]uint64{} // of the signals
	step := func(what string, bytes uint64, launch func() error) error {
		for _, err := range []error{
			doorbell.Launch(st, kernels.FillKernel, doorbell.Grid{Blocks: 1, Warps: 3}, kernels.FillArgs{Span: span(send, me, windowBytes-24)}),
			st.Wait(ctx), out.Write(0, make([]byte, 4096)), c.Barrier(ctx), launch(), st.Wait(ctx), c.Barrier(ctx),
			doorbell.Launch(st, kernels.SignalsKernel, doorbell.Grid{Blocks: 1, Warps: 1},
				kernels.SignalsArgs{DC: dc.Device(), Signals: 4, Values: gpu.Cast[uint64](out.Ptr().Byte(resultBytes))}),
			st.Wait(ctx),
		} {
			if err != nil {
				return fmt.Errorf("%s of %d bytes, rank %d: %w", what, bytes, me, err)
			}
		}
		head, memory := make([]byte, 256), make([]byte, windowBytes)
		if err := out.Read(0, head); err != nil {
			return err
		}
		if s := gin.Status(binary.LittleEndian.Uint32(head)); s != gin.OK {
			return fmt.Errorf("%s of %d bytes, rank %d: %v, cause %w", what, bytes, me, s, dc.Cause())
		}
		for i := range base {
			base[i] = binary.LittleEndian.Uint64(head[resultBytes+8*i:])
		}
		clear(head[16:24]) // the time it took
		if err := recv.Buffer().Read(0, memory); err != nil {
			return err
		}
		what = fmt.Sprintf("%s, %d bytes", what, bytes)
		j.keep(what+": result and signals", me, head)
		j.keep(what+": receive window", me, memory)
		return c.Barrier(ctx) // nobody fills while somebody reads
	}
	one := doorbell.Grid{Blocks: 1, Warps: 1}
	for _, bytes := range []uint64{0, 1, 7, 8, 255, 300, 4099} {
		x.Bytes, x.SendOff, x.RecvOff = bytes, 16, 16
		x.Base = base[0]
		if err := step("PingPong", bytes, func() error { return doorbell.Launch(st, kernels.PingPongKernel, one, x) }); err != nil {
			return err
		}
		x.Base = base[0]
		if err := step("Bandwidth", bytes, func() error {
			return doorbell.Launch(st, kernels.BandwidthKernel, one, kernels.BandwidthArgs{X: x, Batch: 7, Span: 4 * (bytes + 1), Step: bytes + 1})
		}); err != nil {
			return err
		}
		if err := step("Check", bytes, func() error { // of what it received: the count of wrong bytes is as good as any
			return doorbell.Launch(st, kernels.CheckKernel, doorbell.Grid{Blocks: 2, Warps: 2}, kernels.CheckArgs{Span: span(recv, int(x.Peer), bytes), Result: x.Result})
		}); err != nil {
			return err
		}
	}
	reset := func() error { // a communicator with fresh signals: kernels below count them all alike
		var err error
		dc, err = c.DevComm(ctx, doorbell.Needs{Signals: 4, QueueDepth: 1024})
		if err == nil {
			x.DC, x.Base = dc.Device(), 0
		}
		return err
	}
	for _, bytes := range []uint64{1, 8, 1000, 4096} {
		if err := reset(); err != nil {
			return err
		}
		x.Bytes = bytes
		if err := step("AllToAll", bytes, func() error {
			return doorbell.Launch(st, kernels.AllToAllKernel, doorbell.Grid{Blocks: 1, Warps: 3}, kernels.AllToAllArgs{X: x, Step: (bytes + 7) &^ 7})
		}); err != nil {
			return err
		}
	}
	if lsa {
		for _, k := range []struct {
			name  string
			warps int
			self  gpu.Kernel[kernels.Exchange]
		}{{"SelfByThread", 1, kernels.SelfByThreadKernel}, {"SelfByWarp", 1, kernels.SelfByWarpKernel}, {"SelfByBlock", 3, kernels.SelfByBlockKernel}} {
			for _, bytes := range []uint64{8, 300, 4099} {
				if err := reset(); err != nil {
					return err
				}
				x.Bytes, x.Every = bytes, 0 // no stamps
				if err := step(k.name, bytes, func() error { return doorbell.Launch(st, k.self, doorbell.Grid{Blocks: 1, Warps: k.warps}, x) }); err != nil {
					return err
				}
			}
		}
		return nil // the rest goes by the network only, which does not read a GPU's memory everywhere
	}
	if err := reset(); err != nil {
		return err
	}
	x.Iters, x.Bytes, x.SendOff, x.RecvOff = 4*kernels.RateAck, 8, 0, 0
	if err := step("Rate", 8, func() error {
		return doorbell.Launch(st, kernels.RateKernel, one, kernels.RateArgs{X: x, Seed: j.seed, Iter: 9})
	}); err != nil {
		return err
	}
	for _, signal := range []int32{0, 1} {
		fresh := func(puts, bytes uint64) error {
			err := reset()
			x.Iters, x.Bytes, x.Base = puts, bytes, 1
			if signal != 0 {
				x.Base = puts
			}
			return err
		}
		if err := fresh(1000, 24); err != nil {
			return err
		}
		if err := step(fmt.Sprintf("Post, signal %d", signal), 24, func() error {
			return doorbell.Launch(st, kernels.PostKernel, one, kernels.PostArgs{X: x, Span: 2400, Step: 24, Signal: signal})
		}); err != nil {
			return err
		}
		if err := fresh(960, 16); err != nil {
			return err
		}
		if err := step(fmt.Sprintf("Batch, signal %d", signal), 16, func() error {
			post := kernels.PostArgs{X: x, Span: 1600, Step: 16, Signal: signal}
			if x.DC.Rank > x.Peer {
				return doorbell.Launch(st, kernels.PostKernel, one, post)
			}
			return doorbell.Launch(st, kernels.BatchKernel, one, kernels.BatchArgs{Post: post, Batch: 10, Lanes: uint32(signal)})
		}); err != nil {
			return err
		}
	}
	return nil
}
