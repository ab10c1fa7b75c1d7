// SPDX-License-Identifier: Apache-2.0

package gintest

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/doorbell-net/doorbell"
	"github.com/doorbell-net/doorbell/gin"
	"github.com/doorbell-net/doorbell/gpu"
	"github.com/doorbell-net/doorbell/internal/env"
)

const limit = 20 * time.Second

// want is what Ops leaves in a round: the same on every device.
func want(round uint64) (w []uint64) {
	n := round + 1
	w = append(w, make([]uint64, 10)...)         // all were posted, and all came
	w = append(w, n, n<<40, 5*n, 2*n, 2*n+round) // signals; the counter has each round's get too
	w = append(w, 0, 0, 0, 1, 0, 0, 0, 1)        // requests
	w = append(w, 0, 0, round<<40, 1<<40, n)     // shadows
	w = append(w, 0, 0, 0, 0, 0)                 // barriers, get, flush, fence
	w = append(w, slices.Repeat([]uint64{uint64(gin.Invalid)}, 6)...)
	return append(w, 0, 0, 3, 0, 0)
}

func payload(rank, i int) byte { return byte(rank*37+i*11) ^ byte(i>>8) }

// place is where windows lie, and what carries puts between them.
type place struct {
	device, net, backend string
	far                  bool // windows in memory that the host does not reach
}

func (p place) String() string {
	return fmt.Sprintf("%s%s/%s/far=%v", p.device, p.backend, p.net, p.far)
}

// onCPU are the places everywhere, and onGPU those of the cuda device.
var (
	onCPU = []place{
		{"soft", "auto", "", false}, {"soft", "auto", "gdaki", false},
		{"soft", "ce", "", true}, {"soft", "dma", "", true}, {"soft", "staged+tcp", "", true}, {"soft", "staged+tcp", "", false},
		{"soft", "ce", "gdaki", true},
	}
	onGPU = []place{
		{"cuda", "ce", "", false}, {"cuda", "ce", "", true}, {"cuda", "dma", "", true}, {"cuda", "staged+tcp", "", true},
		{"cuda", "ce", "gdaki", false}, {"cuda", "ce", "gdaki", true}, {"cuda", "dma", "gdaki", true}, {"cuda", "staged+tcp", "gdaki", true},
	}
)

// hasGPU says whether tests may take a GPU.
func hasGPU() bool {
	on, err := env.GPUs.Get(nil)
	return err == nil && on
}

// TestOps runs Ops on goroutines by either backend, and where there is a GPU on that, on ranks of one process: what it leaves
// is what want says, and each window holds what its peer put there and got. So it does between windows in memory that only the
// device reaches.
//
//	DOORBELL_CUDA_TEST=1 go test -run '^Test(Ops|Team)$/^cudagdaki' -v ./internal/gintest
func TestOps(t *testing.T) {
	places := onCPU
	if hasGPU() {
		places = slices.Concat(onCPU, onGPU)
	}
	for _, p := range places {
		for _, ranks := range []int{2, 4} {
			for _, n := range []int{8, 256, 5000} {
				t.Run(fmt.Sprintf("%s/ranks=%d/bytes=%d", p, ranks, n), func(t *testing.T) {
					if p.device == "soft" && p.net != "auto" {
						t.Setenv(env.Far.Name(), "1")
					}
					runOps(t, p, ranks, n)
				})
			}
		}
	}
}

func runOps(t *testing.T, p place, ranks, n int) {
	onRanks(t, ranks, doorbell.Options{Device: p.device, Net: p.net, Backend: p.backend, Timeout: limit}, func(c *doorbell.Comm) error {
		return ops(t, c, n, p.far)
	})
}

// onRanks runs f on ranks of this process at once.
func onRanks(t *testing.T, ranks int, o doorbell.Options, f func(*doorbell.Comm) error) {
	cs, err := doorbell.Local(ranks, o)
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for _, c := range cs {
		wg.Go(func() {
			if err := f(c); err != nil {
				t.Errorf("rank %d: %v", c.Rank(), err)
				c.Abort(err)
			}
		})
	}
	wg.Wait()
	for _, c := range cs {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}
}

