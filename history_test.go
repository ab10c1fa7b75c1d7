// SPDX-License-Identifier: Apache-2.0

package doorbell_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"

	"github.com/doorbell-net/doorbell"
	"github.com/doorbell-net/doorbell/gin"
	"github.com/doorbell-net/doorbell/gpu"
	"github.com/doorbell-net/doorbell/internal/testenv"
	"pgregory.net/rapid"
)

// op is one operation of a history.
type op struct {
	ctx, peer int
	kind      string // put, value, signal or get
	src, dst  int
	bytes     int
	value     uint64
	add       uint64 // to the signal that the target keeps for this source; 0: none
	shared    uint64 // to the signal that it keeps for all; 0: none
	at        int    // 1 + the word, in the target's window of signals, that this operation alone raises; 0: none
	weak      bool   // that signal is weak
	more      bool   // a hint says that more follows
	counter   bool
}

// history is what each rank does, in order.
type history struct {
	ranks, perNode, contexts int
	needs                    doorbell.Needs
	ops                      [][]op
	words                    int // signals at addresses of a rank
	part                     int // bytes of a window for each source
	got                      int // bytes of what a rank gets
	seed                     uint64
	left                     func(rank int, b []byte) // is told what is in a rank's windows at the end
}

const historySource = 2000

// drawHistory draws one. Puts never overlap, since nothing orders them: each takes the next bytes of its source's
// part, with a gap before it.
func drawHistory(t *rapid.T) *history {
	h := &history{ranks: rapid.IntRange(1, 8).Draw(t, "ranks"), words: 1, seed: rapid.Uint64().Draw(t, "bytes")}
	if h.ranks%2 == 0 {
		h.perNode = h.ranks / 2
	}
	h.contexts = rapid.IntRange(1, 4).Draw(t, "contexts")
	h.needs = doorbell.Needs{
		Contexts: h.contexts, Signals: h.ranks + 2, Counters: 1,
		QueueDepth: 1 << rapid.IntRange(1, 6).Draw(t, "log2 depth"),
		SmallPut:   rapid.SampledFrom([]int{8, 14, 15, 64, 256}).Draw(t, "small put"),
		Sharing:    rapid.SampledFrom([]doorbell.Sharing{doorbell.SharedByAll, doorbell.OneBlock, doorbell.OneThread}).Draw(t, "sharing"),
	}
	words := make([]int, h.ranks)
	for range h.ranks {
		at, got := make([]int, h.ranks), 0
		ops := make([]op, rapid.IntRange(0, 40).Draw(t, "operations"))
		for i := range ops {
			o := &ops[i]
			o.ctx, o.peer = rapid.IntRange(0, h.contexts-1).Draw(t, "context"), rapid.IntRange(0, h.ranks-1).Draw(t, "peer")
			o.kind = rapid.SampledFrom([]string{"put", "put", "value", "signal", "get"}).Draw(t, "kind")
			switch o.kind {
			case "put", "get":
				o.bytes = rapid.OneOf(rapid.IntRange(0, 20), rapid.IntRange(250, 260), rapid.IntRange(0, historySource)).Draw(t, "bytes")
				o.src = rapid.IntRange(0, historySource-o.bytes).Draw(t, "source")
			case "value":
				o.bytes, o.value = rapid.IntRange(1, 8).Draw(t, "bytes"), rapid.Uint64().Draw(t, "value")
			}
			o.more, o.counter = rapid.Bool().Draw(t, "more"), rapid.Bool().Draw(t, "counter")
			if o.kind == "get" {
				o.dst = got + rapid.IntRange(0, 9).Draw(t, "gap")
				got = o.dst + o.bytes
				h.got = max(h.got, got+9)
				continue
			}
			o.dst = at[o.peer] + rapid.IntRange(0, 9).Draw(t, "gap")
			at[o.peer] = o.dst + o.bytes
			h.part = max(h.part, at[o.peer]+9)
			switch rapid.IntRange(0, 5).Draw(t, "signal") {
			case 0:
				o.add = 1
			case 1:
				o.add = rapid.Uint64Range(1, 1<<50).Draw(t, "add")
			case 2:
				o.shared = rapid.Uint64().Draw(t, "add")
			case 3, 4:
				words[o.peer]++
				o.at, o.weak = words[o.peer], rapid.Bool().Draw(t, "weak")
				h.words = max(h.words, o.at)
			}
			if o.kind == "signal" && o.add == 0 && o.shared == 0 && o.at == 0 {
				o.add = 1
			}
		}
		h.ops = append(h.ops, ops)
	}
	h.part, h.got = max(h.part, 1), max(h.got, 1)
	return h
}

