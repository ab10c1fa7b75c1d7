// SPDX-License-Identifier: Apache-2.0

package doorbell_test

import (
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
	kind      string // put, value or signal
	src, dst  int
	bytes     int
	value     uint64
	add       uint64 // to the signal that the target keeps for this source; 0: none
	shared    uint64 // to the signal that it keeps for all; 0: none
	counter   bool
}

// history is what each rank does, in order.
type history struct {
	ranks, perNode, contexts int
	needs                    doorbell.Needs
	progress                 string
	ops                      [][]op
	part                     int // bytes of a window for each source
	seed                     uint64
}

const historySource = 2000

// drawHistory draws one. Puts never overlap, since nothing orders them: each takes the next bytes of its source's
// part, with a gap before it.
func drawHistory(t *rapid.T) *history {
	h := &history{ranks: rapid.IntRange(1, 4).Draw(t, "ranks"), seed: rapid.Uint64().Draw(t, "bytes")}
	if h.ranks%2 == 0 {
		h.perNode = h.ranks / 2
	}
	h.progress = rapid.SampledFrom([]string{"assisted", "assisted", "thread"}).Draw(t, "progress")
	h.contexts = rapid.IntRange(1, 3).Draw(t, "contexts")
	h.needs = doorbell.Needs{
		Contexts: h.contexts, Signals: h.ranks + 2, Counters: 1,
		QueueDepth: 1 << rapid.IntRange(1, 6).Draw(t, "log2 depth"),
		SmallPut:   rapid.SampledFrom([]int{8, 14, 15, 64, 256}).Draw(t, "small put"),
	}
	for range h.ranks {
		at := make([]int, h.ranks)
		ops := make([]op, rapid.IntRange(0, 40).Draw(t, "operations"))
		for i := range ops {
			o := &ops[i]
			o.ctx, o.peer = rapid.IntRange(0, h.contexts-1).Draw(t, "context"), rapid.IntRange(0, h.ranks-1).Draw(t, "peer")
			o.kind = rapid.SampledFrom([]string{"put", "put", "value", "signal"}).Draw(t, "kind")
			switch o.kind {
			case "put":
				o.bytes = rapid.OneOf(rapid.IntRange(0, 20), rapid.IntRange(250, 260), rapid.IntRange(0, historySource)).Draw(t, "bytes")
				o.src = rapid.IntRange(0, historySource-o.bytes).Draw(t, "source")
			case "value":
				o.bytes, o.value = rapid.IntRange(1, 8).Draw(t, "bytes"), rapid.Uint64().Draw(t, "value")
			}
			o.dst = at[o.peer] + rapid.IntRange(0, 9).Draw(t, "gap")
			at[o.peer] = o.dst + o.bytes
			h.part = max(h.part, at[o.peer]+9)
			switch rapid.IntRange(0, 3).Draw(t, "signal") {
			case 0:
				o.add = 1
			case 1:
				o.add = rapid.Uint64Range(1, 1<<50).Draw(t, "add")
			case 2:
				o.shared = rapid.Uint64().Draw(t, "add")
			}
			if o.kind == "signal" && o.add == 0 && o.shared == 0 {
				o.add = 1
			}
			o.counter = rapid.Bool().Draw(t, "counter")
		}
		h.ops = append(h.ops, ops)
	}
	h.part = max(h.part, 1)
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
	recv, send := r.window(h.ranks*h.part), r.window(historySource)
	for i, b := 0, send.Buffer().Bytes(); i < len(b); i++ {
		b[i] = h.payload(r.Rank(), i)
	}
	fill(recv.Buffer().Bytes(), canary)
	r.sync()
	r.start(doorbell.Grid{Blocks: 2, Warps: 1, Cooperative: true}, func(t gpu.Thread) {
		if t.Block() == 0 {
			h.post(t, r, dc.Device(), recv.Device(), send.Device())
		} else {
			h.look(t, r, dc.Device(), recv.Device())
		}
	})
	r.wait()
	r.run(func(t gpu.Thread) { h.final(r, dc.Device(), recv.Device()) })
	r.sync()
	r.drop(dc, recv, send)
}

func (h *history) post(t gpu.Thread, r *rank, d gin.DevComm, recv, send gin.Window) {
	co, world := gin.ByThread(t), gin.World(&d)
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

func (h *history) look(t gpu.Thread, r *rank, d gin.DevComm, recv gin.Window) {
	co, world := gin.ByThread(t), gin.World(&d)
	for from := range h.ranks {
		for x := range h.contexts {
			c := gin.Open(&d, int32(x))
			sum := uint64(0)
			covered := []*op{}
			want := make([]byte, h.part)
			for i := range h.ops[from] {
				o := &h.ops[from][i]
				if o.ctx != x || o.peer != r.Rank() {
					continue
				}
				covered = append(covered, o)
				if o.add == 0 {
					continue
				}
				sum += o.add
				ok(c.WaitSignal(co, int32(from), sum, 64, gin.FromPeer(world, int32(from))), "wait for operation %d of rank %d", i, from)
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
func (h *history) final(r *rank, d gin.DevComm, recv gin.Window) {
	for from := range h.ranks {
		want := fill(make([]byte, h.part), canary)
		for i := range h.ops[from] {
			if h.ops[from][i].peer == r.Rank() {
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

// TestHistories runs random histories of all ranks at once and compares what is in windows, signals and counters with
// a plain model; what a strong signal covers is looked at the moment that it is seen.
func TestHistories(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		h := drawHistory(rt)
		if err := tryEach(t, h.ranks, doorbell.Options{RanksPerNode: h.perNode, Progress: h.progress}, h.run); err != nil {
			rt.Fatalf("%v", err)
		}
	})
}

// TestPayloadAfterWait reads payloads right after their waits, many times: each is whole and of its round.
func TestPayloadAfterWait(t *testing.T) {
	rounds := uint64(20_000)
	switch {
	case testenv.Long():
		rounds = 1_000_000
	case raceOn:
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
