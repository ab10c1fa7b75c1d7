// SPDX-License-Identifier: Apache-2.0

package doorbell_test

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/doorbell-net/doorbell"
	"github.com/doorbell-net/doorbell/gin"
	"github.com/doorbell-net/doorbell/gpu"
	"github.com/doorbell-net/doorbell/internal/abi"
	"github.com/doorbell-net/doorbell/netplugin/devnic"
	"github.com/doorbell-net/doorbell/netplugin/devnic/wqe"
)

// otherNIC is softnic by another name, which says other things of itself.
type otherNIC struct {
	devnic.Provider
	name   string
	change func(*devnic.Facts)
}

type otherFacts struct {
	devnic.NIC
	change func(*devnic.Facts)
}

const shortMessage = 100

func (p otherNIC) Name() string { return p.name }

func (p otherNIC) Open(c devnic.Config) (devnic.NIC, error) {
	n, err := p.Provider.Open(c)
	return otherFacts{n, p.change}, err
}

func (n otherFacts) Facts() devnic.Facts {
	f := n.NIC.Facts()
	n.change(&f)
	return f
}

// brokenNIC is softnic whose queue pairs fail as soon as they are connected.
type brokenNIC struct{ devnic.Provider }

type brokenPairs struct {
	devnic.NIC
	failed func(devnic.Failure)
}

func (brokenNIC) Name() string { return "broken" }

func (p brokenNIC) Open(c devnic.Config) (devnic.NIC, error) {
	n, err := p.Provider.Open(c)
	return brokenPairs{n, c.Failed}, err
}

func (n brokenPairs) Connect(number uint32, address []byte) error {
	err := n.NIC.Connect(number, address)
	n.failed(devnic.Failure{QP: number, Syndrome: uint8(wqe.RemoteAccess), Err: errTest})
	return err
}

func init() {
	softnic, err := devnic.Lookup("softnic")
	if err != nil {
		panic(err)
	}
	devnic.Register(otherNIC{softnic, "short", func(f *devnic.Facts) { f.MaxMessage = shortMessage }})
	devnic.Register(otherNIC{softnic, "far", func(f *devnic.Facts) { f.FarQueues = true }})
	devnic.Register(brokenNIC{softnic})
	devnic.Register(realNIC{otherNIC{softnic, "real", func(f *devnic.Facts) { f.Emulated = false }}})
}

// TestGDAKIRefuses: a NIC that is not there, and a queue deeper than the NIC's are refused by name.
func TestGDAKIRefuses(t *testing.T) {
	each(t, local(t, 2, doorbell.Options{Backend: "gdaki"}), func(r *rank) {
		if i := r.Info(); i.Backend != "gdaki" || i.NIC != "softnic" || !i.Emulated {
			r.fail("it says of itself %+v", i)
		}
		_, err := r.DevComm(r.ctx, doorbell.Needs{QueueDepth: 1 << 15})
		says(r, err, "a queue that is too deep", "softnic", "depth 65536", "32768")
		r.drop(r.devComm(doorbell.Needs{QueueDepth: 1 << 14, Signals: 1, Counters: 1}))
	})
	t.Setenv("DOORBELL_NIC", "none")
	_, err := doorbell.Local(2, doorbell.Options{Backend: "gdaki", Log: quiet()})
	says(t, err, "a NIC that is not there", "NIC none: ranks 0-1", "softnic")
}

