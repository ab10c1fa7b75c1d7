// SPDX-License-Identifier: Apache-2.0

package doorbell_test

import (
	"fmt"
	"math"
	"testing"

	"github.com/doorbell-net/doorbell"
	"github.com/doorbell-net/doorbell/gin"
	"github.com/doorbell-net/doorbell/gpu"
	"github.com/doorbell-net/doorbell/internal/abi"
)

// guarded is a window with canaries on both sides, in one allocation with them.
type guarded struct {
	*doorbell.Window
	all []byte
}

func (r *rank) guarded(bytes int) guarded {
	const guard = 512
	b := r.alloc(bytes + 2*guard)
	fill(b.Bytes(), canary)
	s, err := b.Slice(guard, bytes)
	r.must(err)
	w, err := r.Register(r.ctx, s)
	r.must(err)
	return guarded{w, b.Bytes()}
}

func (g guarded) untouched(r *rank, what string) {
	r.Helper()
	for i, v := range g.all {
		if v != canary {
			r.fail("%s: byte %d of %d was written", what, i, len(g.all))
		}
	}
}

// tickets are how many operations were queued so far, by queue.
func tickets(d *gin.DevComm) []uint64 {
	n := make([]uint64, d.Contexts*d.Peers)
	for i := range n {
		n[i] = gpu.Load(gpu.PtrTo(&d.Prod.At(i).Raw().Ticket), gpu.Relaxed, gpu.ScopeSys)
	}
	return n
}

// badRange is offsets and sizes that do not lie in size bytes, overflow included.
func badRange(size uint64) [][2]uint64 {
	var bad [][2]uint64
	for _, off := range []uint64{0, 1, size - 1, size, size + 1, 1 << 31, 1 << 32, 1<<63 - 1, 1 << 63, math.MaxUint64 - 8, math.MaxUint64} {
		for _, n := range []uint64{1, 2, 8, 9, size, size + 1, 300, 1 << 48, 1 << 63, math.MaxUint64 - 1, math.MaxUint64} {
			if n > size || off > size-n {
				bad = append(bad, [2]uint64{off, n})
			}
		}
	}
	return append(bad, [2]uint64{size + 1, 0}, [2]uint64{math.MaxUint64, 0})
}

// TestRefusedAtSource calls each operation with what it must refuse: Invalid, nothing is queued, nothing is written,
// and the same call with good arguments works afterwards.
func TestRefusedAtSource(t *testing.T) {
	for _, small := range []int{8, 256} {
		t.Run(fmt.Sprint(small), func(t *testing.T) {
			each(t, local(t, 3, doorbell.Options{}), func(r *rank) { refuseAll(r, small) })
		})
	}
}

func refuseAll(r *rank, small int) {
	const own, size = 200, 100 // the window has size+rank bytes
	dc := r.devComm(doorbell.Needs{Contexts: 2, Signals: 2, Counters: 2, Barriers: 2, SmallPut: small})
	recv, send := r.guarded(size+r.Rank()), r.guarded(own)
	closed := r.window(50)
	stale := closed.Device()
	r.drop(closed)
	r.sync()
	before := make([]uint64, 0)
	r.run(func(t gpu.Thread) {
		d, co := dc.Device(), gin.ByThread(t)
		c, world := gin.Open(&d, 1), gin.World(&d)
		before = tickets(&d)
		refusePuts(&c, co, &d, recv.Device(), send.Device(), own, size)
		refuseNames(&c, co, &d, recv.Device(), send.Device(), stale)
		for i, n := range tickets(&d) {
			if n != before[i] {
				panic(fmt.Sprintf("queue %d took an operation that was refused", i))
			}
		}
		ok(c.Barrier(co, world, 1, gin.FencePut), "barrier")
		for id := range int32(2) {
			if c.ReadSignal(id)|c.ReadCounter(id) != 0 {
				panic("a refused operation raised a signal or a counter")
			}
		}
		ok(c.Barrier(co, world, 1, gin.FencePut), "barrier")
	})
	recv.untouched(r, "refused operations")
	send.untouched(r, "refused operations")
	r.sync()
	r.run(func(t gpu.Thread) {
		d, co := dc.Device(), gin.ByThread(t)
		c, world := gin.Open(&d, 1), gin.World(&d)
		p := (world.Rank + 1) % world.Ranks
		ok(c.Put(co, world, p, recv.Device(), 1, send.Device(), 2, 60, gin.StrongInc(1).Counter(1)), "good put")
		ok(c.WaitSignal(co, 1, 1, 64, gin.FromAny()), "good wait")
		ok(c.WaitCounter(co, 1, 1, 64, gin.FromAny()), "good counter")
	})
	r.sync()
	r.drop(dc, recv, send)
}

