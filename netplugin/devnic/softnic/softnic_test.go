// SPDX-License-Identifier: Apache-2.0

package softnic_test

import (
	"bytes"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/doorbell-net/doorbell/gpu"
	"github.com/doorbell-net/doorbell/netplugin/devnic"
	"github.com/doorbell-net/doorbell/netplugin/devnic/softnic"
	"github.com/doorbell-net/doorbell/netplugin/devnic/wqe"
)

// TestOperations: what each operation moves is there when it has its CQE, and nothing beside it, over many laps of a small
// queue, with several WQEs for a doorbell, over a wire that behaves, ones that do not, and one between memories of devices.
func TestOperations(t *testing.T) {
	for _, w := range []struct{ wire, faults string }{
		{"shm", ""}, {"fault+shm", "seed=3,delay=60,again=40,split=50"}, {"fault+shm", "seed=4,reorder=80,delay=50,unordered"}, {"dma", ""},
	} {
		t.Run(w.wire+" "+w.faults, func(t *testing.T) {
			const size = 1 << 20 // more than one operation of the wire moves
			hosts := world(t, 2, w.wire, w.faults)
			near, far, words := make([]byte, size), make([]byte, size), lines(64)
			nearKeys, _ := share(t, hosts, 0, near, false)
			farKeys, _ := share(t, hosts, 1, far, false)
			wordKeys, _ := share(t, hosts, 1, words, true)
			sinkKeys, _ := share(t, hosts, 0, lines(64), false)
			q, _ := join(t, hosts, 0, 1, 8)
			rng := rand.New(rand.NewPCG(5, 6))
			for i := range near {
				near[i] = byte(rng.Uint32())
			}
			model, added := bytes.Clone(far), uint64(0)
			for range 100 {
				at, n := rng.Uint64N(size/2), rng.Uint32N(2000)+1
				if rng.IntN(20) == 0 {
					n = size / 2
				}
				value, room, add := rng.Uint64(), rng.Uint64N(8)+1, rng.Uint64()
				q.post(func(b *wqe.Block, i uint64) { b.Write(i, q.Number, at, farKeys[0], size/4, nearKeys[0], n) })
				q.post(func(b *wqe.Block, i uint64) { b.FetchAdd(i, q.Number, 8, wordKeys[0], add, 0, sinkKeys[0]) })
				q.post(func(b *wqe.Block, i uint64) { b.Nop(i, q.Number) })
				q.post(func(b *wqe.Block, i uint64) {
					b.WriteValue(i, q.Number, size-8, farKeys[0], value, uint32(room))
				})
				q.bell()
				q.ok(t)
				copy(model[at:at+uint64(n)], near[size/4:])
				for i := range room {
					model[size-8+i] = byte(value >> (8 * i))
				}
				if added += add; word(words, 1) != added || word(words, 0)|word(words, 2) != 0 {
					t.Fatalf("signals are %x, the middle one of %d was added", words, added)
				}
				q.post(func(b *wqe.Block, i uint64) { b.Read(i, q.Number, at, farKeys[0], 0, nearKeys[0], n) })
				q.bell()
				q.ok(t)
				if !bytes.Equal(near[:n], model[at:at+uint64(n)]) {
					t.Fatal("a read brought something else")
				}
			}
			if !bytes.Equal(far, model) {
				t.Error("the peer's memory is not what was written")
			}
		})
	}
}