// TestGDAKICuts: a put and a get larger than the NIC's messages arrive whole, with one signal and one count.
func TestGDAKICuts(t *testing.T) {
	t.Setenv("DOORBELL_NIC", "short")
	each(t, local(t, 2, doorbell.Options{Backend: "gdaki"}), func(r *rank) {
		const bytes = 10*shortMessage + 7
		dc := r.devComm(doorbell.Needs{Signals: 1, Counters: 1, Barriers: 1, QueueDepth: 4})
		send, recv, back := r.window(bytes), r.window(bytes), r.window(bytes)
		fillPattern(send.Buffer().Bytes(), r.Rank())
		r.sync()
		r.run(func(t gpu.Thread) {
			d, co := dc.Device(), gin.ByThread(t)
			c, world, peer := gin.Open(&d, 0), gin.World(&d), 1-d.Rank
			ok(c.Put(co, world, peer, recv.Device(), 0, send.Device(), 0, bytes, gin.StrongInc(0).Counter(0)), "put")
			ok(c.WaitSignal(co, 0, 1, 64, gin.FromAny()), "signal")
			same(view(recv.Device(), 0, bytes), fillPattern(make([]byte, bytes), int(peer)), "put")
			ok(c.Get(co, world, peer, send.Device(), 0, back.Device(), 0, bytes, gin.None().Counter(0)), "get")
			ok(c.Flush(co), "flush")
			same(view(back.Device(), 0, bytes), fillPattern(make([]byte, bytes), int(peer)), "get")
			if c.ReadSignal(0) != 1 || c.ReadCounter(0) != 2 {
				panic("the pieces of an operation were counted or signalled")
			}
			ok(c.Barrier(co, world, 0, gin.FencePut), "barrier")
		})
		r.drop(dc, send, recv, back)
	})
}

// TestGDAKINotFar: where a NIC refuses send queues in memory of the device they lie in memory of the host, and the log says why.
func TestGDAKINotFar(t *testing.T) {
	t.Setenv("DOORBELL_NIC", "far")
	t.Setenv("DOORBELL_SOFT_FAR", "1")
	var log logText
	each(t, local(t, 2, doorbell.Options{Backend: "gdaki", Log: slog.New(slog.NewTextHandler(&log, nil))}), func(r *rank) {
		dc := r.devComm(doorbell.Needs{Signals: 1})
		r.run(func(t gpu.Thread) {
			d, co := dc.Device(), gin.ByThread(t)
			c := gin.Open(&d, 0)
			ok(c.Signal(co, gin.World(&d), 1-d.Rank, gin.StrongInc(0)), "signal")
			ok(c.WaitSignal(co, 0, 1, 64, gin.FromAny()), "wait")
		})
		r.drop(dc)
	})
	if text := log.String(); strings.Count(text, "send queues lie in memory of the host") != 2 || !strings.Contains(text, "a send queue in memory of the device: one that the host sees is accepted") {
		t.Errorf("the log does not say where the queues are, and why:\n%s", text)
	}
}

