// SPDX-License-Identifier: Apache-2.0

// Kvhandoff: prefill ranks, which have large windows, put the key-value blocks of a prompt into decode ranks, which have
// small ones. Each block is sent as soon as it is computed, and raises one signal. A prompt here is a block longer than a
// decode rank has room for: that block is refused at its source, and nothing of it is written. 2 prefill and 2 decode ranks
// here, or "doorbell run -n N -- ./kvhandoff": the first half of them are prefill ranks.
package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/doorbell-net/doorbell"
	"github.com/doorbell-net/doorbell/gin"
	"github.com/doorbell-net/doorbell/gpu"
)

const (
	words  = 4096      // of a block, 8 bytes each
	block  = 8 * words // bytes
	pages  = 8         // blocks that a decode rank has room for
	cache  = 64        // and a prefill rank
	prompt = pages + 1
)

// Args of both kernels. Put is the status of each block's put.
type Args struct {
	DC  gin.DevComm
	Win gin.Window
	Put gpu.Ptr[gin.Status]
}

// content is a word of a block of what a rank has computed. A decode rank computes it too, to compare.
func content(rank, i, word int32) uint64 {
	return (uint64(rank+1)<<40 | uint64(i)<<20 | uint64(word)) * 0x9e3779b97f4a7c15
}

// Prefill computes blocks, the last one first, and puts block i into page i of its decode rank.
//
//gpu:kernel
func Prefill(t gpu.Thread, a Args) {
	c, world := gin.Open(&a.DC, 0), gin.World(&a.DC)
	for i := int32(prompt - 1); i >= 0; i-- {
		at := uint64(i) * block
		for w := t.Index(); w < words; w += t.Threads() {
			gpu.Cast[uint64](a.Win.Base.Byte(at)).At(int(w)).Store(content(world.Rank, i, w))
		}
		if t.SyncBlock(); t.Index() == 0 { // all threads have written their words: one sends them
			s := c.Put(gin.ByThread(t), world, world.Rank+world.Ranks/2, a.Win, at, a.Win, at, block, gin.StrongInc(0))
			a.Put.At(int(i)).Store(s)
		}
	}
	if s := c.Flush(gin.ByBlock(t)); s != gin.OK {
		panic("not all blocks left: " + s.String())
	}
}

// Decode takes the blocks as they come. Had the one that does not fit raised a signal, it would look at a page too early.
//
//gpu:kernel
func Decode(t gpu.Thread, a Args) {
	c, us, world := gin.Open(&a.DC, 0), gin.ByBlock(t), gin.World(&a.DC)
	from := world.Rank - world.Ranks/2
	for i := int32(pages - 1); i >= 0; i-- {
		if s := c.WaitSignal(us, 0, uint64(pages-i), 64, gin.FromPeer(world, from)); s != gin.OK {
			panic("a block did not come: " + s.String())
		}
		for w := t.Index(); w < words; w += t.Threads() {
			if gpu.Cast[uint64](a.Win.Base.Byte(uint64(i)*block)).At(int(w)).Load() != content(from, i, w) {
				panic("a block is wrong")
			}
		}
	}
}

func rank(ctx context.Context, c *doorbell.Comm) error {
	half := c.Size() / 2
	if c.Size() != 2*half {
		return fmt.Errorf("rank %d of %d: kvhandoff is for an even number of ranks", c.Rank(), c.Size())
	}
	kernel, room := PrefillKernel, cache
	if c.Rank() >= half {
		kernel, room = DecodeKernel, pages
	}
	buf, err1 := c.Alloc(room * block)
	put, err2 := c.AllocHost(4 * prompt)
	if err := errors.Join(err1, err2); err != nil {
		return err
	}
	win, err1 := c.Register(ctx, buf) // each rank with a size of its own
	dc, err2 := c.DevComm(ctx, doorbell.Needs{Signals: 1})
	if err := errors.Join(err1, err2); err != nil {
		return err
	}
	st, args := c.Stream(), Args{dc.Device(), win.Device(), gpu.Cast[gin.Status](put.Ptr())}
	if err := errors.Join(doorbell.Launch(st, kernel, doorbell.Grid{Blocks: 1, Warps: 4}, args), st.Wait(ctx)); err != nil {
		return err
	}
	if c.Rank() >= half {
		_, err := fmt.Printf("rank %d of %d: %d blocks received, all right\n", c.Rank(), c.Size(), pages)
		return err
	}
	for i := range prompt {
		s, want := gin.Status(binary.NativeEndian.Uint32(put.Bytes()[4*i:])), gin.OK
		if i >= pages {
			want = gin.Invalid
		}
		if s != want {
			return fmt.Errorf("rank %d of %d: the put of block %d is wrong: %v, must be %v", c.Rank(), c.Size(), i, s, want)
		}
	}
	_, err := fmt.Printf("rank %d of %d: %d blocks sent; block %d of %d bytes does not fit rank %d's window of %d: %v\n",
		c.Rank(), c.Size(), pages, pages, block, c.Rank()+half, pages*block, gin.Invalid)
	return err
}

func main() { doorbell.Main(4, rank) }
