// SPDX-License-Identifier: Apache-2.0

package doorbell_test

import (
	"time"

	"github.com/doorbell-net/doorbell"
	"github.com/doorbell-net/doorbell/gin"
	"github.com/doorbell-net/doorbell/gpu"
	"github.com/doorbell-net/doorbell/internal/testenv"
)

// progWrap adds to signals across 2^32 and 2^64, by the network and by LSA peers.
func progWrap(r *rank) {
	dc := r.devComm(doorbell.Needs{Signals: 4, Barriers: 1})
	to, from := int32(r.Rank()+1)%int32(r.Size()), int32(r.Rank()+r.Size()-1)%int32(r.Size())
	r.run(func(t gpu.Thread) {
		d, co := dc.Device(), gin.ByThread(t)
		c, world := gin.Open(&d, 0), gin.World(&d)
		start := []uint64{1<<32 - 3, 1<<64 - 3}
		for id, v := range start {
			ok(c.Signal(co, world, to, gin.StrongAdd(int32(id), v)), "start value")
			ok(c.WaitSignal(co, int32(id), v, 64, gin.FromPeer(world, from)), "wait for the start value")
		}
		ok(c.Barrier(co, world, 0, gin.FencePut), "barrier")
		sum := uint64(0)
		for _, add := range []uint64{1, 1, 1, 2, 1 << 31, 1 << 32, 3, 1<<63 - 1} {
			for id := range start {
				ok(c.Signal(co, world, to, gin.StrongAdd(int32(id), add)), "add %d", add)
			}
			sum += add
			for id, v := range start {
				ok(c.WaitSignal(co, int32(id), v+sum, 64, gin.FromPeer(world, from)), "wait for %#x", v+sum)
			}
			ok(c.Barrier(co, world, 0, gin.FencePut), "barrier")
			for id, v := range start {
				if got := c.ReadSignal(int32(id)); got != v+sum {
					panic("a signal has another value than was added")
				}
			}
			ok(c.Barrier(co, world, 0, gin.FencePut), "barrier")
		}
		// Network and LSA peers add to one signal.
		lsa := gin.LSA(&d)
		ok(c.Signal(co, world, to, gin.StrongAdd(2, 1<<63)), "signal")
		ok(c.LSASignal(co, (lsa.Rank+1)%lsa.Ranks, 2, 1<<63+5), "LSA signal")
		ok(c.WaitSignal(co, 2, 5, 63, gin.FromTeam(world)), "wait for both")
		ok(c.Barrier(co, world, 0, gin.FencePut), "barrier")
		if got := c.ReadSignal(2); got != 5 {
			panic("network and LSA words do not add up")
		}
		if got := c.ReadSignal(3); got != 0 {
			panic("a signal that nobody raised is not 0")
		}
	})
	r.drop(dc)
}

// progRolling waits with each width: what is reached, what is just not, and both ends of the half that counts as
// earlier.
func progRolling(r *rank) {
	rng := testenv.Random(r)
	values := []uint64{0, 1, 1<<32 - 1, 1 << 63, ^uint64(0), rng.Uint64(), rng.Uint64()}
	dc := r.devComm(doorbell.Needs{Signals: 1})
	r.run(func(t gpu.Thread) {
		d, co := dc.Device(), gin.ByThread(t)
		c, world := gin.Open(&d, 0), gin.World(&d)
		c.SetTimeout(testBoundNs)
		now := uint64(0)
		for _, v := range values {
			ok(c.Signal(co, world, world.Rank, gin.StrongAdd(0, v-now)), "signal to itself")
			ok(c.FlushPeer(co, world, world.Rank), "flush")
			if now = c.ReadSignal(0); now != v {
				panic("a signal to itself is not there after the flush")
			}
			c.SetTimeout(10_000)
			for bits := int32(1); bits <= 64; bits++ {
				half := uint64(1) << (bits - 1)
				ok(c.WaitSignal(co, 0, v, bits, gin.FromAny()), "%d bits of %#x", bits, v)
				ok(c.WaitSignal(co, 0, v-half+1, bits, gin.FromAny()), "%d bits of %#x, the earliest", bits, v)
				expect(c.WaitSignal(co, 0, v+1, bits, gin.FromAny()), gin.Timeout, "%d bits of %#x, the next", bits, v)
				expect(c.WaitSignal(co, 0, v-half, bits, gin.FromAny()), gin.Timeout, "%d bits of %#x, the latest", bits, v)
			}
			c.SetTimeout(testBoundNs)
		}
	})
	r.drop(dc)
}

