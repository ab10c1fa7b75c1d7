// SPDX-License-Identifier: Apache-2.0

package mlx5_test

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/doorbell-net/doorbell"
	"github.com/doorbell-net/doorbell/gin"
	"github.com/doorbell-net/doorbell/gpu"
	"github.com/doorbell-net/doorbell/internal/gintest"
	"github.com/doorbell-net/doorbell/netplugin/devnic"
	"github.com/doorbell-net/doorbell/netplugin/devnic/mlx5"
)

const (
	limit  = 20 * time.Second
	rounds = 3
	size   = 4096
)

var doubled mlx5.Doubled

func init() { devnic.Register(&doubled) }

// TestKernels: a kernel that uses each operation of gin leaves the same over this provider as over softnic, where all that the
// NIC knows is what commands and registrations told it; also where the host does not see the device's memory, in which WQEs lie then.
func TestKernels(t *testing.T) {
	want, wantMem := run(t, "softnic")
	for _, far := range []string{"0", "1"} {
		t.Run("far="+far, func(t *testing.T) {
			t.Setenv("DOORBELL_SOFT_FAR", far)
			doubled.Begin(t)
			got, gotMem := run(t, "mlx5-double")
			for r := range got {
				if !slices.Equal(got[r], want[r]) || !bytes.Equal(gotMem[r], wantMem[r]) {
					t.Errorf("rank %d:\ngot  %x\nwant %x; windows are alike: %v", r, got[r], want[r], bytes.Equal(gotMem[r], wantMem[r]))
				}
			}
			if (doubled.Far() > 0) != (far == "1") {
				t.Errorf("%d send queues were in the device's memory", doubled.Far())
			}
		})
	}
}

// run runs the kernel on two ranks, and gives what each found and what its windows hold.
func run(t *testing.T, nic string) (found [2][]uint64, mem [2][]byte) {
	t.Setenv("DOORBELL_NIC", nic)
	cs, err := doorbell.Local(2, doorbell.Options{Backend: "gdaki", Timeout: limit})
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for r, c := range cs {
		wg.Go(func() {
			var err error
			found[r], mem[r], err = one(t.Context(), c)
			if err = errors.Join(err, c.Close()); err != nil {
				t.Errorf("%s: rank %d: %v", nic, r, err)
			}
		})
	}
	wg.Wait()
	return found, mem
}

func one(ctx context.Context, c *doorbell.Comm) (found []uint64, mem []byte, err error) {
	var windows [2]*doorbell.Window
	for i := range windows {
		b, err := c.Alloc(3 * size)
		if err != nil {
			return nil, nil, err
		}
		m := make([]byte, 3*size)
		for k := range m {
			m[k] = byte(k*7 + i + 3*c.Rank())
		}
		if err := b.Write(0, m); err != nil {
			return nil, nil, err
		}
		if windows[i], err = c.Register(ctx, b); err != nil {
			return nil, nil, err
		}
	}
	signals, err := c.RegisterSignals(ctx, 4)
	if err != nil {
		return nil, nil, err
	}
	out, err := c.Alloc(8*gintest.Results + 64*c.Size())
	if err != nil {
		return nil, nil, err
	}
	dc, err := c.DevComm(ctx, doorbell.Needs{Contexts: 2, Signals: 3, Counters: 1, Barriers: 1, Fence: true, QueueDepth: 4})
	if err != nil {
		return nil, nil, err
	}
	st := c.Stream()
	for round := range uint64(rounds) {
		a := gintest.OpsArgs{
			DC: dc.Device(), Send: windows[0].Device(), Recv: windows[1].Device(), Signals: signals.Device(), Results: gpu.Cast[uint64](out.Ptr()),
			Requests: gpu.Cast[gin.Request](out.Ptr().Byte(8 * gintest.Results)), Bytes: size, Round: round, Peer: int32(1 - c.Rank()),
		}
		if err := doorbell.Launch(st, gintest.OpsKernel, doorbell.Grid{Blocks: 1, Warps: 1}, a); err != nil {
			return nil, nil, err
		}
		if err := st.Wait(ctx); err != nil {
			return nil, nil, err
		}
		results := make([]uint64, gintest.Results)
		if err := doorbell.Read(c, results, a.Results); err != nil {
			return nil, nil, err
		}
		found = append(found, results...)
		if err := c.Barrier(ctx); err != nil {
			return nil, nil, err
		}
	}
	for _, w := range windows {
		m := make([]byte, 3*size)
		if err := w.Buffer().Read(0, m); err != nil {
			return nil, nil, err
		}
		mem = append(mem, m...)
	}
	return found, mem, nil
}
