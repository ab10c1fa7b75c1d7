// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package gpu_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/doorbell-net/doorbell"
	"github.com/doorbell-net/doorbell/bench/bulk"
	"github.com/doorbell-net/doorbell/bench/kernels"
	"github.com/doorbell-net/doorbell/gpu"
	"github.com/doorbell-net/doorbell/internal/env"
)

// TestPeers: copies to an LSA peer, by stores and by bulk copies of so many blocks, hold what was sent, to the byte; barriers
// return as often on both. Under "doorbell run -n 2 --device cuda" each rank has a GPU, and lines for tools/measure say what
// copies move and barriers take; so have two ranks of this process with DOORBELL_LOCAL_GPUS=2, and else the software device.
func TestPeers(t *testing.T) {
	// So large, since a launch and the end of its stores take as long as 2 to 4 MiB do.
	onGPUs := func(c *doorbell.Comm) { meetPeer(t, c, 512<<20, 32, []int{4, 8, 16, 32, 64, 132}) }
	if env.Rank.IsSet(nil) {
		needGPU(t)
		c := must(doorbell.Open(t.Context(), doorbell.Options{Timeout: limit}))(t)
		defer func() { check(t, c.Close()) }()
		onGPUs(c)
		return
	}
	dev, meet := "soft", func(c *doorbell.Comm) { meetPeer(t, c, 1<<20+4096+16, 2, []int{1, 3}) }
	if env.LocalGPUs.IsSet(nil) {
		needGPU(t)
		dev, meet = "cuda", onGPUs
	}
	var ranks sync.WaitGroup
	for _, c := range open(t, 2, dev) {
		ranks.Go(func() { meet(c) })
	}
	ranks.Wait()
}

// meetPeer is one rank: rank 0 copies, rank 1 looks.
func meetPeer(t *testing.T, c *doorbell.Comm, n, warps int, blocks []int) {
	if c.LSASize() != 2 {
		t.Errorf("an LSA team of %d, want 2", c.LSASize())
		return
	}
	send, recv := window(t, c, n), window(t, c, n)
	failed, out := must(c.Alloc(4))(t), must(c.Alloc(resultBytes))(t)
	dc := must(c.DevComm(t.Context(), doorbell.Needs{Barriers: 1}))(t)
	st := c.Stream()
	w := newWatch(t, c, st)
	pattern := make([]byte, n)
	rand.NewChaCha8([32]byte{7}).Read(pattern)
	check(t, send.Buffer().Write(0, pattern))

	a := kernels.CopyArgs{DC: dc.Device(), Send: send.Device(), Recv: recv.Device(), Bytes: uint64(n), Refused: gpu.Cast[uint32](failed.Ptr()), Peer: 1}
	b := bulk.BulkCopyArgs{Send: a.Send, Recv: a.Recv, Bytes: a.Bytes, Timeout: uint64(limit), Failed: a.Refused, Peer: a.Peer}
	for _, k := range []struct {
		name   string
		copies launch
	}{{"LSA copy", launcher(kernels.CopyKernel, warps, a)}, {"LSA bulk copy", launcher(bulk.BulkCopyKernel, 1, b)}} {
		for _, blocks := range blocks {
			check(t, errors.Join(recv.Buffer().Write(0, make([]byte, n)), c.Barrier(t.Context())))
			if c.Rank() == 0 {
				took := median(func() time.Duration { return w.timed(t, func() error { return k.copies(st, blocks) }) })
				figure(c, fmt.Sprintf("%s to the other GPU, %d blocks", k.name, blocks), `"GBps":%.2f`, float64(n)/took.Seconds()/1e9)
			}
			check(t, c.Barrier(t.Context()))
			got := make([]byte, n)
			if check(t, recv.Buffer().Read(0, got)); c.Rank() == 1 && !bytes.Equal(got, pattern) {
				t.Errorf("%s, %d blocks: what came is not what was sent", k.name, blocks)
			}
		}
	}
	var refused [4]byte
	if check(t, failed.Read(0, refused[:])); refused != [4]byte{} {
		t.Errorf("%x blocks were refused", refused)
	}

	// What a barrier takes depends on where its words lie: each sample has others.
	const barriers = 8192
	var places []*doorbell.DevComm
	took := median(func() time.Duration {
		dc := must(c.DevComm(t.Context(), doorbell.Needs{Barriers: 1}))(t)
		places = append(places, dc) // kept, or the next one would get the same
		check(t, errors.Join(doorbell.Launch(st, kernels.BarriersKernel, doorbell.Grid{Blocks: 1, Warps: 1},
			kernels.BarriersArgs{DC: dc.Device(), Iters: barriers, Result: gpu.Cast[kernels.Result](out.Ptr())}), st.Wait(t.Context())))
		var r kernels.Result
		if _, err := binary.Decode(must(read(out))(t), binary.LittleEndian, &r); err != nil || r.Done != 1 || r.Count != barriers {
			t.Errorf("rank %d: %+v (%v): want %d barriers", c.Rank(), r, err, barriers)
		}
		return time.Duration(r.Ns)
	})
	if c.Rank() == 0 {
		figure(c, "LSA barrier, 32 threads, GPUs of their own", `"p50_us":%.4f`, float64(took)/1e3/barriers)
	}
	check(t, c.Barrier(t.Context()))
	for _, dc := range places {
		check(t, dc.Close())
	}
}

// median of several, since a GPU that had no work comes to its clock in the first.
func median(measure func() time.Duration) time.Duration {
	var took [7]time.Duration
	for i := range took {
		took[i] = measure()
	}
	slices.Sort(took[:])
	return took[len(took)/2]
}

func read(b *doorbell.Buffer) ([]byte, error) {
	bytes := make([]byte, b.Len())
	return bytes, b.Read(0, bytes)
}

// figure prints what a GPU gave, for tools/measure.
func figure(c *doorbell.Comm, name, format string, value float64) {
	if c.Info().Device == "cuda" {
		fmt.Printf(`figure: {"floor":%q,`+format+"}\n", name, value)
	}
}