// TestSignalCoversWrites: who sees a fetch-add sees the writes before it, before any CQE.
func TestSignalCoversWrites(t *testing.T) {
	for _, w := range []struct{ wire, faults string }{
		{"fault+shm", "seed=8,delay=80"}, {"fault+shm", "seed=9,reorder=80,delay=80,unordered"}, {"dma", ""},
	} {
		hosts := world(t, 2, w.wire, w.faults)
		near, far, words := make([]byte, 64), make([]byte, 64), lines(64)
		nearKeys, _ := share(t, hosts, 0, near, false)
		farKeys, _ := share(t, hosts, 1, far, false)
		wordKeys, _ := share(t, hosts, 1, words, true)
		sinkKeys, _ := share(t, hosts, 0, lines(64), false)
		q, _ := join(t, hosts, 0, 1, 8)
		for round := range uint64(50) {
			for i := range near {
				near[i] = byte(round + 1)
			}
			for at := uint64(0); at < 64; at += 16 {
				q.post(func(b *wqe.Block, i uint64) { b.Write(i, q.Number, at, farKeys[0], at, nearKeys[0], 16) })
			}
			q.post(func(b *wqe.Block, i uint64) { b.FetchAdd(i, q.Number, 0, wordKeys[0], 1, 0, sinkKeys[0]) })
			q.bell()
			for deadline := time.Now().Add(limit); word(words, 0) == round; {
				if hosts[0].Poll(); time.Now().After(deadline) {
					t.Fatal("the signal does not come")
				}
			}
			if !bytes.Equal(far, near) {
				t.Fatalf("%s %s: round %d: the signal is there, and %x of %x", w.wire, w.faults, round, far, near)
			}
			q.ok(t)
		}
	}
}

// TestSignalRides: a fetch-add that was told of with the write before it goes by that one's operation of the wire, the last one
// where the write is cut; where the wire refuses that, the write has failed and the fetch-add is flushed.
func TestSignalRides(t *testing.T) {
	const size = 1 << 20
	hosts := world(t, 2, "counted+shm", "")
	words, wire := lines(64), hosts[0].wire.(*counting)
	nearKeys, _ := share(t, hosts, 0, make([]byte, size), false)
	farKeys, _ := share(t, hosts, 1, make([]byte, size), false)
	wordKeys, _ := share(t, hosts, 1, words, true)
	q, _ := join(t, hosts, 0, 1, 8)
	signal := func(b *wqe.Block, i uint64) { b.FetchAdd(i, q.Number, 0, wordKeys[0], 1, 0, nearKeys[0]) }
	for _, c := range []struct {
		before func(b *wqe.Block, i uint64)
		ops    int
	}{
		{func(b *wqe.Block, i uint64) { b.Write(i, q.Number, 0, farKeys[0], 0, nearKeys[0], 8) }, 1},
		{func(b *wqe.Block, i uint64) { b.Write(i, q.Number, 0, farKeys[0], 0, nearKeys[0], size) }, 4},
		{func(b *wqe.Block, i uint64) { b.Read(i, q.Number, 0, farKeys[0], 0, nearKeys[0], 8) }, 2},
	} {
		ops, was := wire.ops, word(words, 0)
		q.post(c.before)
		q.post(signal)
		q.bell()
		q.ok(t)
		if wire.ops-ops != c.ops || word(words, 0) != was+1 {
			t.Errorf("%d operations, want %d; %d signals more", wire.ops-ops, c.ops, word(words, 0)-was)
		}
	}
	wire.refuses = true
	q.post(func(b *wqe.Block, i uint64) { b.WriteValue(i, q.Number, 0, farKeys[0], 1, 8) })
	q.post(signal)
	q.bell()
	if got := q.wait(t); got[0].Syndrome != wqe.RemoteAccess || got[1].Syndrome != wqe.Flushed || len(hosts[0].failed) != 1 {
		t.Errorf("CQEs are %+v, told of %+v", got, hosts[0].failed)
	}
}

// TestWait: a wait holds its queue until the other one's CQE is there.
func TestWait(t *testing.T) {
	hosts := world(t, 2, "shm", "")
	words := lines(64)
	keys, _ := share(t, hosts, 0, words, true)
	main, _ := join(t, hosts, 0, 1, 4)
	loop := create(t, hosts[0], 0, 4)
	if err := hosts[0].Connect(loop.Number, loop.Address); err != nil {
		t.Fatal(err)
	}
	for n := uint64(1); n < 12; n++ {
		until := main.next + 1
		loop.post(func(b *wqe.Block, i uint64) { b.Wait(i, loop.Number, main.CQ, until) })
		loop.post(func(b *wqe.Block, i uint64) { b.FetchAdd(i, loop.Number, 0, keys[0], 1, 8, keys[0]) })
		loop.bell()
		main.post(func(b *wqe.Block, i uint64) { b.Nop(i, main.Number) })
		main.bell()
		main.ok(t)
		for range 10 {
			hosts[0].Poll()
		}
		if word(words, 0) != n-1 {
			t.Fatalf("the counter is %d before the CQE that it waits for, want %d", word(words, 0), n-1)
		}
		main.post(func(b *wqe.Block, i uint64) { b.Nop(i, main.Number) })
		main.bell()
		loop.ok(t)
		main.ok(t)
		if word(words, 0) != n {
			t.Fatalf("the counter is %d, want %d", word(words, 0), n)
		}
	}
}