// TestGDAKIFails: a WQE whose key was revoked, in the middle of an aggregate, ends its queue: what came before has arrived,
// nothing of it and after it does, and each wait for that peer ends with the reason. Another context goes on.
func TestGDAKIFails(t *testing.T) {
	for _, sharing := range []doorbell.Sharing{doorbell.SharedByAll, doorbell.OneThread} {
		var log logText
		each(t, local(t, 2, doorbell.Options{Backend: "gdaki", Log: slog.New(slog.NewTextHandler(&log, nil))}), func(r *rank) {
			dc := r.devComm(doorbell.Needs{Contexts: 2, Signals: 2, Counters: 1, QueueDepth: 256, Sharing: sharing})
			recv, revoked, send := r.window(24), r.window(24), r.window(24)
			fill(send.Buffer().Bytes(), canary)
			r.sync()
			if r.Rank() != 0 {
				r.sync()
				if got := recv.Buffer().Bytes(); string(got[:8]) != string(send.Buffer().Bytes()[:8]) || string(got[8:]) != "\x00\x00\x00\x00\x00\x00\x00\x00\x01\x00\x00\x00\x00\x00\x00\x00" {
					r.fail("there is %x", got)
				}
				return
			}
			abi.KeyOf(revoked.Device().Info, 2, 1).Store(0x7fff)
			r.run(func(t gpu.Thread) {
				d, co := dc.Device(), gin.ByThread(t)
				c, world, from := gin.Open(&d, 0), gin.World(&d), gin.FromPeer(gin.World(&d), 1)
				put := func(w gin.Window, off uint64, act gin.Action) gin.Status {
					return c.Put(co, world, 1, w, off, send.Device(), 0, 8, act)
				}
				ok(put(recv.Device(), 0, gin.StrongInc(0).Aggregate()), "one that is good")
				ok(put(revoked.Device(), 0, gin.StrongInc(1).Counter(0).Aggregate()), "one that is not")
				ok(put(recv.Device(), 8, gin.StrongInc(1)), "one behind it")
				expect(c.Flush(co), gin.RemoteError, "flush")
				expect(put(recv.Device(), 16, gin.StrongInc(1)), gin.RemoteError, "a put after that")
				expect(c.WaitSignal(co, 0, 1, 64, from), gin.RemoteError, "wait for that peer")
				expect(c.WaitCounter(co, 0, 1, 64, from), gin.RemoteError, "wait for the counter")
				request, s := c.FlushAsync(co, world, 1)
				ok(s, "request")
				// Of the completion and the host's word on the queue pair, which has no syndrome, either may be seen first.
				if n := d.Notes.Load().Cause; n.State != 2 || n.Syndrome != 0 && wqe.Syndrome(n.Syndrome) != wqe.RemoteAccess {
					panic(fmt.Sprintf("the device saw %v first", wqe.Syndrome(n.Syndrome)))
				}
				done, s := c.Test(t, request)
				if expect(s, gin.RemoteError, "test"); done {
					panic("what failed is done")
				}
				other := gin.Open(&d, 1)
				ok(other.PutValue(co, world, 1, recv.Device(), 16, 1, 8, gin.StrongInc(0)), "another context")
				ok(other.Flush(co), "flush of that")
			})
			says(r, dc.Cause(), "the cause", "RemoteError", "work-queue entry", "rank 1", "context 0", "remote access error", "remote key 0x7fff")
			r.sync()
		})
		if text := log.String(); strings.Count(text, "refused after it was posted") != 2 || !strings.Contains(text, "local queue pair operation error") {
			t.Errorf("the log has other failures than the queue's and its companion's:\n%s", text)
		}
	}
}

// TestGDAKILost: what waits for a rank that has left ends with PeerLost: a signal, credit, a flush, and what is posted later.
func TestGDAKILost(t *testing.T) {
	cs := local(t, 2, doorbell.Options{Backend: "gdaki"})
	each(t, cs, func(r *rank) {
		dc := r.devComm(doorbell.Needs{Signals: 1, QueueDepth: 2})
		recv := r.window(8)
		r.sync()
		if r.Rank() == 1 {
			r.must(r.Close())
			return
		}
		r.run(func(t gpu.Thread) {
			d, co := dc.Device(), gin.ByThread(t)
			c, world := gin.Open(&d, 0), gin.World(&d)
			expect(c.WaitSignal(co, 0, 1, 64, gin.FromPeer(world, 1)), gin.PeerLost, "wait")
			put := func() gin.Status { return c.PutValue(co, world, 1, recv.Device(), 0, 1, 8, gin.StrongInc(0)) }
			s, start := put(), t.Clock()
			for s == gin.OK && t.Clock()-start < 10e9 { // waits learn it first, the queue pair a moment later
				s = put()
			}
			for range 10 {
				expect(s, gin.PeerLost, "put")
				s = put()
			}
			ok(c.PutValue(co, world, 0, recv.Device(), 0, 1, 8, gin.StrongInc(0)), "put to itself")
			ok(c.FlushPeer(co, world, 0), "flush of that")
		})
	})
}