// payload is byte i of a rank's source.
func (h *history) payload(rank, i int) byte {
	return byte((h.seed + uint64(rank)*0x9e3779b97f4a7c15 + uint64(i)) * 0xd1342543de82ef95 >> 50)
}

// apply writes what an operation puts into the part of its source.
func (h *history) apply(part []byte, from int, o *op) {
	for i := range o.bytes {
		if o.kind == "value" {
			part[o.dst+i] = byte(o.value >> (8 * i))
		} else {
			part[o.dst+i] = h.payload(from, o.src+i)
		}
	}
}

// run is one rank's part: a block that posts, and one that waits for each signal of each source in turn and looks at
// what it covers at once.
func (h *history) run(r *rank) {
	dc := r.devComm(h.needs)
	w := historyWindows{r.window(h.ranks * h.part), r.window(historySource), r.window(h.got), r.signalWindow(h.words)}
	recv, send := w.recv, w.send
	for i, b := 0, send.Buffer().Bytes(); i < len(b); i++ {
		b[i] = h.payload(r.Rank(), i)
	}
	fill(recv.Buffer().Bytes(), canary)
	fill(w.got.Buffer().Bytes(), canary)
	r.sync()
	r.start(doorbell.Grid{Blocks: 2, Warps: 1, Cooperative: true}, func(t gpu.Thread) {
		if t.Block() == 0 {
			h.post(t, r, dc.Device(), w)
		} else {
			h.look(t, r, dc.Device(), w)
		}
	})
	r.wait()
	r.run(func(t gpu.Thread) { h.final(r, dc.Device(), w) })
	r.sync()
	if h.left != nil {
		h.left(r.Rank(), append(bytes.Clone(recv.Buffer().Bytes()), w.got.Buffer().Bytes()...))
	}
	r.drop(dc, recv, send, w.got, w.signals)
}

type historyWindows struct {
	recv, send, got *doorbell.Window
	signals         *doorbell.SignalWindow
}

func (h *history) post(t gpu.Thread, r *rank, d gin.DevComm, w historyWindows) {
	co, world := gin.ByThread(t), gin.World(&d)
	recv, send := w.recv.Device(), w.send.Device()
	for i, o := range h.ops[r.Rank()] {
		c := gin.Open(&d, int32(o.ctx))
		act := gin.None()
		switch {
		case o.add == 1:
			act = gin.StrongInc(int32(r.Rank()))
		case o.add != 0:
			act = gin.StrongAdd(int32(r.Rank()), o.add)
		case o.shared != 0:
			act = gin.StrongAdd(int32(h.ranks), o.shared)
		case o.at != 0 && o.weak:
			act = gin.WeakIncAt(w.signals.Device(), uint64(8*(o.at-1)))
		case o.at != 0:
			act = gin.StrongIncAt(w.signals.Device(), uint64(8*(o.at-1)))
		}
		if o.more {
			act = act.Aggregate()
		}
		if o.counter {
			act = act.Counter(0)
		}
		dst := uint64(r.Rank()*h.part + o.dst)
		s := gin.Status(0)
		switch o.kind {
		case "put":
			s = c.Put(co, world, int32(o.peer), recv, dst, send, uint64(o.src), uint64(o.bytes), act)
		case "value":
			s = c.PutValue(co, world, int32(o.peer), recv, dst, o.value, uint64(o.bytes), act)
		case "signal":
			s = c.Signal(co, world, int32(o.peer), act)
		case "get":
			s = c.Get(co, world, int32(o.peer), send, uint64(o.src), w.got.Device(), uint64(o.dst), uint64(o.bytes), act)
		}
		ok(s, "operation %d: %+v", i, o)
	}
	for x := range int32(h.contexts) {
		c := gin.Open(&d, x)
		for p := range world.Ranks {
			ok(c.Signal(co, world, p, gin.StrongInc(int32(h.ranks)+1)), "last signal")
		}
		ok(c.Flush(co), "flush")
	}
}

