// SPDX-License-Identifier: Apache-2.0

package plugintest

import (
	"bytes"
	"errors"
	"testing"

	"github.com/doorbell-net/doorbell/netplugin"
)

// checkWithdraw: a region that its owner withdraws while operations are on their way to it is not written any more, where
// the network does not write through a mapping of it; each operation ends, and what failed raised no signal.
func checkWithdraw(t testing.TB, h Harness) {
	const n, slot = 40, 3000
	w := newWorld(t, h, 512)
	extra := memory{mem: make([]byte, n*slot)}
	extra.key = w.export(1, extra.mem, false)
	region := w.use(0, 1, &extra)
	ops := make([]netplugin.Op, n)
	for i := range ops {
		ops[i] = w.raising(0, w.put(0, 1, int32(i), 0, bytes.Repeat([]byte{1}, min(slot, w.powers.MaxBytes))), i, 1)
		ops[i].Dst, ops[i].DstOff = region, uint64(i*slot)
	}
	w.post(0, ops)
	for range w.rng.IntN(4) {
		w.step()
	}
	w.ranks[1].ep.Withdraw(extra.key)
	then := bytes.Clone(extra.mem)
	w.finish()
	for i := range ops {
		if ops[i].State == netplugin.Done {
			w.ranks[1].signal[i]++
		}
	}
	w.verify("after a region was withdrawn: signals of what was done")
	if w.powers.Mapped {
		w.ranks[0].ep.Forget(region)
		return
	}
	if !bytes.Equal(then, extra.mem) {
		t.Errorf("a region was written after it was withdrawn")
	}
	bad := []netplugin.Op{w.put(0, 1, n, 0, w.random(8)), w.raising(0, w.put(0, 1, n, 16, w.random(8)), n, 1)}
	bad[0].Dst = region
	taken := w.post(0, bad)
	if w.finish(); bad[0].State != netplugin.Failed || !bytes.Equal(then, extra.mem) {
		t.Errorf("a put to a region that was withdrawn was not refused")
	}
	if taken == 2 && bad[1].State == netplugin.Done {
		if w.expect(&bad[1]); w.powers.Ordered {
			t.Errorf("a put to a region that was withdrawn failed, and the later one of its context was done")
		}
	}
	w.send(0, w.raising(0, w.put(0, 1, n+1, 8, w.random(8)), n+1, 1))
	w.verify("after a region was withdrawn: other regions")
}

// checkLose: of a network that connects, what is on its way to a lost peer ends, later operations to it fail, and those of
// others go on.
func checkLose(t testing.TB, h Harness) {
	const n, slot = 300, 64
	w := newWorld(t, h, n*slot)
	c, ok := w.ranks[0].ep.(netplugin.Connector)
	if !ok {
		return // whoever maps memory reaches it without its owner
	}
	ops := make([]netplugin.Op, n)
	for i := range ops {
		ops[i] = w.raising(0, w.put(0, 1, int32(i%3), i*slot, w.random(slot)), i%words, 1)
	}
	w.post(0, ops)
	c.Lose(1)
	w.finish()
	for i := range ops {
		if err := ops[i].Err; err != nil && !errors.Is(err, netplugin.ErrPeerLost) {
			t.Errorf("operation %d of %d to a peer that was lost ended with %v, which does not wrap ErrPeerLost", i, n, err)
		}
	}
	for _, ctx := range []int32{0, 7} {
		if err := w.fails(0, w.put(0, 1, ctx, 0, w.random(8))); !errors.Is(err, netplugin.ErrPeerLost) {
			t.Errorf("a put to a peer that is lost ended with %v, want what wraps ErrPeerLost", err)
		}
	}
	c.Lose(1) // once more is nothing
	for _, op := range []struct{ from, to int }{{0, 2}, {2, 0}, {2, 1}} {
		if op.from < len(w.ranks) && op.to < len(w.ranks) {
			w.reach(op.from, op.to)
		}
	}
}

// reach sends a put with a signal and waits for it, where memory is not as the model says.
func (w *world) reach(from, to int) {
	w.t.Helper()
	data, before := w.random(32), w.word(to, words-1)
	op := []netplugin.Op{w.raising(from, w.put(from, to, 5, 0, data), words-1, 1000)}
	w.post(from, op)
	late := w.deadline("wait for a signal between ranks that are not lost")
	for w.word(to, words-1)-before != 1000 {
		w.step()
		late()
	}
	if w.finish(); op[0].State != netplugin.Done || !bytes.Equal(w.ranks[to].data.mem[:len(data)], data) {
		w.t.Errorf("rank %d to rank %d, after another was lost: %v, or wrong bytes", from, to, op[0].Err)
	}
}

// checkEpoch: a network that connects moves nothing between ranks of different member sets: they do not meet, or their
// operations fail.
func checkEpoch(t testing.TB, h Harness) {
	h.Ranks, h.Deadline = 2, h.Deadline/10
	h.epoch = func(rank int) uint32 { return uint32(7 + rank) }
	w := openWorld(t, h, 64)
	if _, ok := w.ranks[0].ep.(netplugin.Connector); !ok || w.powers.Mapped {
		return // memory to map is passed within one member set alone
	}
	if w.meet() != nil {
		return
	}
	w.h.Deadline *= 10
	w.introduce()
	for from := range w.ranks {
		if w.fails(from, w.raising(from, w.put(from, 1-from, 0, 8, w.random(8)), 0, 1)) == nil {
			t.Errorf("an operation of rank %d to rank %d of another epoch was done", from, 1-from)
		}
	}
	if d := w.diff(); d != "" {
		t.Errorf("after operations between epochs: %s", d)
	}
}
