// SPDX-License-Identifier: Apache-2.0

package layers

import (
	"github.com/doorbell-net/doorbell/gin"
	"github.com/doorbell-net/doorbell/gpu"
)

// Args of each kernel here.
type Args struct {
	DC      gin.DevComm
	Out     gin.Window       // two halves used in turn; a half has a slot of Tiles tiles for each rank
	In      gpu.Ptr[float32] // RMSNorm: Tiles rows of Width elements; GEMV: Depth elements of the vector
	Weights gpu.Ptr[float32] // RMSNorm: Width gains; GEMV: Tiles*Width rows of Depth elements
	Sum     gpu.Ptr[float32] // GEMV: Tiles*Width sums over the ranks
	Failed  gpu.Ptr[uint32]  // the status of a call that failed, for the host to read
	Half    uint64           // where this round's half of Out begins, in bytes
	Sent    uint64           // tiles that each rank has sent when this round is over
	Tiles   int32
	Width   int32 // elements of a tile
	Depth   int32
	Stores  int32 // 1: LSA peers get tiles by stores into their windows, 0: by puts
}

// NormGather is RMSNorm and all-gather in one: a tile leaves as soon as its warp has it, while others are computed.
//
//gpu:kernel warps=16
func NormGather(t gpu.Thread, a Args) {
	c := gin.Open(&a.DC, 0)
	for tile := warp(t); tile < a.Tiles; tile += warps(t) {
		a.norm(t, tile)
		a.sendAll(t, &c, tile)
	}
	a.arrive(t, &c)
}

// Norm is RMSNorm alone.
//
//gpu:kernel
func Norm(t gpu.Thread, a Args) {
	for tile := warp(t); tile < a.Tiles; tile += warps(t) {
		a.norm(t, tile)
	}
}

// MultiplyReduce is GEMV and all-reduce in one.
//
//gpu:kernel warps=16
func MultiplyReduce(t gpu.Thread, a Args) {
	c := gin.Open(&a.DC, 0)
	for tile := warp(t); tile < a.Tiles; tile += warps(t) {
		a.multiply(t, tile)
		a.sendAll(t, &c, tile)
	}
	if !a.arrive(t, &c) {
		return
	}
	for tile := warp(t); tile < a.Tiles; tile += warps(t) {
		a.reduce(t, tile)
	}
}

// Multiply is GEMV alone.
//
//gpu:kernel
func Multiply(t gpu.Thread, a Args) {
	for tile := warp(t); tile < a.Tiles; tile += warps(t) {
		a.multiply(t, tile)
	}
}

// Gather sends all tiles of this rank, which an earlier kernel has computed, and waits for those of the others.
//
//gpu:kernel warps=16
func Gather(t gpu.Thread, a Args) {
	c := gin.Open(&a.DC, 0)
	for k := 1 + warp(t); k < a.DC.Ranks; k += warps(t) {
		a.send(t, &c, k, 0, a.Tiles)
	}
	a.arrive(t, &c)
}

// GatherReduce is Gather, and then the sums.
//
//gpu:kernel warps=16
func GatherReduce(t gpu.Thread, a Args) {
	c := gin.Open(&a.DC, 0)
	for k := 1 + warp(t); k < a.DC.Ranks; k += warps(t) {
		a.send(t, &c, k, 0, a.Tiles)
	}
	if !a.arrive(t, &c) {
		return
	}
	for tile := warp(t); tile < a.Tiles; tile += warps(t) {
		a.reduce(t, tile)
	}
}

// Reduce adds up what an earlier kernel has gathered.
//
//gpu:kernel
func Reduce(t gpu.Thread, a Args) {
	for tile := warp(t); tile < a.Tiles; tile += warps(t) {
		a.reduce(t, tile)
	}
}

// warp is this warp's place in the grid, warps how many there are.
func warp(t gpu.Thread) int32  { return t.Block()*t.Warps() + t.Warp() }
func warps(t gpu.Thread) int32 { return t.Blocks() * t.Warps() }

// offset is where a tile of a rank's slot begins in this round's half of Out, in bytes. A rank computes into its own
// slot, and sends from there: the others have the same slot at the same offset.
func (a *Args) offset(rank, tile int32) uint64 {
	return a.Half + (uint64(rank)*uint64(a.Tiles)+uint64(tile))*uint64(a.Width)*4
}

func (a *Args) tile(rank, tile int32) gpu.Ptr[float32] {
	return gpu.Cast[float32](a.Out.Base.Byte(a.offset(rank, tile)))
}

// sendAll sends a tile that this warp has just computed to all other ranks.
func (a *Args) sendAll(t gpu.Thread, c *gin.Context, tile int32) {
	t.SyncWarp() // what follows is of the whole warp's stores, so that each lane's come before it
	if a.Stores == 0 || a.DC.LSASize < a.DC.Ranks {
		// One release for the puts to all of them. Where there are none the signals release what was stored.
		gpu.Fence(gpu.Release, gpu.ScopeSys)
		c.SetReleased(gpu.ScopeSys)
	}
	for k := int32(1); k < a.DC.Ranks; k++ {
		a.send(t, c, k, tile, 1)
	}
}

// send sends tiles to rank k after this one: not all to rank 0 first. They count in the signal that has this rank's number.
func (a *Args) send(t gpu.Thread, c *gin.Context, k, tile, tiles int32) {
	co, world := gin.ByWarp(t), gin.World(&a.DC)
	peer, at := (world.Rank+k)%world.Ranks, a.offset(world.Rank, tile)
	bytes := uint64(tiles) * uint64(a.Width) * 4
	near := gin.LSARank(&a.DC, peer)
	if a.Stores == 0 || near < 0 {
		a.note(c.Put(co, world, peer, a.Out, at, a.Out, at, bytes, gin.StrongAdd(world.Rank, uint64(tiles))))
		return
	}
	s := c.LSAPut(co, near, a.Out, at, a.Out.Base.Byte(at), bytes)
	if s == gin.OK {
		s = c.LSASignal(co, near, world.Rank, uint64(tiles))
	}
	a.note(s)
}

// arrive waits until all tiles of the other ranks are here, and those of this one have left. A block waits as one: the fewer
// threads look at a signal, the less they are in the way of who moves the data.
func (a *Args) arrive(t gpu.Thread, c *gin.Context) bool {
	co, world := gin.ByBlock(t), gin.World(&a.DC)
	for k := int32(1); k < world.Ranks; k++ {
		peer := (world.Rank + world.Ranks - k) % world.Ranks
		if !a.note(c.WaitSignal(co, peer, a.Sent, 64, gin.FromPeer(world, peer))) {
			return false
		}
	}
	return a.note(c.Flush(co))
}

// note keeps a status for the host, unless it is OK. That of any warp is as good as another's.
func (a *Args) note(s gin.Status) bool {
	if s != gin.OK {
		gpu.Store(a.Failed, uint32(s), gpu.Relaxed, gpu.ScopeSys)
	}
	return s == gin.OK
}