var testBoundNs = uint64(testBound)

// progReset resets a signal while it is raised. What it reads never runs backwards, and at the end nothing is lost.
func progReset(r *rank) {
	adds := uint64(r.fewer(3000))
	dc := r.devComm(doorbell.Needs{Signals: 2, Counters: 1, Barriers: 1})
	n := uint64(r.Size())
	r.start(doorbell.Grid{Blocks: 2, Warps: 1, Cooperative: true}, func(t gpu.Thread) {
		d, co := dc.Device(), gin.ByThread(t)
		c, world := gin.Open(&d, 0), gin.World(&d)
		if t.Block() == 0 {
			for range adds {
				for p := range world.Ranks {
					ok(c.Signal(co, world, p, gin.StrongInc(0).Counter(0)), "signal")
				}
			}
			for p := range world.Ranks {
				ok(c.Signal(co, world, p, gin.StrongInc(1)), "last signal")
			}
			return
		}
		for c.ReadSignal(1) < n {
			before := c.ReadSignal(0)
			if before > adds*n {
				panic("a signal ran backwards past its reset")
			}
			ok(c.ResetSignal(co, 0), "reset")
			if after := c.ReadSignal(0); after > adds*n {
				panic("a reset took more than had come")
			}
			t.Idle(0, 0)
		}
		ok(c.ResetSignal(co, 0), "reset")
		if v := c.ReadSignal(0); v != 0 {
			panic("all have come, and after a reset the signal is not 0")
		}
	})
	r.wait()
	r.sync()
	r.run(func(t gpu.Thread) {
		d, co := dc.Device(), gin.ByThread(t)
		c, world := gin.Open(&d, 0), gin.World(&d)
		ok(c.Flush(co), "flush")
		if v := c.ReadCounter(0); v != adds*n {
			panic("a counter missed some")
		}
		ok(c.ResetCounter(co, 0), "reset the counter")
		for p := range world.Ranks {
			ok(c.Signal(co, world, p, gin.StrongAdd(0, 7).Counter(0)), "signal")
		}
		ok(c.WaitSignal(co, 0, 7*n, 64, gin.FromTeam(world)), "wait after reset")
		ok(c.WaitCounter(co, 0, n, 64, gin.FromTeam(world)), "counter after reset")
		ok(c.Barrier(co, world, 0, gin.FencePut), "barrier")
		if s, k := c.ReadSignal(0), c.ReadCounter(0); s != 7*n || k != n {
			panic("a signal or a counter counts from elsewhere than its reset")
		}
	})
	r.drop(dc)
}

// progFresh makes device communicators again and again: their signals read 0 on each rank, also on one that comes
// late, and do not see those of the one before, nor miss what one that needed nothing did not have.
func progFresh(r *rank) {
	rounds, late := 6, 20*time.Millisecond
	if testenv.Long() {
		rounds, late = 6, time.Second
	}
	for i := range rounds {
		r.drop(r.devComm(doorbell.Needs{}))
		dc := r.devComm(doorbell.Needs{Contexts: 2, Signals: 3, Counters: 1})
		if i%r.Size() == r.Rank() {
			time.Sleep(late) // sleep: the rank that comes late is what is tested
		}
		r.run(func(t gpu.Thread) {
			d, co := dc.Device(), gin.ByThread(t)
			world := gin.World(&d)
			for x := range int32(2) {
				c := gin.Open(&d, x)
				if c.ReadSignal(0)|c.ReadSignal(1)|c.ReadCounter(0) != 0 {
					panic("a fresh signal or counter is not 0")
				}
				for p := range world.Ranks {
					ok(c.Signal(co, world, p, gin.StrongInc(2).Counter(0)), "signal")
				}
				ok(c.WaitSignal(co, 2, uint64(world.Ranks), 64, gin.FromTeam(world)), "wait")
			}
		})
		r.drop(dc)
		r.sync() // who has closed is not put to
	}
}