// lsaPut is an LSAPut, unless LSAArea takes what it has to refuse too.
func lsaPut(c *gin.Context, co gin.Coop, p int32, w gin.Window, off uint64, src gpu.Ptr[byte], bytes uint64) gin.Status {
	if _, s := c.LSAArea(p, w, off, bytes); s != gin.Invalid {
		return s
	}
	return c.LSAPut(co, p, w, off, src, bytes)
}

func refusePuts(c *gin.Context, co gin.Coop, d *gin.DevComm, recv, send gin.Window, own, size uint64) {
	world := gin.World(d)
	act := gin.StrongInc(0).Counter(0)
	for p := range world.Ranks {
		for _, b := range badRange(size + uint64(p)) { // the peer's size, not the own one
			expect(c.Put(co, world, p, recv, b[0], send, 0, b[1], act), gin.Invalid, "put of %d at %d of rank %d", b[1], b[0], p)
			expect(lsaPut(c, co, p, recv, b[0], send.Base, b[1]), gin.Invalid, "LSA put of %d at %d of rank %d", b[1], b[0], p)
			if b[1] >= 1 && b[1] <= 8 {
				expect(c.PutValue(co, world, p, recv, b[0], 7, b[1], act), gin.Invalid, "value of %d at %d of rank %d", b[1], b[0], p)
			}
		}
		for _, b := range badRange(own) {
			expect(c.Put(co, world, p, recv, 0, send, b[0], b[1], act), gin.Invalid, "put of %d from %d", b[1], b[0])
		}
		for _, n := range []uint64{0, 9, 16, 1 << 63, math.MaxUint64} {
			expect(c.PutValue(co, world, p, recv, 0, 7, n, act), gin.Invalid, "value of %d bytes", n)
		}
	}
}