// TestRefused: each of these ends its WQE with the syndrome that hardware gives, flushes the rest, writes nothing, and is told
// once; another queue pair goes on.
func TestRefused(t *testing.T) {
	const size = 256
	for _, c := range []struct {
		name  string
		build func(b *wqe.Block, i uint64, q, other *queue, near, far, words, third uint32)
		want  wqe.Syndrome
		says  string
	}{
		{"a remote key that is not there", func(b *wqe.Block, i uint64, q, _ *queue, near, _, _, _ uint32) {
			b.Write(i, q.Number, 0, 99, 0, near, 8)
		}, wqe.RemoteAccess, "remote key 0x63 is not there"},
		{"a remote key of another rank", func(b *wqe.Block, i uint64, q, _ *queue, near, _, _, third uint32) {
			b.Write(i, q.Number, 0, third, 0, near, 8)
		}, wqe.RemoteAccess, "is not there"},
		{"a write past the region", func(b *wqe.Block, i uint64, q, _ *queue, near, far, _, _ uint32) {
			b.Write(i, q.Number, size-7, far, 0, near, 8)
		}, wqe.RemoteAccess, "8 bytes at 249"},
		{"an address that wraps", func(b *wqe.Block, i uint64, q, _ *queue, near, far, _, _ uint32) {
			b.Write(i, q.Number, 1<<64-4, far, 0, near, 8)
		}, wqe.RemoteAccess, "out of bounds"},
		{"a read past the region", func(b *wqe.Block, i uint64, q, _ *queue, near, far, _, _ uint32) {
			b.Read(i, q.Number, 0, far, 0, near, size+1)
		}, wqe.RemoteAccess, "257 bytes"},
		{"a value past the region", func(b *wqe.Block, i uint64, q, _ *queue, _, far, _, _ uint32) {
			b.WriteValue(i, q.Number, size-1, far, 1, 2)
		}, wqe.RemoteAccess, "2 bytes at 255"},
		{"a local key that is the peer's", func(b *wqe.Block, i uint64, q, _ *queue, _, far, _, _ uint32) {
			b.Write(i, q.Number, 0, far, 0, far, 8)
		}, wqe.LocalProtection, "local key"},
		{"a source past the region", func(b *wqe.Block, i uint64, q, _ *queue, near, far, _, _ uint32) {
			b.Write(i, q.Number, 0, far, size, near, 1)
		}, wqe.LocalProtection, "1 bytes at 256"},
		{"a fetch-add outside of signals", func(b *wqe.Block, i uint64, q, _ *queue, near, far, _, _ uint32) {
			b.FetchAdd(i, q.Number, 0, far, 1, 0, near)
		}, wqe.RemoteAccess, "region of signals"},
		{"a fetch-add that is not aligned", func(b *wqe.Block, i uint64, q, _ *queue, near, _, words, _ uint32) {
			b.FetchAdd(i, q.Number, 4, words, 1, 0, near)
		}, wqe.RemoteAccess, "multiple of 8"},
		{"a fetch-add without a sink", func(b *wqe.Block, i uint64, q, _ *queue, _, _, words, _ uint32) {
			b.FetchAdd(i, q.Number, 0, words, 1, 0, 0)
		}, wqe.LocalProtection, "local key 0 is of no memory, or of a device's"},
		{"an operation that is not there", func(b *wqe.Block, i uint64, q, _ *queue, _, _, _, _ uint32) {
			b.Nop(i, q.Number)
			b[0] |= 0x77 << 24
		}, wqe.LocalOperation, "operation 0x77"},
		{"another index", func(b *wqe.Block, i uint64, q, _ *queue, _, _, _, _ uint32) { b.Nop(i-1, q.Number) }, wqe.LocalOperation, "queue pair"},
		{"another queue pair's number", func(b *wqe.Block, i uint64, _, other *queue, _, _, _, _ uint32) { b.Nop(i, other.Number) }, wqe.LocalOperation, "queue pair"},
		{"no CQE asked for", func(b *wqe.Block, i uint64, q, _ *queue, _, _, _, _ uint32) {
			b.Nop(i, q.Number)
			b[1] = 0
		}, wqe.LocalOperation, "with a CQE: false"},
		{"a wait for its own queue", func(b *wqe.Block, i uint64, q, _ *queue, _, _, _, _ uint32) { b.Wait(i, q.Number, q.CQ, i) }, wqe.LocalOperation, "its own"},
		{"a wait for a queue that is not there", func(b *wqe.Block, i uint64, q, _ *queue, _, _, _, _ uint32) { b.Wait(i, q.Number, 77, i) }, wqe.LocalOperation, "queue 77"},
	} {
		t.Run(c.name, func(t *testing.T) {
			hosts := world(t, 3, "shm", "")
			near, far, words, third := make([]byte, size), make([]byte, size), lines(64), make([]byte, size)
			for i := range near {
				near[i] = 0xee
			}
			thirdKeys, _ := share(t, hosts, 2, third, false)
			nearKeys, _ := share(t, hosts, 0, near, false)
			farKeys, _ := share(t, hosts, 1, far, false)
			wordKeys, _ := share(t, hosts, 1, words, true)
			q, _ := join(t, hosts, 0, 1, 8)
			other, _ := join(t, hosts, 0, 1, 8)
			q.post(func(b *wqe.Block, i uint64) { b.Write(i, q.Number, 0, farKeys[0], 0, nearKeys[0], 4) })
			q.post(func(b *wqe.Block, i uint64) {
				c.build(b, i, q, other, nearKeys[0], farKeys[0], wordKeys[0], thirdKeys[0])
			})
			q.post(func(b *wqe.Block, i uint64) { b.Write(i, q.Number, 128, farKeys[0], 0, nearKeys[0], 4) })
			q.bell()
			got := q.wait(t)
			if got[0].Is != wqe.CQEDone || got[1].Is != wqe.CQEFailed || got[1].Syndrome != c.want || got[2].Syndrome != wqe.Flushed {
				t.Errorf("CQEs are %+v, want one that is done, one with %v, one that is flushed", got, c.want)
			}
			q.post(func(b *wqe.Block, i uint64) { b.Nop(i, q.Number) })
			q.bell()
			if got := q.wait(t); got[0].Syndrome != wqe.Flushed {
				t.Errorf("a WQE after that: %+v, want one that is flushed", got[0])
			}
			if string(far[:4]) != "\xee\xee\xee\xee" || !bytes.Equal(far[4:], make([]byte, size-4)) || !bytes.Equal(third, make([]byte, size)) || word(words, 0) != 0 {
				t.Error("what was refused or flushed wrote something, or what came before did not")
			}
			if f := hosts[0].failed; len(f) != 1 || f[0].QP != q.Number || f[0].Peer != 1 || f[0].PeerGone || f[0].Syndrome != uint8(c.want) || !strings.Contains(f[0].Err.Error(), c.says) {
				t.Errorf("told of %+v, want one with %v that says %q", f, c.want, c.says)
			}
			other.post(func(b *wqe.Block, i uint64) { b.Write(i, other.Number, 0, farKeys[0], 0, nearKeys[0], 4) })
			other.bell()
			other.ok(t)
		})
	}
}

