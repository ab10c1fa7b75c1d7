// SPDX-License-Identifier: Apache-2.0

package doorbell_test

import (
	"slices"

	"github.com/doorbell-net/doorbell"
	"github.com/doorbell-net/doorbell/gin"
	"github.com/doorbell-net/doorbell/gpu"
	"github.com/doorbell-net/doorbell/netplugin/shm"
)

// progGets gets from each rank, itself too, what that rank alone can have written, and looks at every byte around it.
func progGets(r *rank) {
	const most = shm.MaxBytes + 4099 // one piece is not enough
	dc := r.devComm(doorbell.Needs{Signals: 1, Counters: 1})
	src, into := r.window(most+64+r.Rank()), r.window(most+64)
	fillPattern(src.Buffer().Bytes(), r.Rank())
	r.sync()
	r.run(func(t gpu.Thread) {
		d, co := dc.Device(), gin.ByThread(t)
		c, world := gin.Open(&d, 0), gin.World(&d)
		all := view(into.Device(), 0, most+64)
		counted := uint64(0)
		for k, n := range []int{0, 1, 7, 8, 9, 255, 256, 257, 4097, most} {
			far, near := []int{0, 1, 8, 13}[k%4], []int{3, 8, 0, 5}[k%4]
			for p := range world.Ranks {
				fill(all, canary)
				want := slices.Clone(all)
				for i := range n {
					want[near+i] = pattern(int(p), far+i)
				}
				get := func(act gin.Action) {
					ok(c.Get(co, world, p, src.Device(), uint64(far), into.Device(), uint64(near), uint64(n), act), "get %d bytes of %d", n, p)
				}
				switch k % 3 {
				case 0:
					get(gin.None())
					ok(c.FlushPeer(co, world, p), "flush")
				case 1:
					get(gin.None().Counter(0))
					counted++
					ok(c.WaitCounter(co, 0, counted, 64, gin.FromPeer(world, p)), "wait for the counter")
				case 2:
					get(gin.None())
					req, s := c.FlushAsync(co, world, p)
					ok(s, "flush async")
					ok(c.Wait(co, req), "wait for the request")
				}
				same(all, want, "%d bytes at %d of rank %d", n, far, p)
			}
		}
		last := world.Ranks - 1
		size := uint64(most+64) + uint64(last)
		bad := func(far gin.Window, farOff uint64, near gin.Window, nearOff, n uint64, act gin.Action, what string) {
			expect(c.Get(co, world, last, far, farOff, near, nearOff, n, act), gin.Invalid, "get %s", what)
		}
		bad(src.Device(), size-7, into.Device(), 0, 8, gin.None(), "past the end of the peer's window")
		bad(src.Device(), 1<<64-4, into.Device(), 0, 8, gin.None(), "whose end overflows")
		bad(src.Device(), 0, into.Device(), most+57, 8, gin.None(), "past the end of this rank's window")
		bad(src.Device(), 0, into.Device(), 0, 8, gin.StrongInc(0), "with a signal")
		bad(src.Device(), 0, into.Device(), 0, 8, gin.WeakAdd(0, 0), "with a signal that adds nothing")
		bad(src.Device(), 0, into.Device(), 0, 8, gin.None().Counter(1), "with a counter that is not there")
		bad(gin.Window{}, 0, into.Device(), 0, 8, gin.None(), "of no window")
		bad(src.Device(), 0, gin.Window{}, 0, 8, gin.None(), "into no window")
		ok(c.Flush(co), "flush: nothing was posted by what was refused")
	})
	r.sync()
	r.drop(dc, src, into)
}

