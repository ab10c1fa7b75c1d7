// SPDX-License-Identifier: Apache-2.0

// Pingpong: the kernels of two ranks send a message there and back, and each checks every message it got. As it is, both
// ranks run in this process; "doorbell run -n 2 -- ./pingpong" starts a process for each.
package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/doorbell-net/doorbell"
	"github.com/doorbell-net/doorbell/gin"
	"github.com/doorbell-net/doorbell/gpu"
)

const rounds = 1000 // how often it goes there and back

// Args of the kernel. Win has the message that came last.
type Args struct {
	DC  gin.DevComm
	Win gin.Window
}

// PingPong sends the even messages from rank 0 and the odd ones from rank 1. Message i is i*i+1.
//
//gpu:kernel
func PingPong(t gpu.Thread, a Args) {
	c, us, world := gin.Open(&a.DC, 0), gin.ByWarp(t), gin.World(&a.DC)
	message, peer := gpu.Cast[uint64](a.Win.Base), 1-world.Rank
	for i := range uint64(2 * rounds) {
		if i%2 == uint64(world.Rank) {
			c.PutValue(us, world, peer, a.Win, 0, i*i+1, 8, gin.StrongInc(0))
		} else if s := c.WaitSignal(us, 0, i/2+1, 64, gin.FromPeer(world, peer)); s != gin.OK {
			panic("no answer: " + s.String())
		} else if message.Load() != i*i+1 {
			panic("a message is wrong")
		}
	}
}

func rank(ctx context.Context, c *doorbell.Comm) error {
	if c.Size() != 2 {
		return fmt.Errorf("rank %d of %d: pingpong is for 2 ranks", c.Rank(), c.Size())
	}
	buf, err1 := c.Alloc(8)
	win, err2 := c.Register(ctx, buf)
	dc, err3 := c.DevComm(ctx, doorbell.Needs{Signals: 1})
	if err := errors.Join(err1, err2, err3); err != nil {
		return err
	}
	st, args := c.Stream(), Args{dc.Device(), win.Device()}
	if err := errors.Join(doorbell.Launch(st, PingPongKernel, doorbell.Grid{Blocks: 1, Warps: 1}, args), st.Wait(ctx)); err != nil {
		return err
	}
	_, err := fmt.Printf("rank %d of %d: %d messages received, all right\n", c.Rank(), c.Size(), rounds)
	return err
}

func main() { doorbell.Main(2, rank) }
