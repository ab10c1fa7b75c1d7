// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package gpu_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/doorbell-net/doorbell"
	"github.com/doorbell-net/doorbell/bench/kernels"
	"github.com/doorbell-net/doorbell/gin"
	"github.com/doorbell-net/doorbell/gpu"
	"github.com/doorbell-net/doorbell/internal/device"
	"github.com/doorbell-net/doorbell/internal/device/cuda"
	"github.com/doorbell-net/doorbell/internal/testenv"
)

// TestCopies: copies of a window to an LSA peer by so many blocks hold what was sent, to the byte. On a GPU it prints what they
// move, beside copies of the same bytes that the host queues.
func TestCopies(t *testing.T) {
	for _, on := range []struct {
		device string
		bytes  int
		blocks []int
	}{{"soft", 1<<20 + 17, []int{1, 3, 16}}, {"cuda", 256 << 20, []int{1, 2, 4, 8, 16, 32, 64, 132}}} {
		t.Run(on.device, func(t *testing.T) {
			if on.device == "cuda" {
				needGPU(t)
			}
			c := open(t, 1, on.device)[0]
			send, recv := window(t, c, on.bytes), window(t, c, on.bytes)
			refused := must(c.Alloc(4))(t)
			dc := must(c.DevComm(t.Context(), doorbell.Needs{Signals: 1}))(t)
			pattern := make([]byte, on.bytes)
			random := rand.NewChaCha8([32]byte{byte(testenv.Random(t).Uint64())})
			random.Read(pattern)
			check(t, send.Buffer().Write(0, pattern))
			st := c.Stream()
			warps := 32
			if on.device == "soft" {
				warps = 2
			}
			a := kernels.CopyArgs{DC: dc.Device(), Send: send.Device(), Recv: recv.Device(), Bytes: uint64(on.bytes), Refused: gpu.Cast[uint32](refused.Ptr())}
			for _, blocks := range on.blocks {
				check(t, recv.Buffer().Write(0, make([]byte, on.bytes)))
				took := timed(t, st, func() error {
					return doorbell.Launch(st, kernels.CopyKernel, doorbell.Grid{Blocks: blocks, Warps: warps}, a)
				})
				got := make([]byte, on.bytes)
				check(t, recv.Buffer().Read(0, got))
				if !bytes.Equal(got, pattern) {
					t.Errorf("%d blocks: what came is not what was sent", blocks)
				}
				t.Logf("LSA copy, %d blocks: %.1f GB/s", blocks, float64(on.bytes)/took.Seconds()/1e9)
			}
			var n [4]byte
			check(t, refused.Read(0, n[:]))
			if n != [4]byte{} {
				t.Errorf("%x blocks were refused", n)
			}
		})
	}
}

// timed is the time of a launch among several, back to back.
func timed(t *testing.T, st *doorbell.Stream, launch func() error) time.Duration {
	t.Helper()
	const times = 6
	check(t, errors.Join(launch(), st.Wait(t.Context())))
	start := time.Now()
	for range times {
		check(t, launch())
	}
	check(t, st.Wait(t.Context()))
	return time.Since(start) / times
}

// TestLargePuts: 16 puts of 4 MiB in flight between ranks of one GPU, beside the same copies that the host queues back to back.
func TestLargePuts(t *testing.T) {
	needGPU(t)
	const batch, bytes, iters = 16, 4 << 20, 10
	cs := open(t, 2, "cuda")
	var wg sync.WaitGroup
	for _, c := range cs {
		wg.Go(func() {
			send, recv := window(t, c, batch*bytes), window(t, c, batch*bytes)
			out := must(c.Alloc(resultBytes))(t)
			dc := must(c.DevComm(t.Context(), doorbell.Needs{Signals: 1}))(t)
			x := kernels.Exchange{DC: dc.Device(), Send: send.Device(), Recv: recv.Device(), Bytes: bytes, Iters: iters, Every: 1,
				Peer: int32(1 - c.Rank()), Result: gpu.Cast[kernels.Result](out.Ptr())}
			st := c.Stream()
			check(t, errors.Join(doorbell.Launch(st, kernels.BandwidthKernel, doorbell.Grid{Blocks: 1, Warps: 1},
				kernels.BandwidthArgs{X: x, Batch: batch, Span: batch * bytes, Step: bytes}), st.Wait(t.Context())))
			p := partner{dc: dc, out: out}
			if r := p.result(); r.Status != gin.OK || r.Done != 1 {
				t.Errorf("rank %d: %v, %v", c.Rank(), r.Status, dc.Cause())
			} else if c.Rank() == 0 {
				t.Logf("16 puts of 4 MiB in flight, network %s: %.1f us a put, %.1f GB/s", c.Info().Net, float64(r.Ns)/1e3/float64(r.Count), bytes*float64(r.Count)/float64(r.Ns))
			}
		})
	}
	wg.Wait()
	d := must(cuda.Open(cuda.Options{}))(t)
	defer func() { check(t, d.Close()) }()
	src, dst, pinned := must(d.Alloc(batch*bytes))(t), must(d.Alloc(batch*bytes))(t), must(d.AllocHost(1<<20))(t)
	s := d.NewStream()
	for what, copies := range map[string]func(from, to gpu.Ptr[byte]) error{
		"through 1 MiB of pinned memory": func(from, to gpu.Ptr[byte]) (err error) {
			for at := uint64(0); at < bytes; at += 1 << 20 {
				err = errors.Join(err, s.Copy(pinned.Ptr(), from.Byte(at), 1<<20), s.Copy(to.Byte(at), pinned.Ptr(), 1<<20))
			}
			return err
		},
		"within the device": func(from, to gpu.Ptr[byte]) error { return s.Copy(to, from, bytes) },
	} {
		for range 2 { // the first warms up
			start := time.Now()
			for i := range uint64(iters * batch) {
				at := i % batch * bytes
				check(t, copies(src.Ptr().Byte(at), dst.Ptr().Byte(at)))
			}
			check(t, s.Wait(t.Context()))
			took := time.Since(start)
			t.Logf("copies of 4 MiB by the host, %s: %.1f us a copy, %.1f GB/s", what, took.Seconds()*1e6/iters/batch, iters*batch*bytes/took.Seconds()/1e9)
		}
	}
	for _, m := range []device.Memory{src, dst, pinned} {
		check(t, m.Free())
	}
	check(t, s.Close())
}

// open makes ranks of this process, and closes them with the test.
func open(t *testing.T, n int, dev string) []*doorbell.Comm {
	t.Helper()
	cs, err := doorbell.Local(n, doorbell.Options{Device: dev, Timeout: limit})
	check(t, err)
	t.Cleanup(func() {
		var wg sync.WaitGroup
		for _, c := range cs {
			wg.Go(func() {
				if err := c.Close(); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
	})
	return cs
}

func window(t *testing.T, c *doorbell.Comm, bytes int) *doorbell.Window {
	t.Helper()
	b, err := c.Alloc(bytes)
	check(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	w, err := c.Register(ctx, b)
	check(t, err)
	return w
}

// check ends the goroutine that has a failure.
func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Error(fmt.Errorf("%w", err))
		runtime.Goexit()
	}
}

func must[T any](v T, err error) func(*testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		check(t, err)
		return v
	}
}
