// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package gpu_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/doorbell-net/doorbell"
	"github.com/doorbell-net/doorbell/bench/bulk"
	"github.com/doorbell-net/doorbell/bench/kernels"
	"github.com/doorbell-net/doorbell/gin"
	"github.com/doorbell-net/doorbell/gpu"
	"github.com/doorbell-net/doorbell/internal/device"
	"github.com/doorbell-net/doorbell/internal/device/cuda"
	"github.com/doorbell-net/doorbell/internal/testenv"
)

// launch is one launch of a kernel with its arguments.
type launch func(st *doorbell.Stream, blocks int) error

// launcher is a kernel's launches of so many warps a block.
func launcher[A any](k gpu.Kernel[A], warps int, a A) launch {
	return func(st *doorbell.Stream, blocks int) error {
		return doorbell.Launch(st, k, doorbell.Grid{Blocks: blocks, Warps: warps}, a)
	}
}

// TestCopies: copies of a window to an LSA peer by so many blocks hold what was sent, to the byte. On a GPU those in CUDA C++
// are held likewise, and lines for tools/measure say what each moves, measured in turn.
func TestCopies(t *testing.T) {
	for _, on := range []struct {
		device       string
		bytes, warps int
		blocks       []int
	}{{"soft", 1<<20 + 17, 2, []int{1, 3, 16}}, {"cuda", 128 << 20, 32, []int{1, 2, 4, 8, 16, 32, 64, 132}}} {
		t.Run(on.device, func(t *testing.T) {
			code := ""
			if on.device == "cuda" {
				needGPU(t)
				code = string(must(os.ReadFile("copies.ptx"))(t))
			}
			// All kernels there are, before the device loads them.
			raw, twin := gpu.NewKernel("RawCopy", kernels.Copy, code), gpu.NewKernel("Copy", kernels.Copy, code)
			bulkTwin := gpu.NewKernel("BulkCopy", bulk.BulkCopy, code)
			c := open(t, 1, on.device)[0]
			send, recv := window(t, c, on.bytes), window(t, c, on.bytes)
			refused := must(c.Alloc(4))(t)
			dc := must(c.DevComm(t.Context(), doorbell.Needs{Signals: 1}))(t)
			a := kernels.CopyArgs{DC: dc.Device(), Send: send.Device(), Recv: recv.Device(), Bytes: uint64(on.bytes), Refused: gpu.Cast[uint32](refused.Ptr())}
			pattern := make([]byte, on.bytes)
			rand.NewChaCha8([32]byte{byte(testenv.Random(t).Uint64())}).Read(pattern)
			check(t, send.Buffer().Write(0, pattern))
			st := c.Stream()
			sixteens := on.bytes &^ 15
			b := bulk.BulkCopyArgs{Send: a.Send, Recv: a.Recv, Bytes: uint64(sixteens), Timeout: uint64(limit), Failed: a.Refused}
			for _, k := range []struct {
				name         string
				bytes        int
				ours, theirs launch
			}{
				{"LSA copy, %d blocks, unrolled", on.bytes, launcher(kernels.CopyKernel, on.warps, a), launcher(raw, on.warps, a)},
				{"LSA copy, %d blocks, twin", on.bytes, launcher(kernels.CopyKernel, on.warps, a), launcher(twin, on.warps, a)},
				{"bulk copy, %d blocks, twin", sixteens, launcher(bulk.BulkCopyKernel, 1, b), launcher(bulkTwin, 1, b)},
			} {
				for _, blocks := range on.blocks {
					name := fmt.Sprintf(k.name, blocks)
					for who, l := range []launch{k.ours, k.theirs} {
						check(t, recv.Buffer().Write(0, make([]byte, k.bytes)))
						check(t, errors.Join(l(st, blocks), st.Wait(t.Context())))
						got := make([]byte, k.bytes)
						if check(t, recv.Buffer().Read(0, got)); !bytes.Equal(got, pattern[:k.bytes]) {
							t.Errorf("%s, number %d: what came is not what was sent", name, who)
						}
					}
					if on.device != "cuda" {
						continue // both are the same function there
					}
					moved := inTurn(t, newWatch(t, c, st), k.ours, k.theirs, blocks, k.bytes)
					line := must(json.Marshal(map[string]any{"case": name, "ours": moved[0], "theirs": moved[1]}))(t)
					fmt.Printf("pair: %s\n", line)
				}
			}
			var n [4]byte
			check(t, refused.Read(0, n[:]))
			if n != [4]byte{} {
				t.Errorf("%x blocks were refused", n)
			}
		})
	}
}

// inTurn is what ours and theirs move, GB/s, measured in turn.
func inTurn(t *testing.T, w *watch, ours, theirs launch, blocks, n int) (moved [2][]float64) {
	t.Helper()
	for range 5 {
		for i, l := range []launch{ours, theirs} {
			took := w.timed(t, func() error { return l(w.st, blocks) })
			moved[i] = append(moved[i], float64(n)/took.Seconds()/1e9)
		}
	}
	return moved
}

// watch times launches by the device's clock: a host that has waited for milliseconds sleeps, and comes late.
type watch struct {
	st     *doorbell.Stream
	stamps *doorbell.Buffer
}

func newWatch(t *testing.T, c *doorbell.Comm, st *doorbell.Stream) *watch {
	t.Helper()
	return &watch{st, must(c.Alloc(binary.Size([2]kernels.Stamp{})))(t)}
}

// timed is the time of a launch among several, back to back.
func (w *watch) timed(t *testing.T, launch func() error) time.Duration {
	t.Helper()
	const times = 6
	at := gpu.Cast[kernels.Stamp](w.stamps.Ptr())
	stamp := func(i int) error {
		return doorbell.Launch(w.st, kernels.StampTimeKernel, doorbell.Grid{Blocks: 1, Warps: 1}, kernels.StampArgs{At: at.At(i)})
	}
	check(t, errors.Join(launch(), stamp(0)))
	for range times {
		check(t, launch())
	}
	check(t, errors.Join(stamp(1), w.st.Wait(t.Context())))
	var got [2]kernels.Stamp
	_, err := binary.Decode(must(read(w.stamps))(t), binary.LittleEndian, &got)
	check(t, err)
	return time.Duration(got[1].Ns-got[0].Ns) / times
}

// TestLargePuts: 16 puts of 4 MiB in flight between ranks of one GPU, beside the same copies that the host queues back to back.
func TestLargePuts(t *testing.T) {
	needGPU(t)
	const batch, bytes, iters = 16, 4 << 20, 10 // of puts half as many an iteration: two are in flight
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
				kernels.BandwidthArgs{X: x, Batch: batch / 2, Span: batch * bytes, Step: bytes}), st.Wait(t.Context())))
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
