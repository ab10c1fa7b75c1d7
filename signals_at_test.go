// SPDX-License-Identifier: Apache-2.0

package doorbell_test

import (
	"github.com/doorbell-net/doorbell"
	"github.com/doorbell-net/doorbell/gin"
	"github.com/doorbell-net/doorbell/gpu"
)

// signalWindow is a window of so many signals.
func (r *rank) signalWindow(n int) *doorbell.SignalWindow {
	w, err := r.RegisterSignals(r.ctx, n)
	r.must(err)
	return w
}

// progSignalsAt raises signals at addresses by all four actions, with a payload, with a counter, and without either, by the
// network and by LSA peers, and resets them.
func progSignalsAt(r *rank) {
	dc := r.devComm(doorbell.Needs{Contexts: 2, Signals: 1, Counters: 1, Barriers: 1})
	// Sizes differ: each rank has one word for each source, and one more for each rank before it.
	sw := r.signalWindow(r.Size() + 1 + r.Rank())
	recv, send := r.window(300*r.Size()), r.window(300)
	r.run(func(t gpu.Thread) {
		d, co, w := dc.Device(), gin.ByThread(t), sw.Device()
		c, world := gin.Open(&d, 1), gin.World(&d)
		mine, n := uint64(8*r.Rank()), uint64(r.Size())
		sum := uint64(0)
		for round := range 60 {
			acts := []gin.Action{gin.StrongIncAt(w, mine), gin.WeakIncAt(w, mine), gin.StrongAddAt(w, mine, 1<<40+5), gin.WeakAddAt(w, mine, 1<<63)}
			adds := []uint64{1, 1, 1<<40 + 5, 1 << 63}
			act, bytes := acts[round%4].Counter(0), []int{0, 5, 8, 100, 300}[round%5]
			sum += adds[round%4]
			fill(view(send.Device(), 0, 300), byte(round)^byte(r.Rank()))
			for p := range world.Ranks {
				switch {
				case round%7 == 6:
					ok(c.Signal(co, world, p, act), "signal")
				case bytes == 5:
					ok(c.PutValue(co, world, p, recv.Device(), uint64(300*r.Rank()), 0x0101010101010101*uint64(byte(round)^byte(r.Rank())), 5, act), "put value")
				default:
					ok(c.Put(co, world, p, recv.Device(), uint64(300*r.Rank()), send.Device(), 0, uint64(bytes), act), "put")
				}
			}
			for p := range world.Ranks {
				off := uint64(8 * p)
				// Half of the values lie in the half that counts as earlier: it is the exact value that is waited for.
				ok(c.WaitSignalAt(co, w, off, sum, 64, gin.FromPeer(world, p)), "wait for rank %d", p)
				if got := c.ReadSignalAt(w, off); got != sum {
					panic("a signal at an address has another value than was added")
				}
				if round%7 != 6 {
					same(view(recv.Device(), 300*int(p), bytes), fill(make([]byte, bytes), byte(round)^byte(p)), "round %d, rank %d", round, p)
				}
			}
			ok(c.WaitCounter(co, 0, uint64(round+1)*n, 64, gin.FromTeam(world)), "counter")
			ok(c.Barrier(co, world, 0, gin.FencePut), "barrier")
		}
		// LSA peers and the network add to one signal.
		lsa := gin.LSA(&d)
		ok(c.ResetSignalAt(co, w, 8*n), "reset")
		ok(c.Barrier(co, world, 0, gin.FencePut), "barrier")
		next := (lsa.Rank + 1) % lsa.Ranks
		ok(c.LSASignalAt(co, next, w, 8*n, 7), "LSA signal")
		ok(c.Signal(co, lsa, next, gin.StrongAddAt(w, 8*n, 1<<50)), "signal")
		ok(c.WaitSignalAt(co, w, 8*n, 1<<50+7, 64, gin.FromTeam(lsa)), "wait for both")
		ok(c.Barrier(co, world, 0, gin.FencePut), "barrier")
		ok(c.ResetSignalAt(co, w, 8*n), "reset")
		if got := c.ReadSignalAt(w, 8*n); got != 0 {
			panic("a signal that was reset is not 0")
		}
		refuseAt(t, r, &c, w, recv.Device())
		ok(c.Barrier(co, world, 0, gin.FencePut), "barrier")
	})
	r.sync()
	stale := sw.Device()
	r.drop(sw)
	r.sync()
	r.run(func(t gpu.Thread) {
		d, co := dc.Device(), gin.ByThread(t)
		c, world := gin.Open(&d, 0), gin.World(&d)
		expect(c.Signal(co, world, 0, gin.StrongIncAt(stale, 0)), gin.Invalid, "a window that was closed")
		expect(c.WaitSignalAt(co, stale, 0, 0, 64, gin.FromAny()), gin.Invalid, "wait at a window that was closed")
	})
	r.drop(dc, recv, send)
}

