// SPDX-License-Identifier: Apache-2.0

// Command barrier is ranks that go through barriers of one kind, "gin" (with FencePut), "lsa" or "hybrid", one after the
// other; rank 0 prints what one took on average. Without a launcher it is 8 ranks of this process; under one each process is
// bound to a core, in turn, as those of bench are.
package main

import (
	"context"
	"fmt"
	"os"

	"github.com/doorbell-net/doorbell"
	"github.com/doorbell-net/doorbell/gin"
	"github.com/doorbell-net/doorbell/gpu"
	"github.com/doorbell-net/doorbell/internal/env"
	"github.com/doorbell-net/doorbell/internal/sys"
)

const warmup, timed = 1_000, 20_000

func main() {
	kind := "gin"
	if len(os.Args) > 1 {
		kind = os.Args[1]
	}
	if err := bind(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	doorbell.Main(8, func(ctx context.Context, c *doorbell.Comm) error {
		dc, err := c.DevComm(ctx, doorbell.Needs{Barriers: 1})
		if err != nil {
			return err
		}
		var ns uint64
		s := gin.OK
		k := gpu.NewKernel("barriers", func(t gpu.Thread, d gin.DevComm) {
			x, co, start := gin.Open(&d, 0), gin.ByThread(t), uint64(0)
			for i := 0; i < warmup+timed && s == gin.OK; i++ {
				if i == warmup {
					start = t.Clock()
				}
				switch kind {
				case "lsa":
					s = x.LSABarrier(co, 0)
				case "hybrid":
					s = x.HybridBarrier(co, 0, gin.FencePut)
				default:
					s = x.Barrier(co, gin.World(&d), 0, gin.FencePut)
				}
			}
			ns = t.Clock() - start
		}, "")
		st := c.Stream()
		if err := doorbell.Launch(st, k, doorbell.Grid{Blocks: 1, Warps: 1}, dc.Device()); err != nil {
			return err
		}
		if err := st.Wait(ctx); err != nil {
			return err
		}
		if s != gin.OK {
			return fmt.Errorf("rank %d: %s barrier: %v: %w", c.Rank(), kind, s, dc.Cause())
		}
		if c.Rank() == 0 {
			fmt.Printf("ns %.0f\n", float64(ns)/timed)
		}
		return c.Barrier(ctx) // who leaves is lost to who still waits
	})
}

// bind binds a process that a launcher started.
func bind() error {
	if !env.Rank.IsSet(os.LookupEnv) {
		return nil
	}
	rank, err := env.Rank.Get(os.LookupEnv)
	if err != nil {
		return err
	}
	cpus, err := sys.CPUs()
	if err != nil {
		return err
	}
	return sys.Bind(cpus[rank%len(cpus)])
}