// TestRefusedAgain: what the wire does not take at once goes all the same before a WQE that is refused.
func TestRefusedAgain(t *testing.T) {
	hosts := world(t, 2, "counted+shm", "")
	far := make([]byte, 64)
	nearKeys, _ := share(t, hosts, 0, []byte{7}, false)
	farKeys, _ := share(t, hosts, 1, far, false)
	q, _ := join(t, hosts, 0, 1, 4)
	hosts[0].wire.(*counting).again = 2
	q.post(func(b *wqe.Block, i uint64) { b.Write(i, q.Number, 0, farKeys[0], 0, nearKeys[0], 1) })
	q.post(func(b *wqe.Block, i uint64) { b.Write(i, q.Number, 0, 99, 0, nearKeys[0], 1) })
	q.bell()
	got := q.wait(t)
	if got[0].Is != wqe.CQEDone || far[0] != 7 || got[1].Syndrome != wqe.RemoteAccess || len(hosts[0].failed) != 1 {
		t.Errorf("CQEs %+v, told of %+v; there is %d", got, hosts[0].failed, far[0])
	}
}

// TestEnds: a doorbell out of range, a revoked key at either end, a lost peer, a queue pair that is not connected, a wait for a
// queue pair that failed.
func TestEnds(t *testing.T) {
	setup := func(t *testing.T) (hosts []*host, q *queue, write func(b *wqe.Block, i uint64), exports [2][]byte) {
		hosts = world(t, 2, "shm", "")
		near, e0 := share(t, hosts, 0, make([]byte, 64), false)
		far, e1 := share(t, hosts, 1, make([]byte, 64), false)
		q, _ = join(t, hosts, 0, 1, 4)
		return hosts, q, func(b *wqe.Block, i uint64) { b.Write(i, q.Number, 0, far[0], 0, near[0], 8) }, [2][]byte{e0, e1}
	}
	expect := func(t *testing.T, q *queue, s wqe.Syndrome, gone bool) {
		t.Helper()
		q.bell()
		if got := q.wait(t); got[0].Syndrome != s || len(q.nic.failed) != 1 || q.nic.failed[0].PeerGone != gone {
			t.Errorf("CQE %+v, told of %+v, want %v", got[0], q.nic.failed, s)
		}
	}
	t.Run("doorbell", func(t *testing.T) {
		hosts, q, write, _ := setup(t)
		for range 5 {
			q.post(write)
		}
		q.bell()
		hosts[0].Poll()
		if f := hosts[0].failed; len(f) != 1 || f[0].Syndrome != uint8(wqe.LocalOperation) || !strings.Contains(f[0].Err.Error(), "5 WQEs") || !hosts[0].Quiet() {
			t.Errorf("told of %+v", f)
		}
	})
	t.Run("withdrawn", func(t *testing.T) {
		hosts, q, write, exports := setup(t)
		hosts[0].Withdraw(exports[0])
		q.post(write)
		expect(t, q, wqe.LocalProtection, false)
	})
	t.Run("forgotten", func(t *testing.T) {
		hosts, q, write, _ := setup(t)
		hosts[0].Forget(2)
		q.post(write)
		expect(t, q, wqe.RemoteAccess, false)
	})
	t.Run("lost", func(t *testing.T) {
		hosts, q, write, _ := setup(t)
		hosts[0].Lose(1)
		q.post(write)
		expect(t, q, wqe.RetriesExceeded, true)
	})
	t.Run("not connected", func(t *testing.T) {
		hosts, _, _, _ := setup(t)
		q := create(t, hosts[0], 1, 4)
		q.post(func(b *wqe.Block, i uint64) { b.Nop(i, q.Number) })
		expect(t, q, wqe.LocalOperation, false)
	})
	t.Run("wait", func(t *testing.T) {
		hosts, q, write, _ := setup(t)
		w := create(t, hosts[0], 0, 4)
		if err := hosts[0].Connect(w.Number, w.Address); err != nil {
			t.Fatal(err)
		}
		w.post(func(b *wqe.Block, i uint64) { b.Wait(i, w.Number, q.CQ, wqe.FirstIndex) })
		hosts[0].Lose(1)
		q.post(write)
		q.bell()
		q.wait(t)
		w.bell()
		if got := w.wait(t); got[0].Is != wqe.CQEFailed {
			t.Errorf("a wait for what failed: %+v", got[0])
		}
	})
}

