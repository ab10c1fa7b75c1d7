// SPDX-License-Identifier: Apache-2.0

package gintest

import (
	"context"
	"encoding/binary"
	"fmt"
	"testing"

	"github.com/doorbell-net/doorbell"
	"github.com/doorbell-net/doorbell/gpu"
)

// TestTeam runs Team on goroutines by either backend, and where there is a GPU on that, on ranks of one process: each call is
// OK, and what was stored and sent before is there after.
func TestTeam(t *testing.T) {
	devices := []string{"soft"}
	if hasGPU() {
		devices = append(devices, "cuda")
	}
	for _, device := range devices {
		for _, backend := range []string{"proxy", "gdaki"} {
			for _, ranks := range []int{1, 2, 4} {
				t.Run(fmt.Sprintf("%s%s/ranks=%d", device, backend, ranks), func(t *testing.T) {
					runTeam(t, ranks, doorbell.Options{Device: device, Backend: backend, Timeout: limit})
				})
			}
		}
	}
}

func runTeam(t *testing.T, ranks int, o doorbell.Options) {
	onRanks(t, ranks, o, func(c *doorbell.Comm) error { return team(t.Context(), c) })
}

func team(ctx context.Context, c *doorbell.Comm) error {
	const rounds = 100
	ctx, cancel := context.WithTimeout(ctx, 2*limit)
	defer cancel()
	buf, err := c.Alloc(8 * c.Size())
	if err != nil {
		return err
	}
	w, err := c.Register(ctx, buf)
	if err != nil {
		return err
	}
	out, err := c.Alloc(24)
	if err != nil {
		return err
	}
	dc, err := c.DevComm(ctx, doorbell.Needs{Barriers: 2, LLA2ABlocks: 1, LLA2ASlots: c.Size()})
	if err != nil {
		return err
	}
	st := c.Stream()
	a := TeamArgs{DC: dc.Device(), W: w.Device(), Result: gpu.Cast[uint64](out.Ptr()), Rounds: rounds}
	if err := doorbell.Launch(st, TeamKernel, doorbell.Grid{Blocks: 1, Warps: 1}, a); err != nil {
		return err
	}
	if err := st.Wait(ctx); err != nil {
		return err
	}
	b := make([]byte, 24)
	if err := out.Read(0, b); err != nil {
		return err
	}
	if s, wrong, n := binary.LittleEndian.Uint64(b), binary.LittleEndian.Uint64(b[8:]), binary.LittleEndian.Uint64(b[16:]); s != 0 || wrong != 0 || n != rounds {
		return fmt.Errorf("status %d, %d values wrong, %d rounds of %d: %v", s, wrong, n, rounds, dc.Cause())
	}
	return c.Barrier(ctx) // who leaves is lost to who still waits
}
