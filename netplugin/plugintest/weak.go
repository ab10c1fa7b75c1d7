// SPDX-License-Identifier: Apache-2.0

package plugintest

import (
	"bytes"
	"testing"

	"github.com/doorbell-net/doorbell/netplugin"
)

// checkWeak: a weak signal is never seen before the payload that it came with, whatever the network's order. Memory is
// looked at after each call of an endpoint.
func checkWeak(t testing.TB, h Harness) {
	const n, slot, contexts = 48, 200, 4
	for to := range h.Ranks {
		w := newWorld(t, h, n*slot)
		from := (to + 1) % h.Ranks
		ops := make([]netplugin.Op, n)
		seen := [n]bool{}
		for i := range ops {
			ops[i] = w.raising(from, w.put(from, to, int32(w.rng.IntN(contexts)), i*slot, w.random(1+w.rng.IntN(slot))), i, w.rng.Uint64()|1)
			ops[i].Strong = false
		}
		w.look = func() {
			for i := range ops {
				if seen[i] || w.word(to, i) == 0 {
					continue
				}
				seen[i] = true
				if !bytes.Equal(w.ranks[to].data.mem[i*slot:][:len(ops[i].Data)], ops[i].Data) {
					w.look = nil
					t.Fatalf("rank %d sees the weak signal of operation %d and not its payload of %d bytes", to, i, len(ops[i].Data))
				}
			}
		}
		w.send(from, ops...)
		w.look = nil
		w.verify("after puts with weak signals")
	}
}

// checkGetOrder: on an ordered network a get brings what the puts before it wrote, and nothing of those behind it. Others
// put to the bytes beside it meanwhile.
func checkGetOrder(t testing.TB, h Harness) {
	const slot, rounds = 45, 12 // odd: words are shared
	w := newWorld(t, h, h.Ranks*slot)
	if !w.powers.Ordered {
		return // it would be a get by itself
	}
	for range rounds {
		var all [][]netplugin.Op
		for from := range w.ranks {
			var ops []netplugin.Op
			for k := range 6 {
				op := w.put(from, 0, 0, from*slot, w.random(slot))
				if op.Kind = netplugin.Put; k%2 == 1 {
					op.Kind = netplugin.Get
				}
				ops = append(ops, op)
			}
			all = append(all, ops)
		}
		for from, ops := range all {
			for i := range ops {
				w.expect(&ops[i])
			}
			if n := w.post(from, ops); ops[n-1].State == netplugin.Failed {
				t.Fatalf("operation %d of rank %d to rank 0: %v", n-1, from, ops[n-1].Err)
			}
		}
		w.finish()
		for from, ops := range all {
			for i := 1; i < len(ops); i += 2 {
				if !bytes.Equal(ops[i].Data, ops[i-1].Data) {
					t.Fatalf("a get of rank %d between two puts to the same bytes brought %x, want what the first put wrote, %x", from, ops[i].Data, ops[i-1].Data)
				}
			}
		}
		w.verify("after puts and gets to bytes side by side")
	}
}
