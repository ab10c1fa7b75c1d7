// SPDX-License-Identifier: Apache-2.0

package plugintest

import (
	"fmt"
	"testing"

	"github.com/doorbell-net/doorbell/netplugin"
)

// checkLimit: an operation of MaxBytes is done whole; a larger one, which Core never posts, is done or refused, not cut.
func checkLimit(t testing.TB, h Harness) {
	const most = 64 << 20
	n := h.Plugin.Powers().MaxBytes
	if n > most {
		t.Logf("MaxBytes is %d: nothing beyond %d bytes is tried", n, most)
		n = most - 1
	}
	w := newWorld(t, h, n+2*page)
	w.send(0, w.raising(0, w.put(0, 1, 0, 13, w.random(n)), 0, 1))
	w.verify(fmt.Sprintf("after a put of MaxBytes, %d", n))
	get := w.put(0, 1, 0, 13, make([]byte, n))
	get.Kind = netplugin.Get
	w.send(0, get)
	if string(get.Data) != string(w.ranks[1].data.want[13:][:n]) {
		t.Errorf("a get of MaxBytes, %d, brought other bytes", n)
	}
	op := []netplugin.Op{w.raising(0, w.put(0, 1, 1, 5, w.random(n+1)), 1, 1)}
	w.post(0, op)
	if w.finish(); op[0].State == netplugin.Done {
		w.expect(&op[0])
	}
	w.verify(fmt.Sprintf("after a put of MaxBytes + 1, %d, that ended with %v", n+1, op[0].Err))
}

// checkAlignment: a signal stands at multiples of 8 alone, and one that does not is refused with its payload.
func checkAlignment(t testing.TB, h Harness) {
	w := newWorld(t, h, 64)
	for off := range uint64(16) {
		for i, op := range []netplugin.Op{w.signal(0, 1, 0, 0, 1), w.raising(0, w.put(0, 1, 0, int(off), w.random(8)), 0, 1)} {
			op.SigOff = off
			op.Context = int32(2*off) + int32(i) // nothing need pass where one failed
			what := fmt.Sprintf("signal at offset %d, with a payload %v", off, i == 1)
			switch err := w.fails(0, op); {
			case off&7 == 0 && err != nil:
				t.Errorf("%s: %v", what, err)
			case off&7 == 0:
				w.expect(&op)
			case err == nil:
				t.Errorf("%s was not refused: a multiple of 8 is accepted", what)
			}
			w.verify("after a " + what)
		}
	}
}