func refuseNames(c *gin.Context, co gin.Coop, d *gin.DevComm, recv, send, stale gin.Window) {
	world, any := gin.World(d), gin.FromAny()
	ids := []int32{-1, -2, 2, 3, math.MaxInt32, math.MinInt32}
	for _, id := range ids {
		for _, act := range []gin.Action{gin.StrongInc(id), gin.StrongAdd(id, 3), gin.None().Counter(id), gin.StrongInc(0).Counter(id), gin.StrongInc(id).Counter(0)} {
			expect(c.Put(co, world, 0, recv, 0, send, 0, 20, act), gin.Invalid, "put with id %d", id)
			expect(c.PutValue(co, world, 0, recv, 0, 1, 8, act), gin.Invalid, "value with id %d", id)
			expect(c.Signal(co, world, 0, act), gin.Invalid, "signal %d", id)
		}
		expect(c.WaitSignal(co, id, 0, 64, any), gin.Invalid, "wait for signal %d", id)
		expect(c.WaitLSASignal(co, id, 0, 64, any), gin.Invalid, "wait for LSA peers' signal %d", id)
		expect(c.WaitCounter(co, id, 0, 64, any), gin.Invalid, "wait for counter %d", id)
		expect(c.ResetSignal(co, id), gin.Invalid, "reset signal %d", id)
		expect(c.ResetCounter(co, id), gin.Invalid, "reset counter %d", id)
		expect(c.LSASignal(co, 0, id, 1), gin.Invalid, "LSA signal %d", id)
		expect(c.Barrier(co, world, id, gin.FencePut), gin.Invalid, "barrier %d", id)
		expect(c.LSABarrier(co, id), gin.Invalid, "LSA barrier %d", id)
		if c.ReadSignal(id) != 0 || c.ReadLSASignal(id) != 0 || c.ReadCounter(id) != 0 {
			panic("an unknown signal or counter does not read 0")
		}
	}
	for _, p := range []int32{-1, world.Ranks, world.Ranks + 1, math.MaxInt32, math.MinInt32} {
		expect(c.Put(co, world, p, recv, 0, send, 0, 20, gin.None()), gin.Invalid, "put to %d", p)
		expect(c.PutValue(co, world, p, recv, 0, 1, 8, gin.None()), gin.Invalid, "value to %d", p)
		expect(c.Signal(co, world, p, gin.StrongInc(0)), gin.Invalid, "signal to %d", p)
		expect(c.FlushPeer(co, world, p), gin.Invalid, "flush of %d", p)
		expect(lsaPut(c, co, p, recv, 0, send.Base, 20), gin.Invalid, "LSA put to %d", p)
		expect(c.LSASignal(co, p, 0, 1), gin.Invalid, "LSA signal to %d", p)
	}
	for _, bits := range []int32{0, -1, 65, math.MaxInt32, math.MinInt32} {
		expect(c.WaitSignal(co, 0, 0, bits, any), gin.Invalid, "wait with %d bits", bits)
		expect(c.WaitLSASignal(co, 0, 0, bits, any), gin.Invalid, "wait for LSA peers with %d bits", bits)
		expect(c.WaitCounter(co, 0, 0, bits, any), gin.Invalid, "counter with %d bits", bits)
	}
	other := recv
	other.Gen++
	for i, w := range []gin.Window{stale, {}, other} {
		expect(c.Put(co, world, 0, w, 0, send, 0, 20, gin.StrongInc(0)), gin.Invalid, "put to bad window %d", i)
		expect(c.Put(co, world, 0, w, 0, send, 0, 0, gin.StrongInc(0)), gin.Invalid, "empty put to bad window %d", i)
		expect(c.Put(co, world, 0, recv, 0, w, 0, 20, gin.StrongInc(0)), gin.Invalid, "put from bad window %d", i)
		expect(c.PutValue(co, world, 0, w, 0, 1, 8, gin.StrongInc(0)), gin.Invalid, "value to bad window %d", i)
		expect(lsaPut(c, co, 0, w, 0, send.Base, 20), gin.Invalid, "LSA put to bad window %d", i)
	}
	newer := *d
	newer.Version = abi.DevCommVersion + 1
	for _, bad := range []gin.Context{gin.Open(d, -1), gin.Open(d, 2), gin.Open(d, math.MaxInt32), gin.Open(d, math.MinInt32), gin.Open(&newer, 0)} {
		expect(bad.Put(co, world, 0, recv, 0, send, 0, 20, gin.None()), gin.Invalid, "put of a bad context")
		expect(bad.PutValue(co, world, 0, recv, 0, 1, 8, gin.None()), gin.Invalid, "value of a bad context")
		expect(bad.Signal(co, world, 0, gin.StrongInc(0)), gin.Invalid, "signal of a bad context")
		expect(bad.WaitSignal(co, 0, 0, 64, any), gin.Invalid, "wait of a bad context")
		expect(bad.WaitLSASignal(co, 0, 0, 64, any), gin.Invalid, "wait for LSA peers of a bad context")
		expect(bad.WaitCounter(co, 0, 0, 64, any), gin.Invalid, "counter of a bad context")
		expect(bad.Flush(co), gin.Invalid, "flush of a bad context")
		expect(bad.FlushPeer(co, world, 0), gin.Invalid, "flush of a bad context")
		expect(bad.Barrier(co, world, 0, gin.FencePut), gin.Invalid, "barrier of a bad context")
		expect(bad.LSABarrier(co, 0), gin.Invalid, "LSA barrier of a bad context")
		expect(lsaPut(&bad, co, 0, recv, 0, send.Base, 20), gin.Invalid, "LSA put of a bad context")
		expect(bad.LSASignal(co, 0, 0, 1), gin.Invalid, "LSA signal of a bad context")
		expect(bad.ResetSignal(co, 0), gin.Invalid, "reset of a bad context")
		expect(bad.ResetCounter(co, 0), gin.Invalid, "reset of a bad context")
		if bad.ReadSignal(0) != 0 || bad.ReadCounter(0) != 0 {
			panic("a bad context reads a signal or a counter")
		}
	}
}

