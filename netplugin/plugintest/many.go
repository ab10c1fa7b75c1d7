// SPDX-License-Identifier: Apache-2.0

package plugintest

import (
	"fmt"
	"math"
	"testing"

	"github.com/doorbell-net/doorbell/netplugin"
)

// checkBurst: more operations than any queue holds are each done once, and those that Post did not take are left alone.
func checkBurst(t testing.TB, h Harness) {
	const n, slots, slot = 3000, 100, 24
	w := newWorld(t, h, slots*slot)
	data := w.random(slots * slot)
	for from := range w.ranks {
		ops := make([]netplugin.Op, n)
		for i := range ops {
			at := i % slots
			if ops[i] = w.signal(from, (from+1)%len(w.ranks), 0, i%5, uint64(i)); i%3 > 0 {
				ops[i] = w.raising(from, w.put(from, (from+1)%len(w.ranks), 0, at*slot, data[at*slot:][:slot]), i%5, uint64(i))
			}
		}
		w.send(from, ops...)
	}
	w.verify(fmt.Sprintf("after %d operations at once", n))
}

// checkContexts: contexts are any numbers from 0, and what fails in one stops none whose number is like it.
func checkContexts(t testing.TB, h Harness) {
	w := newWorld(t, h, 1024)
	numbers := []int32{0, 1, 2, 63, 64, 65, 127, 128, 255, 256, 257, 1023, 4095, 4097, 65535, 65536, 65537, 1<<20 + 1, 1<<24 + 1, math.MaxInt32}
	round := func(but int32) {
		for i, ctx := range numbers {
			if ctx != but {
				w.send(0, w.raising(0, w.put(0, 1, ctx, 8*i, w.random(8)), i, 1))
			}
		}
		w.verify("after puts of many contexts")
	}
	round(-1)
	bad := []netplugin.Op{w.put(0, 1, 1, w.size, w.random(8)), w.raising(0, w.put(0, 1, 1, 1000, w.random(8)), 30, 1)}
	n := w.post(0, bad)
	w.finish()
	if bad[0].State != netplugin.Failed {
		t.Errorf("a put behind the end was not refused")
	}
	if n == 2 && bad[1].State == netplugin.Done { // of an unordered network
		w.expect(&bad[1])
	}
	round(1)
}

// checkNoRoom: Poll with no room reports nothing and loses nothing, and with room for one reports one.
func checkNoRoom(t testing.TB, h Harness) {
	const n = 40
	w := newWorld(t, h, 8*n)
	ops := make([]netplugin.Op, n)
	for i := range ops {
		ops[i] = w.raising(0, w.put(0, 1, 0, 8*i, w.random(8)), i, 1)
		w.expect(&ops[i])
	}
	w.post(0, ops)
	late := w.deadline("wait for signals while Poll has no room")
	for w.word(1, n-1) == 0 || w.word(1, 0) == 0 {
		for r, m := range w.ranks {
			if got := m.ep.Poll(nil); got != 0 {
				t.Fatalf("Poll of rank %d reported %d completions into no room", r, got)
			}
		}
		late()
	}
	for range 100 { // completions are there by now, or come while there is no room
		for _, m := range w.ranks {
			m.ep.Poll(m.done[:0])
		}
	}
	w.finish()
	w.verify("after completions that waited for room")
}

// checkManyRegions: many regions of one rank are all told apart, also when some were forgotten and made again.
func checkManyRegions(t testing.TB, h Harness) {
	const n, slot = 400, 32
	w := newWorld(t, h, n*slot)
	regions := make([]netplugin.Region, n)
	use := func(i int) {
		m := memory{mem: w.ranks[1].data.mem[i*slot:][:slot:slot]}
		m.key = w.export(1, m.mem, false)
		regions[i] = w.use(0, 1, &m)
	}
	for i := range regions {
		use(i)
	}
	round := func(what string) {
		ops := make([]netplugin.Op, n)
		for i := range ops {
			ops[i] = w.put(0, 1, 0, i*slot, w.random(slot))
			w.expect(&ops[i])
			ops[i].Dst, ops[i].DstOff = regions[i], 0
		}
		if k := w.post(0, ops); ops[k-1].State == netplugin.Failed {
			t.Fatalf("%s: put to region %d: %v", what, k-1, ops[k-1].Err)
		}
		w.verify(what)
	}
	round(fmt.Sprintf("after puts to %d regions", n))
	for i := range regions {
		if w.rng.IntN(2) == 0 {
			w.ranks[0].ep.Forget(regions[i])
			regions[i] = 0
		}
	}
	for i, r := range regions {
		if r == 0 {
			use(i)
		}
	}
	round("after regions were forgotten and made again")
}