// TestGDAKIOut: among survivors a signal to a rank that is out, which has no queue pair, ends with PeerLost.
func TestGDAKIOut(t *testing.T) {
	cs := local(t, 3, doorbell.Options{Backend: "gdaki"})
	cs[2].Kill()
	each(t, cs[:2], func(r *rank) {
		r.survivors(0, 1)
		dc := r.devComm(doorbell.Needs{Signals: 1})
		r.run(func(t gpu.Thread) {
			d, co := dc.Device(), gin.ByThread(t)
			c, world, other := gin.Open(&d, 0), gin.World(&d), 1-d.Rank
			expect(c.Signal(co, world, 2, gin.StrongInc(0)), gin.PeerLost, "signal to one that is out")
			ok(c.Signal(co, world, other, gin.StrongInc(0)), "signal")
			ok(c.WaitSignal(co, 0, 1, 64, gin.FromPeer(world, other)), "wait")
		})
		r.sync()
		r.drop(dc)
	})
}

// TestGDAKIFailsEarly: a queue pair that fails while its device communicator is made ends what is posted to it afterwards.
func TestGDAKIFailsEarly(t *testing.T) {
	t.Setenv("DOORBELL_NIC", "broken")
	each(t, local(t, 1, doorbell.Options{Backend: "gdaki", Log: quiet()}), func(r *rank) {
		dc := r.devComm(doorbell.Needs{Signals: 1})
		r.run(func(t gpu.Thread) {
			d := dc.Device()
			c := gin.Open(&d, 0)
			expect(c.Signal(gin.ByThread(t), gin.World(&d), 0, gin.StrongInc(0)), gin.RemoteError, "signal")
		})
		says(r, dc.Cause(), "the cause", "RemoteError", errTest.Error())
	})
}

// TestGDAKILeft: a kernel that ends with puts that no doorbell told of holds nothing up; they were not sent.
func TestGDAKILeft(t *testing.T) {
	each(t, local(t, 1, doorbell.Options{Backend: "gdaki"}), func(r *rank) {
		dc := r.devComm(doorbell.Needs{Signals: 1, Counters: 1})
		recv := r.window(8)
		r.run(func(t gpu.Thread) {
			d := dc.Device()
			c := gin.Open(&d, 0)
			ok(c.PutValue(gin.ByThread(t), gin.World(&d), 0, recv.Device(), 0, 1, 8, gin.StrongInc(0).Counter(0).Aggregate()), "put")
		})
		start := time.Now()
		r.drop(dc)
		if took := time.Since(start); took > testBound/2 || recv.Buffer().Bytes()[0] != 0 {
			r.fail("closed after %v, and there is %x", took, recv.Buffer().Bytes())
		}
	})
}

// TestGDAKIBells: WQEs that were aggregated go by one doorbell, and threads that post at once share some; a put on its own has
// one.
func TestGDAKIBells(t *testing.T) {
	for _, sharing := range []doorbell.Sharing{doorbell.SharedByAll, doorbell.OneBlock, doorbell.OneThread} {
		t.Run(fmt.Sprint(sharing), func(t *testing.T) {
			each(t, local(t, 1, doorbell.Options{Backend: "gdaki"}), func(r *rank) {
				const batch, rounds, warps = 16, 20, 8
				dc := r.devComm(doorbell.Needs{Signals: 1, QueueDepth: 64, Sharing: sharing})
				recv := r.window(8)
				bells := func() uint64 { return dc.Device().Prod.At(0).Load().Bells }
				r.run(func(t gpu.Thread) {
					d, co := dc.Device(), gin.ByThread(t)
					c, world := gin.Open(&d, 0), gin.World(&d)
					for range rounds {
						before := bells()
						for i := range batch {
							act := gin.StrongInc(0)
							if i < batch-1 {
								act = act.Aggregate()
							}
							ok(c.PutValue(co, world, 0, recv.Device(), 0, 1, 8, act), "put")
						}
						if n := bells() - before; n != 1 {
							panic(fmt.Sprintf("%d doorbells for %d aggregated puts", n, batch))
						}
						ok(c.Flush(co), "flush")
						before = bells()
						ok(c.PutValue(co, world, 0, recv.Device(), 0, 1, 8, gin.StrongInc(0)), "put")
						ok(c.Flush(co), "flush")
						if n := bells() - before; n != 1 {
							panic(fmt.Sprintf("%d doorbells for a put", n))
						}
					}
				})
				if sharing == doorbell.OneThread {
					return
				}
				before := bells()
				r.start(doorbell.Grid{Blocks: 1, Warps: warps}, func(t gpu.Thread) {
					d, co := dc.Device(), gin.ByThread(t)
					c, world := gin.Open(&d, 0), gin.World(&d)
					for range rounds {
						ok(c.Signal(co, world, 0, gin.StrongInc(0)), "signal")
					}
					ok(c.Flush(co), "flush")
				})
				r.wait()
				n, signals := bells()-before, uint64(rounds*warps*gpu.WarpSize)
				if n < 1 || n > signals {
					r.fail("%d doorbells for %d signals", n, signals)
				}
				r.Logf("%d doorbells for %d signals of %d threads at once", n, signals, warps*gpu.WarpSize)
			})
		})
	}
}