// TestFetchAddOnDevice: the host's atomic is none in a device's memory, so it is refused there.
func TestFetchAddOnDevice(t *testing.T) {
	hosts := world(t, 2, "dma", "")
	far := lines(64)
	farKeys, _ := share(t, hosts, 1, far, false)
	sinkKeys, _ := share(t, hosts, 0, lines(64), false)
	q, _ := join(t, hosts, 0, 1, 4)
	q.post(func(b *wqe.Block, i uint64) { b.FetchAdd(i, q.Number, 0, farKeys[0], 1, 0, sinkKeys[0]) })
	q.bell()
	got, failed := q.wait(t), hosts[0].failed
	if got[0].Syndrome != wqe.RemoteAccess || len(failed) != 1 || !strings.Contains(failed[0].Err.Error(), "a region of signals is accepted") || word(far, 0) != 0 {
		t.Errorf("CQE %+v, told of %+v; the word is %d", got[0], failed, word(far, 0))
	}
}

// TestCreateRefuses names what is asked for and what is accepted.
func TestCreateRefuses(t *testing.T) {
	h := world(t, 2, "shm", "")[0]
	at := gpu.Cast[uint64](gpu.PtrOf(lines(64)))
	good := devnic.QPConfig{Peer: 1, Depth: 2, Send: at, Done: at, Record: gpu.Cast[uint32](at)}
	for _, c := range []struct {
		change func(*devnic.QPConfig)
		says   string
	}{
		{func(c *devnic.QPConfig) { c.Peer = 2 }, "rank 2: 0 to 1"}, {func(c *devnic.QPConfig) { c.Peer = -1 }, "rank -1"},
		{func(c *devnic.QPConfig) { c.Depth = 3 }, "depth 3"}, {func(c *devnic.QPConfig) { c.Depth = 1 }, "depth 1"},
		{func(c *devnic.QPConfig) { c.Depth = 2 * softnic.MaxDepth }, "depth 65536"}, {func(c *devnic.QPConfig) { c.Far = true }, "memory of the device"},
		{func(c *devnic.QPConfig) { c.Send = gpu.Ptr[uint64]{} }, "multiples of 64"}, {func(c *devnic.QPConfig) { c.Done = at.At(1) }, "multiples of 64"},
		{func(c *devnic.QPConfig) { c.Record = gpu.Ptr[uint32]{} }, "record"},
	} {
		bad := good
		c.change(&bad)
		if _, err := h.Create(bad); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%+v: %v, want %q", bad, err, c.says)
		}
	}
	q, err := h.Create(good)
	if err != nil {
		t.Fatal(err)
	}
	if err := h.Connect(q.Number, q.Address); err == nil || !strings.Contains(err.Error(), "of rank 0") {
		t.Errorf("connect to this rank's own: %v", err)
	}
	if err := h.Connect(99, q.Address); err == nil || !strings.Contains(err.Error(), "not there") {
		t.Errorf("connect what is not there: %v", err)
	}
	h.Destroy(q.Number)
	if err := h.Connect(q.Number, q.Address); err == nil {
		t.Error("a queue pair that was destroyed is connected")
	}
	provider, _ := devnic.Lookup("softnic")
	for _, c := range []devnic.Config{{}, {Ranks: 1}} {
		if _, err := provider.Open(c); err == nil {
			t.Errorf("%+v is opened", c)
		}
	}
	if _, err := devnic.Lookup("none"); err == nil || !strings.Contains(err.Error(), "softnic") {
		t.Errorf("no such provider: %v", err)
	}
}

// TestPlaces: queue pairs that come and go take no more room, each has a number of its own, works, and one that was destroyed is
// not found by its number.
func TestPlaces(t *testing.T) {
	hosts := world(t, 1, "shm", "")
	old := uint32(0)
	for range 200 {
		q := create(t, hosts[0], 0, 2)
		if err := hosts[0].Connect(q.Number, q.Address); err != nil {
			t.Fatal(err)
		}
		if q.Number == old || hosts[0].Connect(old, q.Address) == nil {
			t.Fatalf("number %d after number %d", q.Number, old)
		}
		q.post(func(b *wqe.Block, i uint64) { b.Nop(i, q.Number) })
		q.bell()
		q.ok(t)
		hosts[0].Destroy(q.Number)
		old = q.Number
	}
	if hosts[0].pages != 1 {
		t.Errorf("%d pages of doorbell registers for one queue pair at a time", hosts[0].pages)
	}
}
