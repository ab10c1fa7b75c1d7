// SPDX-License-Identifier: Apache-2.0

package plugintest

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/doorbell-net/doorbell/netplugin"
)

// checkOpen: a plugin says who it is, and refuses ranks that cannot be.
func checkOpen(t testing.TB, h Harness) {
	if n := h.Plugin.Name(); n == "" || n != strings.ToLower(n) {
		t.Errorf("the plugin's name is %q: lower case is accepted", n)
	}
	if n := h.Plugin.Powers().MaxBytes; n < 8 {
		t.Errorf("MaxBytes is %d: 8 or more is accepted, a put value's size", n)
	}
	for _, c := range []netplugin.Config{{Rank: 0, Ranks: 0}, {Rank: -1, Ranks: 2}, {Rank: 2, Ranks: 2}, {Rank: 0, Ranks: -1}} {
		if ep, err := h.Plugin.Open(c); err == nil {
			ep.Close()
			t.Errorf("open of rank %d of %d ranks was not refused", c.Rank, c.Ranks)
		}
	}
	w := newWorld(t, h, 64)
	if n := w.ranks[0].ep.Post(nil); n != 0 {
		t.Errorf("Post took %d of no operations", n)
	}
	w.verify("after opening")
}

// sizes are those that put and get are tried with.
func (w *world) sizes() []int {
	s := []int{0, 1, 7, 8, 9, 4096, w.most()}
	return slices.DeleteFunc(s, func(n int) bool { return n > w.most() })
}

// most is MaxBytes, or less.
func (w *world) most() int { return min(w.powers.MaxBytes, usual) }

func bigWorld(t testing.TB, h Harness) *world {
	t.Helper()
	return newWorld(t, h, min(h.Plugin.Powers().MaxBytes, usual)+2*page)
}

// offsets are where n bytes of the region are tried: the start, odd ones, up to the end.
func (w *world) offsets(n int) []int { return []int{0, 1, 13, 64, w.size - n} }

// checkPut: a put of any size and offset writes those bytes and no other.
func checkPut(t testing.TB, h Harness) {
	w := bigWorld(t, h)
	for from := range w.ranks {
		for to := range w.ranks {
			for _, n := range w.sizes() {
				for _, off := range w.offsets(n) {
					data := w.random(n)
					kept := slices.Clone(data)
					w.send(from, w.put(from, to, 0, off, data))
					w.verify(fmt.Sprintf("after a put of %d bytes to offset %d, rank %d to rank %d", n, off, from, to))
					if !bytes.Equal(data, kept) {
						t.Fatalf("a put of %d bytes changed its source", n)
					}
				}
			}
		}
	}
	// The source is most often a window.
	src := w.ranks[0].data.mem[5:]
	w.send(0, w.put(0, 1, 7, 9, src[:min(100, w.most())]))
	w.verify("after a put out of a window")
}

// checkSignal: a signal adds its value to its word exactly once, with and without a payload.
func checkSignal(t testing.TB, h Harness) {
	w := newWorld(t, h, 1024)
	for from := range w.ranks {
		for to := range w.ranks {
			for i, add := range []uint64{1, 0, 5, 1 << 63, 1<<64 - 1} {
				for _, word := range []int{0, 1, words - 1 - len(w.ranks)} {
					what := fmt.Sprintf("of %#x to signal %d, rank %d to rank %d", add, word, from, to)
					w.send(from, w.signal(from, to, 0, word, add))
					w.verify("after a signal " + what)
					w.send(from, w.raising(from, w.put(from, to, int32(i), 8*i, w.random(8)), word, add))
					w.verify("after a put with a signal " + what)
					w.send(from, w.raising(from, w.put(from, to, 0, 0, nil), word, add))
					w.verify("after a put of 0 bytes with a signal " + what)
				}
			}
		}
	}
	many := make([]netplugin.Op, 0, 300)
	for i := range cap(many) {
		many = append(many, w.signal(1, i%len(w.ranks), int32(i%3)<<20, i%4, uint64(i)))
	}
	w.send(1, many...)
	w.verify("after 300 signals in one Post")
}

// checkGet: a get brings the bytes that are there, and changes nothing else.
func checkGet(t testing.TB, h Harness) {
	w := bigWorld(t, h)
	for from := range w.ranks {
		for to := range w.ranks {
			w.send(from, w.put(from, to, 0, 8, w.random(min(5000, w.most()))))
			w.verify("after a put")
			for _, n := range w.sizes() {
				for _, off := range w.offsets(n) {
					into := w.random(n + 2*8)
					want := slices.Clone(into)
					copy(want[8:8+n], w.ranks[to].data.want[off:])
					op := w.put(from, to, 0, off, into[8:8+n])
					op.Kind = netplugin.Get
					w.send(from, op)
					if !bytes.Equal(into, want) {
						t.Fatalf("a get of %d bytes at offset %d, rank %d from rank %d: the bytes, or those beside them, are not what they must be", n, off, from, to)
					}
				}
			}
			w.verify("after gets")
		}
	}
}

// checkAllocations: operations end, and allocate nothing once endpoints and regions are there.
func checkAllocations(t testing.TB, h Harness) {
	w := newWorld(t, h, 8192)
	data := w.random(512)[:min(512, w.most())]
	get := w.put(0, 1, 0, 512, make([]byte, len(data)))
	get.Kind = netplugin.Get
	ops := []netplugin.Op{
		w.put(0, 1, 0, 0, data), w.raising(0, w.put(0, 1, 0, 512, data), 0, 1), w.signal(0, 2%len(w.ranks), 1, 1, 1), get,
	}
	const tries = 1 << 20
	round := func() {
		taken, left := 0, len(ops)
		for range tries {
			if taken < len(ops) {
				for i := taken; i < len(ops); i++ {
					ops[i].State = poison
				}
				n := w.ranks[0].ep.Post(ops[taken:])
				for i := range ops[taken : taken+n] {
					if ops[taken+i].State != netplugin.Posted {
						left--
					}
				}
				taken += n
			}
			for _, m := range w.ranks {
				left -= m.ep.Poll(m.done[:])
			}
			if left == 0 {
				return
			}
		}
		t.Errorf("%d operations have no end within %d polls", left, tries)
	}
	if n := testing.AllocsPerRun(50, round); n != 0 && !h.Allocates {
		t.Errorf("Post and Poll of %d operations: %v allocations (want none)", len(ops), n)
	}
	for i := range ops {
		if ops[i].State == netplugin.Failed {
			t.Errorf("operation %d failed: %v", i, ops[i].Err)
		}
	}
}