// TestGDAKILanes: lanes of a warp that post together ring once for each queue that they post to, whatever they post, and each
// has its own status.
func TestGDAKILanes(t *testing.T) {
	for _, sharing := range []doorbell.Sharing{doorbell.SharedByAll, doorbell.OneBlock} {
		each(t, local(t, 2, doorbell.Options{Backend: "gdaki"}), func(r *rank) {
			const rounds, calls = 10, 5
			dc := r.devComm(doorbell.Needs{Signals: 1, Counters: 1, QueueDepth: 256, Sharing: sharing})
			send, recv, back := r.window(8*gpu.WarpSize), r.window(2*8*gpu.WarpSize), r.window(8*gpu.WarpSize)
			r.sync()
			r.startLanes(doorbell.Grid{Blocks: 1, Warps: 1}, func(t gpu.Thread) {
				d, lanes := dc.Device(), gin.ByLanes(t)
				c, world := gin.Open(&d, 0), gin.World(&d)
				to, off := t.Lane()&1, 8*uint64(t.Lane())
				far := off + uint64(8*gpu.WarpSize*d.Rank)
				for range rounds {
					ok(c.Put(lanes, world, to, recv.Device(), far, send.Device(), off, 8, gin.StrongInc(0).Counter(0)), "put")
					ok(c.PutValue(lanes, world, to, recv.Device(), far, 1, 8, gin.StrongInc(0)), "value")
					ok(c.Signal(lanes, world, to, gin.StrongInc(0)), "signal")
					ok(c.Get(lanes, world, to, send.Device(), off, back.Device(), off, 8, gin.None()), "get")
					at, want := far, gin.OK
					if t.Lane()&2 != 0 {
						at, want = 2*8*gpu.WarpSize, gin.Invalid // past the end
					}
					if s := c.PutValue(lanes, world, to, recv.Device(), at, 1, 8, gin.StrongInc(0)); s != want {
						panic(fmt.Sprintf("a lane that writes to offset %d has %v, want %v", at, s, want))
					}
					wrong := c.PutValue(lanes, world, 2*t.Lane(), recv.Device(), far, 1, 8, gin.None())
					if want := map[bool]gin.Status{true: gin.OK, false: gin.Invalid}[t.Lane() == 0]; wrong != want {
						panic("a lane has another one's status")
					}
					if t.Lane() == 0 {
						ok(c.Flush(gin.ByThread(t)), "flush")
					}
					t.SyncWarp()
				}
			})
			r.wait()
			for peer := range min(2, gpu.WarpSize) {
				want := uint64(rounds * calls)
				if peer == 0 {
					want += rounds // lane 0's one more
				}
				if n := dc.Device().Prod.At(peer).Load().Bells; n != want {
					r.fail("%d doorbells to rank %d for %d calls of %d lanes", n, peer, want, gpu.WarpSize/2)
				}
			}
			r.sync()
			r.drop(dc, send, recv, back)
		})
	}
}