func (h *history) look(t gpu.Thread, r *rank, d gin.DevComm, w historyWindows) {
	co, world, recv := gin.ByThread(t), gin.World(&d), w.recv.Device()
	for from := range h.ranks {
		for x := range h.contexts {
			c := gin.Open(&d, int32(x))
			sum := uint64(0)
			covered := []*op{}
			want := make([]byte, h.part)
			for i := range h.ops[from] {
				o := &h.ops[from][i]
				if o.ctx != x || o.peer != r.Rank() || o.kind == "get" {
					continue
				}
				covered = append(covered, o)
				src := gin.FromPeer(world, int32(from))
				switch {
				case o.at != 0:
					ok(c.WaitSignalAt(co, w.signals.Device(), uint64(8*(o.at-1)), 1, 64, src), "wait at an address for operation %d of rank %d", i, from)
				case o.add != 0:
					sum += o.add
					ok(c.WaitSignal(co, int32(from), sum, 64, src), "wait for operation %d of rank %d", i, from)
				default:
					continue
				}
				if o.at != 0 && o.weak {
					h.apply(want, from, o)
					same(view(recv, from*h.part+o.dst, o.bytes), want[o.dst:o.dst+o.bytes], "%+v of rank %d, after its weak signal", *o, from)
					continue
				}
				for _, o := range covered {
					h.apply(want, from, o)
					same(view(recv, from*h.part+o.dst, o.bytes), want[o.dst:o.dst+o.bytes], "%+v of rank %d, after the signal that covers it", *o, from)
				}
				covered = covered[:0]
			}
		}
	}
	for x := range int32(h.contexts) {
		c := gin.Open(&d, x)
		ok(c.WaitSignal(co, int32(h.ranks)+1, uint64(h.ranks), 64, gin.FromTeam(world)), "last wait")
	}
}

// final compares every byte, signal and counter with the model.
func (h *history) final(r *rank, d gin.DevComm, w historyWindows) {
	recv := w.recv.Device()
	brought := fill(make([]byte, h.got), canary)
	for _, o := range h.ops[r.Rank()] {
		if o.kind != "get" {
			continue
		}
		for i := range o.bytes {
			brought[o.dst+i] = h.payload(o.peer, o.src+i)
		}
	}
	same(view(w.got.Device(), 0, h.got), brought, "all that was got")
	for from := range h.ranks {
		want := fill(make([]byte, h.part), canary)
		for i := range h.ops[from] {
			if h.ops[from][i].peer == r.Rank() && h.ops[from][i].kind != "get" {
				h.apply(want, from, &h.ops[from][i])
			}
		}
		same(view(recv, from*h.part, h.part), want, "all of rank %d", from)
	}
	for x := range h.contexts {
		c := gin.Open(&d, int32(x))
		want, counter := make([]uint64, h.ranks+2), uint64(0)
		for from := range h.ranks {
			for _, o := range h.ops[from] {
				if o.ctx != x {
					continue
				}
				if o.peer == r.Rank() && o.add != 0 {
					want[from] += o.add
				} else if o.peer == r.Rank() {
					want[h.ranks] += o.shared
				}
				if from == r.Rank() && o.counter {
					counter++
				}
			}
			want[h.ranks+1]++
		}
		for id, w := range want {
			if got := c.ReadSignal(int32(id)); got != w {
				panic(fmt.Sprintf("context %d, signal %d is %#x, want %#x", x, id, got, w))
			}
		}
		if got := c.ReadCounter(0); got != counter {
			panic(fmt.Sprintf("context %d, counter is %d, want %d", x, got, counter))
		}
	}
}

// collector is a TB for code that must not end the test: it keeps what failed.
type collector struct {
	testing.TB
	mu   sync.Mutex
	text []string
}

func (c *collector) Helper()                   {}
func (c *collector) Logf(string, ...any)       {}
func (c *collector) Errorf(f string, a ...any) { c.add(fmt.Sprintf(f, a...)) }

func (c *collector) add(s string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.text = append(c.text, s)
}

func (c *collector) err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.text) == 0 {
		return nil
	}
	return errors.New(strings.Join(c.text, "\n"))
}