func ops(t *testing.T, c *doorbell.Comm, n int, far bool) error {
	ctx, cancel := context.WithTimeout(t.Context(), 2*limit)
	defer cancel()
	alloc := c.AllocHost
	if far {
		alloc = c.Alloc
	}
	var windows [2]*doorbell.Window
	for i := range windows {
		b, err := alloc(3 * n)
		if err != nil {
			return err
		}
		if windows[i], err = c.Register(ctx, b); err != nil {
			return err
		}
	}
	out, err := c.Alloc(8*Results + 64*c.Size())
	if err != nil {
		return err
	}
	signals, err := c.RegisterSignals(ctx, 4)
	if err != nil {
		return err
	}
	dc, err := c.DevComm(ctx, doorbell.Needs{Contexts: 2, Signals: 3, Counters: 1, Barriers: 1, Fence: c.Info().Net != "ce"})
	if err != nil {
		return err
	}
	send, recv, peer := windows[0], windows[1], c.Size()-1-c.Rank()
	sent := make([]byte, 3*n)
	for i := range sent {
		sent[i] = payload(c.Rank(), i)
	}
	st := c.Stream()
	for round := range uint64(3) {
		if err := send.Buffer().Write(0, sent); err != nil {
			return err
		}
		if err := c.Barrier(ctx); err != nil {
			return err
		}
		a := OpsArgs{
			DC: dc.Device(), Send: send.Device(), Recv: recv.Device(), Signals: signals.Device(), Results: gpu.Cast[uint64](out.Ptr()),
			Requests: gpu.Cast[gin.Request](out.Ptr().Byte(8 * Results)), Bytes: uint64(n), Round: round, Peer: int32(peer),
		}
		if err := doorbell.Launch(st, OpsKernel, doorbell.Grid{Blocks: 1, Warps: 1}, a); err != nil {
			return err
		}
		if err := st.Wait(ctx); err != nil {
			return err
		}
		if err := c.Barrier(ctx); err != nil {
			return err
		}
		if err := compare(dc, out, send, recv, round, peer, n); err != nil {
			return err
		}
	}
	return nil
}

func compare(dc *doorbell.DevComm, out *doorbell.Buffer, send, recv *doorbell.Window, round uint64, peer, n int) error {
	raw := make([]byte, 8*Results)
	if err := out.Read(0, raw); err != nil {
		return err
	}
	w := want(round)
	fence := dc.Needs().Fence
	for i, v := range w {
		got := binary.LittleEndian.Uint64(raw[8*i:])
		if i == fenceAt && !fence {
			v = uint64(gin.Invalid)
		}
		if got != v {
			return fmt.Errorf("round %d: number %d is %#x, want %#x; cause: %v", round, i, got, v, dc.Cause())
		}
	}
	mem := make([]byte, 3*n)
	if err := recv.Buffer().Read(0, mem); err != nil {
		return err
	}
	theirs := make([]byte, 2*n, 3*n)
	for i := range theirs {
		theirs[i] = payload(peer, i)
	}
	theirs = binary.LittleEndian.AppendUint64(theirs, 0x1122334455667788)
	if !bytes.Equal(mem[:len(theirs)], theirs) {
		return fmt.Errorf("round %d: what rank %d put is not there", round, peer)
	}
	if err := send.Buffer().Read(0, mem); err != nil {
		return err
	}
	// The peer's receive window begins with what this rank sent: the get brought that back.
	if !bytes.Equal(mem[2*n:], mem[:n]) {
		return fmt.Errorf("round %d: the get brought something else", round)
	}
	return nil
}

// fenceAt is where the status of FenceContexts stands.
const fenceAt = 10 + 5 + 8 + 5 + 3
