// SPDX-License-Identifier: Apache-2.0

package plugintest

import (
	"bytes"
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/doorbell-net/doorbell/netplugin"
)

// checkPayloadFirst: when a signal is seen its payload is there, and on an ordered network that of each earlier
// operation. Memory is looked at after each call of an endpoint.
func checkPayloadFirst(t testing.TB, h Harness) {
	const n, slot = 48, 160
	w := newWorld(t, h, n*slot)
	for from := range w.ranks {
		to := (from + 1) % len(w.ranks)
		ops := make([]netplugin.Op, n)
		start := [n]uint64{}
		for i := range ops {
			switch {
			case i%5 == 4:
				ops[i] = w.signal(from, to, 0, i, 1)
			case i%3 == 0: // covered by later signals only
				ops[i] = w.put(from, to, 0, i*slot, w.random(1+w.rng.IntN(slot)))
			default:
				ops[i] = w.raising(from, w.put(from, to, 0, i*slot, w.random(1+w.rng.IntN(slot))), i, 1)
			}
			start[i] = w.ranks[to].signal[i]
		}
		there := func(i int) bool {
			return bytes.Equal(w.ranks[to].data.mem[i*slot:][:len(ops[i].Data)], ops[i].Data)
		}
		w.look = func() {
			for i := n - 1; i >= 0; i-- {
				if !ops[i].Raise || w.word(to, i) == start[i] {
					continue
				}
				first := i
				if w.powers.Ordered {
					first = 0
				}
				for j := first; j <= i; j++ {
					if !there(j) {
						w.look = nil
						t.Fatalf("rank %d sees the signal of operation %d and not the payload of operation %d", to, i, j)
					}
				}
				return
			}
		}
		w.send(from, ops...)
		w.look = nil
		w.verify("after puts with signals")
	}
}

// checkConcurrent: a target that polls in a goroutine of its own reads a payload when it has seen the signal. The race
// detector sees it if the signal does not order them.
func checkConcurrent(t testing.TB, h Harness) {
	const n, slot = 48, 512
	w := newWorld(t, h, n*slot)
	ops := make([]netplugin.Op, n)
	want := w.random(n * slot)
	for i := range ops {
		ops[i] = w.raising(0, w.put(0, 1, 0, i*slot, want[i*slot:][:min(slot, w.most())]), i, 1)
		ops[i].Token = uint64(i)
		w.expect(&ops[i])
	}
	end := time.Now().Add(h.Deadline)
	target := make(chan error, 1)
	go func() {
		var done [1]netplugin.Completion
		target <- func() error {
			for i := range n {
				for w.word(1, i) == 0 {
					w.ranks[1].ep.Poll(done[:])
					if time.Now().After(end) {
						return fmt.Errorf("signal %d of %d did not come within %v", i, n, h.Deadline)
					}
					runtime.Gosched()
				}
				size := len(ops[i].Data)
				if got := w.ranks[1].data.mem[i*slot:][:size]; !bytes.Equal(got, want[i*slot:][:size]) {
					return fmt.Errorf("signal %d is there, its payload is not", i)
				}
			}
			return nil
		}()
	}()
	// The source polls on until the target has all, or gave up.
	var done [1]netplugin.Completion
	taken, left := 0, n
	var err error
	for got := false; !got || left > 0 && err == nil; {
		if taken < n {
			k := w.ranks[0].ep.Post(ops[taken:])
			for _, op := range ops[taken : taken+k] {
				if op.State != netplugin.Posted {
					left--
				}
			}
			taken += k
		}
		left -= w.ranks[0].ep.Poll(done[:])
		if got {
			w.ranks[1].ep.Poll(done[:]) // an acknowledgement may be on its way still
		}
		select {
		case err = <-target:
			got = true
		default:
		}
		if got && left > 0 && time.Now().After(end) {
			err = fmt.Errorf("%d operations have no completion within %v", left, h.Deadline)
		}
		runtime.Gosched()
	}
	if err != nil {
		t.Fatal(err)
	}
	w.verify("after puts to a target in another goroutine")
}

// checkHistory: random operations of all ranks, in random pieces, end as they do in the model.
func checkHistory(t testing.TB, h Harness) {
	for range h.Histories {
		History(t, h)
		h.Seed++
	}
}

// History is one random history of operations of all ranks, which follows from h.Seed: it must end as it does in the model.
// A test of many seeds calls it by itself.
func History(t testing.TB, h Harness) {
	h.fill()
	const contexts, slot, batch = 3, 96, 8
	parts := 1
	if !h.Plugin.Powers().Ordered {
		parts = batch // what no order holds apart has bytes of its own
	}
	w := newWorld(t, h, h.Ranks*contexts*parts*slot)
	var gets []get
	for range 20 {
		from := w.rng.IntN(len(w.ranks))
		ops := make([]netplugin.Op, 1+w.rng.IntN(batch))
		for i := range ops {
			ops[i] = w.anyOp(from, contexts, slot, parts, i%parts)
			if ops[i].Kind == netplugin.Get {
				ops[i].Data = w.random(len(ops[i].Data))
				want := w.ranks[ops[i].Peer].data.want[ops[i].DstOff:][:len(ops[i].Data)]
				gets = append(gets, get{ops[i].Data, bytes.Clone(want)})
			}
			w.expect(&ops[i])
		}
		if n := w.post(from, ops); ops[n-1].State == netplugin.Failed {
			t.Fatalf("history of seed %d: operation of rank %d to rank %d: %v", h.Seed, from, ops[n-1].Peer, ops[n-1].Err)
		}
		if !w.powers.Ordered {
			w.verify(fmt.Sprintf("in the history of seed %d", h.Seed))
		} else if w.rng.IntN(4) == 0 {
			w.step()
		}
	}
	w.verify(fmt.Sprintf("after the history of seed %d", h.Seed))
	for i, g := range gets {
		if !bytes.Equal(g.into, g.want) {
			t.Fatalf("history of seed %d: get %d of %d brought %x, want %x", h.Seed, i, len(gets), g.into, g.want)
		}
	}
}

// get is what a get is to bring.
type get struct{ into, want []byte }

// anyOp is a random operation. Each (source, context) has a part of each region and a signal of its own, since nothing
// orders it against the others; on a network without order that is cut to parts again, one for each operation of a batch.
func (w *world) anyOp(from, contexts, slot, parts, part int) netplugin.Op {
	to, ctx := w.rng.IntN(len(w.ranks)), w.rng.IntN(contexts)
	mine := from*contexts + ctx
	off := w.rng.IntN(slot)
	data := w.random(w.rng.IntN(min(slot-off, w.most()) + 1))
	op := w.put(from, to, int32(ctx), (mine*parts+part)*slot+off, data)
	switch w.rng.IntN(8) {
	case 0, 1:
		op.Kind = netplugin.Get
	case 2:
		return w.signal(from, to, int32(ctx), mine, w.rng.Uint64())
	case 3, 4, 5:
		op = w.raising(from, op, mine, w.rng.Uint64())
	}
	return op
}