// tryEach is each over fresh ranks, for code that goes on after a failure.
func tryEach(t testing.TB, n int, o doorbell.Options, f func(r *rank)) (err error) {
	o.Timeout, o.Log = testBound, quiet()
	cs, err := doorbell.Local(n, o)
	if err != nil {
		return err
	}
	col := &collector{TB: t}
	var wg sync.WaitGroup
	for _, c := range cs {
		wg.Go(func() { runRank(col, c, f) })
	}
	wg.Wait()
	for _, c := range cs {
		err = errors.Join(err, io.Closer(c).Close())
	}
	return errors.Join(col.err(), err)
}

// network is what a history runs over.
type network struct{ name, progress, faults string }

// networks are those that one history leaves the same on. One keeps no order, and overtakes wherever it may.
var networks = []network{
	{"shm", "assisted", ""}, {"shm", "thread", ""}, {"fault+shm", "assisted", fmt.Sprintf("seed=%d,all,unordered", testenv.Seed)},
	{"tcp", "assisted", ""}, {"tcp", "thread", ""},
}

// TestHistories runs random histories of all ranks at once and compares what is in windows, signals and counters with
// a plain model; what a signal covers is looked at the moment that it is seen.
func TestHistories(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		h, net := drawHistory(rt), rapid.SampledFrom(networks[:3]).Draw(rt, "network")
		if err := tryEach(t, h.ranks, doorbell.Options{RanksPerNode: h.perNode, Net: net.name, Faults: net.faults, Progress: net.progress}, h.run); err != nil {
			rt.Fatalf("%v", err)
		}
	})
}

// TestOneHistory runs each of some histories over every network in every mode: it leaves the same bytes.
func TestOneHistory(t *testing.T) {
	tries := 3
	if testenv.Long() {
		tries = 300
	}
	random := testenv.Random(t)
	for range tries {
		h := rapid.Custom(drawHistory).Example(int(random.Uint32()))
		var first [][]byte
		for _, net := range networks {
			left := make([][]byte, h.ranks)
			h.left = func(rank int, b []byte) { left[rank] = b }
			if err := tryEach(t, h.ranks, doorbell.Options{RanksPerNode: h.perNode, Net: net.name, Faults: net.faults, Progress: net.progress}, h.run); err != nil {
				t.Fatalf("%+v: %v", net, err)
			}
			if first == nil {
				first = left
			}
			for r := range left {
				if !bytes.Equal(left[r], first[r]) {
					t.Fatalf("rank %d: %+v left other bytes than %+v", r, net, networks[0])
				}
			}
		}
	}
}

// TestPayloadAfterWait reads payloads right after their waits, many times: each is whole and of its round.
func TestPayloadAfterWait(t *testing.T) {
	rounds := uint64(20_000)
	switch {
	case testenv.Long():
		rounds = 1_000_000
	case testenv.Race:
		rounds = 3_000
	}
	for _, bytes := range []uint64{8, 40, 1000} {
		t.Run(fmt.Sprint(bytes), func(t *testing.T) {
			each(t, local(t, 2, doorbell.Options{}), func(r *rank) {
				dc := r.devComm(doorbell.Needs{Signals: 1, SmallPut: 64})
				recv, send := r.window(int(bytes)), r.window(int(bytes))
				r.run(func(t gpu.Thread) {
					d, co := dc.Device(), gin.ByThread(t)
					c, world := gin.Open(&d, 0), gin.World(&d)
					peer := 1 - world.Rank
					for i := range rounds {
						if world.Rank == int32(i%2) {
							for w := range int(bytes / 8) {
								gpu.Cast[uint64](send.Device().Base).At(w).Store(i + uint64(w))
							}
							ok(c.Put(co, world, peer, recv.Device(), 0, send.Device(), 0, bytes, gin.StrongInc(0)), "put %d", i)
							continue
						}
						ok(c.WaitSignal(co, 0, i/2+1, 64, gin.FromPeer(world, peer)), "wait %d", i)
						for w := range int(bytes / 8) {
							if v := gpu.Cast[uint64](recv.Device().Base).At(w).Load(); v != i+uint64(w) {
								panic("a payload is not that of its round")
							}
						}
					}
				})
				r.sync()
				r.drop(dc, recv, send)
			})
		})
	}
}