// progRequests tells early and late requests apart, of one peer and of all.
func progRequests(r *rank) {
	dc := r.devComm(doorbell.Needs{Contexts: 2, Counters: 1})
	recv, send, reqs := r.window(64*r.Size()), r.window(64), r.window(32*r.Size())
	r.sync()
	r.run(func(t gpu.Thread) {
		d, co := dc.Device(), gin.ByThread(t)
		c, world := gin.Open(&d, 1), gin.World(&d)
		ok(c.Wait(co, gin.Request{}), "a request for nothing")
		if done, s := c.Test(t, gin.Request{}); !done || s != gin.OK {
			panic("a request for nothing is not done")
		}
		if c.Requests() != world.Ranks {
			panic("not a request for each peer")
		}
		into := gpu.Cast[gin.Request](reqs.Device().Base)
		puts := uint64(0)
		for round := range 200 {
			for p := range world.Ranks {
				ok(c.Put(co, world, p, recv.Device(), uint64(64*r.Rank()), send.Device(), 0, 64, gin.None().Counter(0)), "put")
				puts++
			}
			peer := int32(round) % world.Ranks
			one, s := c.FlushAsync(co, world, peer)
			ok(s, "flush async")
			ok(c.FlushAllAsync(co, into), "flush all async")
			switch round % 3 {
			case 0:
				ok(c.Wait(co, one), "wait")
				ok(c.WaitAll(co, into), "wait for all")
			case 1:
				for done := false; !done; {
					done, s = c.TestAll(t, into)
					ok(s, "test all")
				}
				if done, s := c.Test(t, one); !done || s != gin.OK {
					panic("all are done, and one is not")
				}
			case 2:
				for done := false; !done; {
					done, s = c.Test(t, one)
					ok(s, "test")
				}
				ok(c.WaitAll(co, into), "wait for all")
			}
			if got := c.ReadCounter(0); got != puts {
				panic("a request was done before the puts that it stands for")
			}
		}
		other := gin.Open(&d, 0)
		req, s := c.FlushAsync(co, world, 0)
		ok(s, "flush async")
		expect(other.Wait(co, req), gin.Invalid, "a request of another context")
		if done, s := other.Test(t, req); done || s != gin.Invalid {
			panic("a request of another context is tested")
		}
		_, s = c.FlushAsync(co, world, world.Ranks)
		expect(s, gin.Invalid, "a request of a peer that is not there")
	})
	r.sync()
	r.drop(dc, recv, send, reqs)
}

// progFenceContexts puts by many contexts, and raises one signal when all of it is at the target.
func progFenceContexts(r *rank) {
	const contexts, part = 3, 700
	dc := r.devComm(doorbell.Needs{Contexts: contexts, Signals: 1, Barriers: 1, Fence: true})
	recv, send := r.window(contexts*part*r.Size()), r.window(part)
	r.run(func(t gpu.Thread) {
		d, co := dc.Device(), gin.ByThread(t)
		world := gin.World(&d)
		first := gin.Open(&d, 0)
		to, from := (world.Rank+1)%world.Ranks, (world.Rank+world.Ranks-1)%world.Ranks
		for round := range uint64(100) {
			fill(view(send.Device(), 0, part), byte(round)^byte(r.Rank()))
			for x := range int32(contexts) {
				c := gin.Open(&d, x)
				ok(c.Put(co, world, to, recv.Device(), uint64((r.Rank()*contexts+int(x))*part), send.Device(), 0, part, gin.None()), "put")
			}
			ok(first.FenceContexts(co, world, to, 0, contexts), "fence")
			ok(first.Signal(co, world, to, gin.WeakInc(0)), "signal")
			ok(first.WaitSignal(co, 0, round+1, 64, gin.FromPeer(world, from)), "wait")
			want := fill(make([]byte, contexts*part), byte(round)^byte(from))
			same(view(recv.Device(), int(from)*contexts*part, contexts*part), want, "round %d", round)
			ok(first.Barrier(co, world, 0, gin.FencePut), "barrier")
		}
		expect(first.FenceContexts(co, world, to, 1, contexts), gin.Invalid, "a context that is not there")
		expect(first.FenceContexts(co, world, to, -1, 1), gin.Invalid, "a context below 0")
		expect(first.FenceContexts(co, world, world.Ranks, 0, 1), gin.Invalid, "a peer that is not there")
		ok(first.FenceContexts(co, world, to, 0, 0), "no contexts")
	})
	r.sync()
	r.drop(dc, recv, send)
}