// TestStaleWindow registers again what was closed: the new window may have the old one's id, and a copy of the old one
// is refused all the same, at the source.
func TestStaleWindow(t *testing.T) {
	each(t, local(t, 2, doorbell.Options{}), func(r *rank) {
		dc := r.devComm(doorbell.Needs{Signals: 1, Barriers: 1})
		send := r.window(64)
		seen := map[uint32]gin.Window{}
		reused := false
		for range 10 {
			g := r.guarded(64)
			w := g.Device()
			old, again := seen[w.ID]
			seen[w.ID] = w
			r.run(func(t gpu.Thread) {
				d, co := dc.Device(), gin.ByThread(t)
				c, world := gin.Open(&d, 0), gin.World(&d)
				if again {
					reused = true
					expect(c.Put(co, world, 1-world.Rank, old, 0, send.Device(), 0, 64, gin.StrongInc(0)), gin.Invalid, "put to a stale window")
					expect(lsaPut(&c, co, 1-world.Rank, old, 0, send.Device().Base, 64), gin.Invalid, "LSA put to a stale window")
				}
				ok(c.Barrier(co, world, 0, gin.FencePut), "barrier")
			})
			g.untouched(r, "put to a stale window")
			r.drop(g)
		}
		if !reused {
			r.fail("no id was used again: nothing was tested")
		}
		r.drop(dc, send)
	})
}

// TestUnequalWindows puts up to the last byte of windows whose sizes differ, of parts of one allocation, at 256 bytes
// and at odd places; one byte more is refused.
func TestUnequalWindows(t *testing.T) {
	for _, net := range []string{"shm", "tcp"} {
		t.Run(net, func(t *testing.T) { unequalWindows(t, net) })
	}
}

func unequalWindows(t *testing.T, net string) {
	sizes := []int{1, 4095, 4096, 4097, 256, 255}
	each(t, local(t, 3, doorbell.Options{RanksPerNode: 1, Net: net}), func(r *rank) {
		dc := r.devComm(doorbell.Needs{Signals: 1, Barriers: 1})
		b := r.alloc(20000)
		fill(b.Bytes(), canary)
		part := func(off, n int) *doorbell.Window {
			s, err := b.Slice(off, n)
			r.must(err)
			w, err := r.Register(r.ctx, s)
			r.must(err)
			return w
		}
		send := r.window(5000)
		fillPattern(send.Buffer().Bytes(), r.Rank())
		for round := range sizes {
			size := func(rank int) int { return sizes[(round+rank)%len(sizes)] }
			first, second := part(256, size(r.Rank())), part(8192+r.Rank(), size(r.Rank()+1))
			r.run(func(t gpu.Thread) {
				d, co := dc.Device(), gin.ByThread(t)
				c, world := gin.Open(&d, 0), gin.World(&d)
				p := (r.Rank() + 1) % r.Size()
				for i, w := range []gin.Window{first.Device(), second.Device()} {
					n := uint64(size(p + i))
					ok(c.Put(co, world, int32(p), w, 0, send.Device(), 0, n, gin.None()), "put all %d", n)
					ok(c.PutValue(co, world, int32(p), w, n-1, 0xee, 1, gin.None()), "last byte")
					expect(c.PutValue(co, world, int32(p), w, n, 1, 1, gin.None()), gin.Invalid, "one past the end")
					expect(c.Put(co, world, int32(p), w, 0, send.Device(), 0, n+1, gin.None()), gin.Invalid, "one byte more")
				}
				ok(c.Barrier(co, world, 0, gin.FencePut), "barrier")
			})
			want := fill(make([]byte, b.Len()), canary)
			from := (r.Rank() + r.Size() - 1) % r.Size()
			for i, at := range []int{256, 8192 + r.Rank()} {
				n := size(r.Rank() + i)
				fillPattern(want[at:at+n], from)
				want[at+n-1] = 0xee
			}
			same(b.Bytes(), want, "round %d on rank %d", round, r.Rank())
			fill(b.Bytes(), canary)
			r.drop(first, second)
		}
		r.drop(dc, send)
	})
}
