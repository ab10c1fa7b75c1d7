// SPDX-License-Identifier: Apache-2.0

// Pingpong: the kernels of two ranks send a message there and back, and each checks every message it got. As it is, both
// ranks run in this process; "doorbell run -n 2 -- ./pingpong" starts a process for each.
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"sync"

	"github.com/doorbell-net/doorbell"
	"github.com/doorbell-net/doorbell/gin"
	"github.com/doorbell-net/doorbell/gpu"
)

const launched, rounds = "DOORBELL_RANK", 1000 // set by "doorbell run"; how often it goes there and back

// Args of the kernel. Win has the message that came last.
type Args struct {
	DC  gin.DevComm
	Win gin.Window
}

// PingPong sends the even messages from rank 0 and the odd ones from rank 1. Message i is i*i+1.
//
//gpu:kernel
func PingPong(t gpu.Thread, a Args) {
	c, me, world := gin.Open(&a.DC, 0), gin.ByThread(t), gin.World(&a.DC)
	message, peer := gpu.Cast[uint64](a.Win.Base), 1-world.Rank
	for i := range uint64(2 * rounds) {
		if i%2 == uint64(world.Rank) {
			c.PutValue(me, world, peer, a.Win, 0, i*i+1, 8, gin.SignalInc(0))
		} else if s := c.WaitSignal(me, 0, i/2+1, 64, gin.FromPeer(world, peer)); s != gin.OK {
			panic("no answer: " + s.String())
		} else if message.Load() != i*i+1 {
			panic("a message is wrong")
		}
	}
}

func rank(c *doorbell.Comm) {
	ctx, st := context.Background(), c.Stream()
	if c.Size() != 2 {
		log.Fatalf("rank %d of %d: pingpong is for 2 ranks", c.Rank(), c.Size())
	}
	buf := must(c.Alloc(8))
	win, dc := must(c.Register(ctx, buf)), must(c.DevComm(ctx, doorbell.Needs{Signals: 1}))
	must(st, doorbell.Launch(st, Kernel, doorbell.Grid{Blocks: 1, Warps: 1}, Args{dc.Device(), win.Device()}))
	must(st, st.Wait(ctx))
	fmt.Printf("rank %d of %d: %d messages received, all right\n", c.Rank(), c.Size(), rounds)
	must(c, c.Barrier(ctx)) // nobody leaves while another may still want its bytes
	must(c, c.Close())
}

func main() {
	if os.Getenv(launched) != "" {
		rank(must(doorbell.Open(context.Background(), doorbell.Options{})))
		return
	}
	var all sync.WaitGroup
	for _, c := range must(doorbell.Local(2)) {
		all.Go(func() { rank(c) })
	}
	all.Wait()
}

func must[T any](v T, err error) T {
	if err != nil {
		log.Fatal(err)
	}
	return v
}