// refuseAt asks for what a window of signals does not have.
func refuseAt(t gpu.Thread, r *rank, c *gin.Context, w gin.SignalWindow, recv gin.Window) {
	d := c.DevComm()
	co, world := gin.ByThread(t), gin.World(d)
	for _, off := range []uint64{1, 4, 12, uint64(8 * (r.Size() + 1)), 1 << 63, 1<<64 - 8, 1<<64 - 1} {
		expect(c.Signal(co, world, 0, gin.StrongIncAt(w, off)), gin.Invalid, "signal at %d", off)
		expect(c.PutValue(co, world, 0, recv, 0, 1, 8, gin.WeakAddAt(w, off, 1)), gin.Invalid, "put with a signal at %d", off)
		if off&7 != 0 || off >= w.Size {
			expect(c.WaitSignalAt(co, w, off, 0, 64, gin.FromAny()), gin.Invalid, "wait at %d", off)
			expect(c.ResetSignalAt(co, w, off), gin.Invalid, "reset at %d", off)
			if c.ReadSignalAt(w, off) != 0 {
				panic("a signal that is not there has a value")
			}
		}
	}
	expect(c.Signal(co, world, 0, gin.StrongIncAt(gin.SignalWindow{}, 0)), gin.Invalid, "signal in no window")
	expect(c.LSASignalAt(co, d.LSASize, w, 0, 1), gin.Invalid, "LSA signal of a peer that is not there")
	for _, bits := range []int32{0, 65, -1} {
		expect(c.WaitSignalAt(co, w, 0, 0, bits, gin.FromAny()), gin.Invalid, "wait with %d bits", bits)
	}
}

// progShadows follows signals by their shadows, over launches.
func progShadows(r *rank) {
	dc := r.devComm(doorbell.Needs{Contexts: 2, Signals: 3, Barriers: 1})
	n := uint64(r.Size())
	for launch := range uint64(3) {
		r.startLanes(doorbell.Grid{Blocks: 1, Warps: 2}, func(t gpu.Thread) {
			d, co := dc.Device(), gin.ByBlock(t)
			c, world := gin.Open(&d, 1), gin.World(&d)
			for round := range uint64(20) {
				for p := range world.Ranks {
					ok(c.Signal(co, world, p, gin.StrongAdd(1, round+1)), "signal")
				}
				if t.Index() == 0 {
					ok(c.AddShadow(0, n), "add to a shadow")
				}
				for p := range world.Ranks {
					ok(c.Signal(co, world, p, gin.WeakInc(0)), "signal")
				}
				ok(c.WaitMeet(co, 0, gin.FromTeam(world)), "meet")
				if t.Index() == 0 && c.ReadSignal(0) < c.Shadow(0) {
					panic("a signal was met that has not come so far")
				}
				was := c.Shadow(1)
				before, delta, s := c.WaitFollow(co, 1, n*(round+1), gin.FromTeam(world))
				ok(s, "follow")
				if before != was || delta < n*(round+1) || c.Shadow(1) != before+delta {
					panic("a shadow was followed to somewhere else")
				}
				ok(c.Barrier(co, world, 0, gin.FencePut), "barrier")
			}
			if other := gin.Open(&d, 0); other.Shadow(0) != 0 {
				panic("another context's shadow moved")
			}
			expect(c.AddShadow(3, 1), gin.Invalid, "a shadow that is not there")
			expect(c.WaitMeet(co, -1, gin.FromAny()), gin.Invalid, "meet what is not there")
			_, _, s := c.WaitFollow(co, 3, 1, gin.FromAny())
			expect(s, gin.Invalid, "follow what is not there")
			if launch == 2 {
				ok(c.ResetSignal(co, 1), "reset")
				if c.Shadow(1) != 0 {
					panic("a reset left the shadow")
				}
			}
		})
		r.wait()
	}
	r.sync()
	r.drop(dc)
}

// progHints posts with all hints and in each sharing mode; nothing is lost, and nothing waits for the sweep for ever.
func progHints(r *rank) {
	for _, sharing := range []doorbell.Sharing{doorbell.SharedByAll, doorbell.OneBlock, doorbell.OneThread} {
		const depth = 8
		rounds := r.fewer(100)
		dc := r.devComm(doorbell.Needs{Signals: 2, Counters: 1, Barriers: 1, QueueDepth: depth, Sharing: sharing})
		recv, send := r.window(8*r.Size()), r.window(8)
		r.run(func(t gpu.Thread) {
			d, co := dc.Device(), gin.ByThread(t)
			c, world := gin.Open(&d, 0), gin.World(&d)
			c.SetReleased(gpu.ScopeSys) // nothing is put but numbers
			for round := range uint64(rounds) {
				for i := range depth {
					act := gin.WeakInc(0).Counter(0).SkipCredit()
					if i < depth-1 {
						act = act.Aggregate()
					}
					for p := range world.Ranks {
						ok(c.PutValue(co, world, p, recv.Device(), uint64(8*r.Rank()), round, 8, act), "put")
					}
				}
				ok(c.WaitSignal(co, 0, (round+1)*depth*uint64(world.Ranks), 64, gin.FromTeam(world)), "wait")
				for p := range world.Ranks {
					if v := gpu.Cast[uint64](recv.Device().Base).At(int(p)).Load(); v != round {
						panic("a value is of another round")
					}
				}
				ok(c.Barrier(co, world, 0, gin.FencePut), "barrier")
				ok(c.Flush(co), "flush: the next ones have room, the barrier's are gone too")
			}
			// What is never announced is found all the same.
			ok(c.Signal(co, world, world.Rank, gin.WeakInc(1).Aggregate()), "signal that no hint tells of")
			ok(c.WaitSignal(co, 1, 1, 64, gin.FromPeer(world, world.Rank)), "wait for it")
		})
		r.sync()
		r.drop(dc, recv, send)
	}
}
