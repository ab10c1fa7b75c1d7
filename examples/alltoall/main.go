// SPDX-License-Identifier: Apache-2.0

// Alltoall sends a chunk from each rank to each and checks it: 4 ranks here, or "doorbell run -n N -- ./alltoall".
package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/doorbell-net/doorbell"
	"github.com/doorbell-net/doorbell/gin"
	"github.com/doorbell-net/doorbell/gpu"
)

const chunk = 64 << 10 // bytes from each rank to each

// Args of the kernel. Win has a chunk to send to each rank, and then room for the one of each rank.
type Args struct {
	DC  gin.DevComm
	Win gin.Window
}

// AllToAll sends, and waits until the signal 0 that each put raises says that all have come.
//
//gpu:kernel
func AllToAll(t gpu.Thread, a Args) {
	c, us, world := gin.Open(&a.DC, 0), gin.ByWarp(t), gin.World(&a.DC)
	for p := range world.Ranks {
		c.Put(us, world, p, a.Win, uint64(world.Ranks+world.Rank)*chunk, a.Win, uint64(p)*chunk, chunk, gin.StrongInc(0))
	}
	if s := c.WaitSignal(us, 0, uint64(world.Ranks), 64, gin.FromTeam(world)); s != gin.OK {
		panic("not all chunks came: " + s.String())
	}
}

func rank(ctx context.Context, c *doorbell.Comm) error {
	mem, st, grid := make([]byte, c.Size()*chunk), c.Stream(), doorbell.Grid{Blocks: 1, Warps: 1}
	buf, err1 := c.Alloc(2 * len(mem))
	win, err2 := c.Register(ctx, buf)
	dc, err3 := c.DevComm(ctx, doorbell.Needs{Signals: 1})
	if err := errors.Join(err1, err2, err3); err != nil {
		return err
	}
	for i := range mem {
		mem[i] = byte(17*c.Rank() + i%251)
	}
	if err := errors.Join(buf.Write(0, mem), doorbell.Launch(st, AllToAllKernel, grid, Args{dc.Device(), win.Device()}), st.Wait(ctx), buf.Read(len(mem), mem)); err != nil {
		return err
	}
	for i, b := range mem {
		if from, at := i/chunk, c.Rank()*chunk+i%chunk; b != byte(17*from+at%251) {
			return fmt.Errorf("rank %d of %d: byte %d from rank %d is wrong", c.Rank(), c.Size(), i%chunk, from)
		}
	}
	_, err := fmt.Printf("rank %d of %d: %d bytes received, all right\n", c.Rank(), c.Size(), len(mem))
	return err
}

func main() { doorbell.Main(4, rank) }
