// SPDX-License-Identifier: Apache-2.0

// Alltoall: the kernel of each rank sends a chunk to each rank, and each rank checks what it got. As it is, four ranks
// run in this process; "doorbell run -n 4 -- ./alltoall" starts a process for each.
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

const launched, chunk = "DOORBELL_RANK", 64 << 10 // set by "doorbell run"; bytes from each rank to each

// Args of the kernel. Win has a chunk to send to each rank, and then room for the one of each rank.
type Args struct {
	DC  gin.DevComm
	Win gin.Window
}

// AllToAll sends, and waits until the signal 0 that each put raises says that all have come.
//
//gpu:kernel
func AllToAll(t gpu.Thread, a Args) {
	c, me, world := gin.Open(&a.DC, 0), gin.ByThread(t), gin.World(&a.DC)
	for p := range world.Ranks {
		c.Put(me, world, p, a.Win, uint64(world.Ranks+world.Rank)*chunk, a.Win, uint64(p)*chunk, chunk, gin.SignalInc(0))
	}
	if s := c.WaitSignal(me, 0, uint64(world.Ranks), 64, gin.FromTeam(world)); s != gin.OK {
		panic("not all chunks came: " + s.String())
	}
}

// value is byte i of what a rank sends.
func value(rank, i int) byte { return byte(17*rank + i%251) }

func rank(c *doorbell.Comm) {
	ctx, st, half := context.Background(), c.Stream(), c.Size()*chunk
	buf := must(c.Alloc(2 * half))
	win, dc := must(c.Register(ctx, buf)), must(c.DevComm(ctx, doorbell.Needs{Signals: 1}))
	for i := range half {
		buf.Bytes()[i] = value(c.Rank(), i)
	}
	must(st, doorbell.Launch(st, Kernel, doorbell.Grid{Blocks: 1, Warps: 1}, Args{dc.Device(), win.Device()}))
	must(st, st.Wait(ctx))
	for i, b := range buf.Bytes()[half:] {
		if b != value(i/chunk, c.Rank()*chunk+i%chunk) {
			log.Fatalf("rank %d of %d: byte %d from rank %d is wrong", c.Rank(), c.Size(), i%chunk, i/chunk)
		}
	}
	fmt.Printf("rank %d of %d: %d bytes received, all right\n", c.Rank(), c.Size(), half)
	must(c, c.Barrier(ctx)) // nobody leaves while another may still want its bytes
	must(c, c.Close())
}

func main() {
	if os.Getenv(launched) != "" {
		rank(must(doorbell.Open(context.Background(), doorbell.Options{})))
		return
	}
	var all sync.WaitGroup
	for _, c := range must(doorbell.Local(4)) {
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
