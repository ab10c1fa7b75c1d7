// SPDX-License-Identifier: Apache-2.0

package doorbell_test

import (
	"testing"

	"github.com/doorbell-net/doorbell"
	"github.com/doorbell-net/doorbell/gin"
	"github.com/doorbell-net/doorbell/gpu"
	"github.com/doorbell-net/doorbell/netplugin"
	"github.com/doorbell-net/doorbell/netplugin/shm"
)

// less is shm under another name, which declares less than it can.
type less struct {
	shm.Plugin
	name   string
	powers netplugin.Powers
}

func (p less) Name() string             { return p.name }
func (p less) Powers() netplugin.Powers { return p.powers }

func init() {
	for name, change := range map[string]func(p *netplugin.Powers){
		"neither":   func(p *netplugin.Powers) { p.Ordered, p.RemoteCompletion = false, false },
		"unordered": func(p *netplugin.Powers) { p.Ordered = false },
		"untold":    func(p *netplugin.Powers) { p.RemoteCompletion = false },
		"unmarked":  func(p *netplugin.Powers) { p.Network = true },
		"narrow":    func(p *netplugin.Powers) { p.MaxBytes = 255 },
	} {
		p := less{name: name, powers: shm.Plugin{}.Powers()}
		change(&p.powers)
		netplugin.Register(p)
	}
}

// TestNetworksThatGiveLess asks for what a network cannot give: it is refused at creation, with what can be had, and that
// is had.
func TestNetworksThatGiveLess(t *testing.T) {
	t.Run("neither order nor completion", func(t *testing.T) {
		each(t, local(t, 2, doorbell.Options{Net: "neither"}), func(r *rank) {
			_, err := r.DevComm(r.ctx, doorbell.Needs{Signals: 1, Fence: true})
			says(r, err, "strong signals", "network neither", "Needs.WeakOnly", "fence over contexts", "cannot", "rank ")
			progWeakOnly(r)
			progNoCutSignal(r)
		})
	})
	t.Run("no order", func(t *testing.T) {
		each(t, local(t, 2, doorbell.Options{Net: "unordered"}), func(r *rank) {
			for _, p := range []func(*rank){progContexts, progFlush, progBurst, progSignalsAt, progFenceContexts, progWeakOnly, progBarriers, progHybrid, progFenceGet} {
				p(r)
			}
		})
	})
	t.Run("no completion at the target", func(t *testing.T) {
		each(t, local(t, 2, doorbell.Options{Net: "untold"}), func(r *rank) {
			_, err := r.DevComm(r.ctx, doorbell.Needs{Fence: true})
			says(r, err, "a fence", "network untold", "strong signals within a context", "cannot")
			dc := r.devComm(doorbell.Needs{Contexts: 2})
			r.run(func(t gpu.Thread) {
				d, co := dc.Device(), gin.ByThread(t)
				c := gin.Open(&d, 0)
				expect(c.FenceContexts(co, gin.World(&d), 0, 0, 2), gin.Invalid, "a fence that was not asked for")
			})
			r.drop(dc)
		})
	})
	t.Run("no room for a small put", func(t *testing.T) {
		_, err := doorbell.Local(2, doorbell.Options{Net: "narrow"})
		says(t, err, "a network of small operations", "network narrow", "at most 255 bytes")
	})
	t.Run("no traffic class", func(t *testing.T) {
		_, err := doorbell.Local(2, doorbell.Options{Net: "unmarked", TrafficClass: 104, Log: quiet()})
		says(t, err, "a network that marks nothing", "traffic class 104", "unmarked", "0 is accepted")
		_, err = doorbell.Local(2, doorbell.Options{TrafficClass: 256, Log: quiet()})
		says(t, err, "a traffic class that is none", "traffic class 256", "0 to 255")
		each(t, local(t, 2, doorbell.Options{Net: "tcp", TrafficClass: 104}), func(r *rank) {
			r.drop(r.devComm(doorbell.Needs{TrafficClass: 104}), r.devComm(doorbell.Needs{}))
			_, err := r.DevComm(r.ctx, doorbell.Needs{TrafficClass: 8})
			says(r, err, "another traffic class", "traffic class 8", "this communicator's is 104")
		})
	})
}

// progWeakOnly raises weak signals where there are no others.
func progWeakOnly(r *rank) {
	dc := r.devComm(doorbell.Needs{Signals: 1, Barriers: 1, WeakOnly: true})
	recv, send := r.window(5000*r.Size()), r.window(5000)
	fillPattern(send.Buffer().Bytes(), r.Rank())
	r.sync()
	r.run(func(t gpu.Thread) {
		d, co := dc.Device(), gin.ByThread(t)
		c, world := gin.Open(&d, 0), gin.World(&d)
		expect(c.Signal(co, world, 0, gin.StrongInc(0)), gin.Invalid, "a strong signal")
		expect(c.Barrier(co, world, 0, gin.FencePut), gin.Invalid, "a barrier of strong signals")
		expect(c.HybridBarrier(co, 0, gin.FencePut|gin.FenceGet), gin.Invalid, "a hybrid barrier of strong signals")
		for _, fence := range []gin.Fence{gin.FenceNone, gin.FenceGet} {
			ok(c.Barrier(co, world, 0, fence), "barrier with fence %d", fence)
			ok(c.HybridBarrier(co, 0, fence), "hybrid barrier with fence %d", fence)
		}
		for p := range world.Ranks {
			ok(c.Put(co, world, p, recv.Device(), uint64(5000*r.Rank()), send.Device(), 0, 5000, gin.WeakInc(0)), "put")
		}
		ok(c.WaitSignal(co, 0, uint64(world.Ranks), 64, gin.FromTeam(world)), "wait")
		for p := range r.Size() {
			want := fillPattern(make([]byte, 5000), p)
			same(view(recv.Device(), 5000*p, 5000), want, "rank %d", p)
		}
	})
	r.sync()
	r.drop(dc, recv, send)
}

// progNoCutSignal refuses the signal of a put that is cut where nothing orders it behind the pieces.
func progNoCutSignal(r *rank) {
	dc := r.devComm(doorbell.Needs{Contexts: 2, Signals: 1, WeakOnly: true})
	recv, send := r.window(shm.MaxBytes+1), r.window(shm.MaxBytes+1)
	r.run(func(t gpu.Thread) {
		d, co := dc.Device(), gin.ByThread(t)
		c, world := gin.Open(&d, 0), gin.World(&d)
		ok(c.Put(co, world, world.Rank, recv.Device(), 0, send.Device(), 0, shm.MaxBytes+1, gin.None()), "without a signal")
		ok(c.Put(co, world, world.Rank, recv.Device(), 0, send.Device(), 0, shm.MaxBytes, gin.WeakInc(0)), "in one piece")
		ok(c.FlushPeer(co, world, world.Rank), "flush")
		other := gin.Open(&d, 1)
		ok(other.Put(co, world, world.Rank, recv.Device(), 0, send.Device(), 0, shm.MaxBytes+1, gin.WeakInc(0)), "in pieces, with a signal")
		expect(other.FlushPeer(co, world, world.Rank), gin.RemoteError, "its flush")
	})
	says(r, dc.Cause(), "cause", "262145 bytes with a signal", "at most 262144", "RemoteError")
	r.sync()
	r.drop(dc, recv, send)
}

// TestMemoryBytes: what needs say beforehand is what a device communicator takes.
func TestMemoryBytes(t *testing.T) {
	each(t, local(t, 4, doorbell.Options{RanksPerNode: 2}), func(r *rank) {
		for _, n := range []doorbell.Needs{
			{}, {Signals: 8}, {Rail: true, SmallPut: 256, QueueDepth: 2},
			{Contexts: 3, Signals: 5, Counters: 7, Barriers: 2, LLA2ABlocks: 2, LLA2ASlots: 9, Resources: []doorbell.Resource{{Name: "x", Signals: 11}}},
		} {
			dc := r.devComm(n)
			if got, want := n.MemoryBytes(4, 2), dc.MemoryBytes(); got != want {
				r.fail("%+v: %d bytes, of which it takes %d", n, got, want)
			}
			r.drop(dc)
		}
	})
}

// TestResources gives two parts of a program ids of their own in one device communicator.
func TestResources(t *testing.T) {
	each(t, local(t, 2, doorbell.Options{}), func(r *rank) {
		dc := r.devComm(doorbell.Needs{
			Contexts: 2, Signals: 2, Counters: 1, Barriers: 1, Teams: []doorbell.TeamNeeds{{Ranks: 2, Stride: 1}, {Ranks: 1, Stride: 2}},
			Resources: []doorbell.Resource{{Name: "a", Signals: 3, Counters: 2, Barriers: 1}, {Name: "b", Signals: 1, Barriers: 2}},
		})
		a, err := dc.Resource("a")
		r.must(err)
		b, err := dc.Resource("b")
		r.must(err)
		if a != (doorbell.IDs{Signal: 2, Counter: 1, Barrier: 1}) || b != (doorbell.IDs{Signal: 5, Counter: 3, Barrier: 2}) {
			r.fail("resources are at %+v and %+v", a, b)
		}
		_, err = dc.Resource("c")
		says(r, err, "a resource that was not asked for", `resource "c"`, `"a"`, `"b"`)
		r.run(func(t gpu.Thread) {
			d, co := dc.Device(), gin.ByThread(t)
			c, world := gin.Open(&d, 1), gin.World(&d)
			for id := range int32(6) {
				ok(c.Signal(co, world, 1-world.Rank, gin.StrongAdd(id, uint64(id)+1)), "signal %d", id)
			}
			expect(c.Signal(co, world, 0, gin.StrongInc(6)), gin.Invalid, "one id more")
			ok(c.Signal(co, world, 0, gin.None().Counter(b.Counter-1)), "the last counter")
			expect(c.Signal(co, world, 0, gin.None().Counter(b.Counter)), gin.Invalid, "one counter more")
			ok(c.Barrier(co, world, b.Barrier+1, gin.FencePut), "the last barrier")
			expect(c.Barrier(co, world, b.Barrier+2, gin.FencePut), gin.Invalid, "one barrier more")
			for id := range int32(6) {
				ok(c.WaitSignal(co, id, uint64(id)+1, 64, gin.FromPeer(world, 1-world.Rank)), "wait %d", id)
			}
		})
		r.drop(dc)
	})
}
