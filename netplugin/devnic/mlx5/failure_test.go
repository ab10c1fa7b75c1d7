// SPDX-License-Identifier: Apache-2.0

package mlx5

import (
	"errors"
	"strings"
	"testing"

	"github.com/doorbell-net/doorbell/gpu"
	"github.com/doorbell-net/doorbell/netplugin"
	"github.com/doorbell-net/doorbell/netplugin/devnic/wqe"
)

// TestFailure: a queue pair that ended with an error is told of once, with the first reason and not that of what was flushed
// behind it, wherever in its queue that was.
func TestFailure(t *testing.T) {
	for before := range uint64(9) {
		f, all := world(t, 2)
		far := pages(64)
		farKey, _ := share(t, all, 1, 0, far, false)
		q, other := join(t, all, 0, 1, 4)
		for range before {
			q.post(func(b *wqe.Block, i uint64) { b.WriteValue(i, q.Number, 0, farKey, 1, 8) })
			f.drive()
			q.ok(t)
		}
		q.post(func(b *wqe.Block, i uint64) { b.WriteValue(i, q.Number, 60, farKey, 1, 8) })
		for range 2 {
			q.post(func(b *wqe.Block, i uint64) { b.WriteValue(i, q.Number, 0, farKey, 2, 8) })
		}
		if all[0].Idle(q.Number) || all[0].Poll() {
			t.Fatal("idle, or failed, before the NIC did anything")
		}
		f.drive()
		if !all[0].Idle(q.Number) || !all[0].Poll() || all[0].Poll() || all[1].Poll() || len(all[0].told) != 1 {
			t.Fatalf("after %d: told of %+v and %+v", before, all[0].told, all[1].told)
		}
		got := all[0].told[0]
		if got.QP != q.Number || got.Peer != 1 || got.Syndrome != uint8(wqe.RemoteAccess) || got.PeerGone {
			t.Errorf("after %d: told of %+v", before, got)
		}
		says(t, got.Err, "failure", "operation 0x8", "remote access error (syndrome 0x13, vendor 0x68)")
		if far[0] != byte(min(before, 1)) || other.ended() != nil {
			t.Error("something was done behind the failure")
		}
	}
}

// TestPeerMadeAnew: a peer that has ended its queue pair and made another, as one that was started again does, is none that answers
// what the old one was connected to; nothing is written, and what it left of the queue is flushed.
func TestPeerMadeAnew(t *testing.T) {
	f, all := world(t, 2)
	mem := pages(64)
	export, err := all[1].Export(mem, true)
	if err != nil {
		t.Fatal(err)
	}
	e, _ := decodeExport(export)
	q, old := join(t, all, 0, 1, 4)
	all[1].Destroy(old.Number)
	if err := all[1].Connect(all[1].queue(0, 4).Number, q.Address); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		q.post(func(b *wqe.Block, i uint64) { b.WriteValue(i, q.Number, 0, e.key, 1, 8) })
	}
	f.drive()
	all[0].Poll()
	if told := all[0].told; len(told) != 1 || told[0].Syndrome != uint8(wqe.RetriesExceeded) || !told[0].PeerGone || !all[0].Idle(q.Number) || mem[0] != 0 {
		t.Errorf("told of %+v; %d is written", told, mem[0])
	}
}

// TestLose: what is posted to a peer that is lost ends, and is told of as the peer's end; other peers' queues go on.
func TestLose(t *testing.T) {
	f, all := world(t, 3)
	key, _ := share(t, all, 2, 0, pages(64), false)
	q, _ := join(t, all, 0, 1, 4)
	alive, _ := join(t, all, 0, 2, 4)
	given := len(all[0].given)
	all[0].Lose(1)
	all[0].Lose(1)
	if ops := all[0].ops()[given:]; len(ops) != 1 || ops[0] != opToError {
		t.Errorf("the NIC was given %#x", ops)
	}
	q.post(func(b *wqe.Block, i uint64) { b.Nop(i, q.Number) })
	alive.post(func(b *wqe.Block, i uint64) { b.WriteValue(i, alive.Number, 0, key, 7, 8) })
	f.drive()
	alive.ok(t)
	all[0].Poll()
	if len(all[0].told) != 1 || !all[0].told[0].PeerGone || all[0].told[0].Peer != 1 || !errors.Is(all[0].told[0].Err, netplugin.ErrPeerLost) {
		t.Errorf("told of %+v", all[0].told)
	}
	all[0].Destroy(alive.Number)
	all[0].Destroy(alive.Number)
	if all[0].Poll() || !all[0].Idle(alive.Number) {
		t.Error("a queue pair that is gone is looked at")
	}
}

// TestMemory: device memory goes by a DMA buffer, else by its address, else is refused with both reasons; a key that was
// withdrawn is none any more, for the NIC and for an Import; only signals may be added to, and only they are strictly ordered.
func TestMemory(t *testing.T) {
	f, all := world(t, 2)
	r := all[0]
	mem := pages(8192)
	mr := func(key uint32) *thing {
		_, m := r.of("mr", key)
		return m
	}
	device := func(failing int, calls verbs) ([]byte, error) {
		n := r.NIC.(*nic)
		n.verbs = calls
		if failing > 0 {
			r.failAt = r.calls + failing
		}
		defer func() { n.verbs, r.failAt = r.double, 0 }()
		return n.ExportDevice(gpu.PtrOf(mem), 100)
	}
	for failing, want := range []thing{{addr: 64, fd: 1}, {addr: uintptr(gpu.PtrOf(mem).Addr())}, {addr: uintptr(gpu.PtrOf(mem).Addr())}} {
		export, err := device(failing, r.double)
		if err != nil {
			t.Fatal(err)
		}
		e, _ := decodeExport(export)
		if m := mr(e.key); m == nil || m.addr != want.addr || m.bytes != 100 || min(1, m.fd) != want.fd || m.state != "0x100007" {
			t.Errorf("call %d failed: registered as %+v", failing, m)
		}
	}
	_, err := device(1, noMR{r.double})
	says(t, err, "neither way", "mlx5 on rank 0: register 100 bytes at", "neither as a DMA buffer (", "DMABuf: cannot allocate", "nor by its address (refused here)", "nvidia_peermem")
	export, err := r.Export(mem, true)
	e, _ := decodeExport(export)
	if m := mr(e.key); err != nil || m == nil || m.addr != uintptr(gpu.PtrOf(mem).Addr()) || m.bytes != 8192 || m.state != "0xf" {
		t.Errorf("signals: %+v, %v", mr(e.key), err)
	}
	for _, c := range []struct {
		peer, size int
		export     []byte
		want       string
	}{
		{2, 8192, export, "0 to 1 is accepted"}, {1, 1, export, "says 8192 bytes, its owner 1"}, {1, 8192, export[:5], "none of version 1"},
		{1, 8192, exported{0, 8192}.encode(), "key 0"}, {0, 8192, exported{77, 8192}.encode(), "is not registered"},
	} {
		_, err := r.Import(c.peer, netplugin.Key{Bytes: c.export, Size: c.size})
		says(t, err, "import", "mlx5 on rank 0: import region of rank", c.want)
	}
	if k, err := r.Import(0, netplugin.Key{Bytes: export, Size: 8192}); err != nil || uint32(k) != e.key {
		t.Errorf("key %#x, want %#x: %v", k, e.key, err)
	}
	_, err = r.Export(mem[8:16], false)
	says(t, err, "no page", "register 8 bytes", "a multiple of 4096")
	_, err = r.Export(mem[:0], false)
	says(t, err, "nothing", "register 0 bytes")

	q, _ := join(t, all, 1, 0, 4)
	all[0].Withdraw(export)
	all[0].Withdraw(export)
	all[0].Withdraw(export[1:])
	if mr(e.key) != nil {
		t.Error("the key is still there")
	}
	_, err = r.Import(0, netplugin.Key{Bytes: export, Size: 8192})
	says(t, err, "withdrawn", "is not registered")
	q.post(func(b *wqe.Block, i uint64) { b.WriteValue(i, q.Number, 0, e.key, 1, 8) })
	f.drive()
	all[1].Poll()
	if len(all[1].told) != 1 || all[1].told[0].Syndrome != uint8(wqe.RemoteAccess) || strings.Trim(string(mem), "\x00") != "" {
		t.Errorf("a write by a key that was withdrawn: told of %+v", all[1].told)
	}
}

// TestFarQueue: a send queue in memory of the device is registered as a DMA buffer, from a page on, else by its address, else not at
// all; what the host reads is registered by its address.
func TestFarQueue(t *testing.T) {
	for _, c := range []struct {
		failing int // calls
		fd      bool
	}{{0, true}, {1, false}, {2, false}} {
		_, all := world(t, 2)
		r, config := all[0], newConfig(1, 4)
		config.Far = true
		if c.failing > 0 {
			r.failAt = r.calls + c.failing
		}
		qp, err := r.Create(config)
		if err != nil {
			t.Fatal(err)
		}
		_, q := r.of("qp", qp.Number)
		_, send := r.of("umem", uint32(qpUmem.get(q.queue)))
		_, record := r.of("umem", uint32(qpRecordUmem.get(q.queue)))
		at := uintptr(config.Send.Addr() &^ (pageBytes - 1))
		if c.fd {
			at = 0
		}
		if (send.fd != noBuffer) != c.fd || send.addr != at || qpOffset.get(q.queue) != config.Send.Addr()%pageBytes || record.fd != noBuffer {
			t.Errorf("call %d failed: %+v, the record %+v", c.failing, send, record)
		}
	}
	_, all := world(t, 2)
	r, config := all[0], newConfig(1, 4)
	config.Far = true
	r.NIC.(*nic).verbs = noUmem{r.double}
	_, err := r.Create(config)
	says(t, err, "neither way", "queue pair to rank 1: send queue: neither as a DMA buffer (refused here) nor by its address (refused here)")
}

// noUmem refuses memory for queues.
type noUmem struct{ *double }

func (noUmem) regUmem(handle, uintptr, int, int) (handle, uint32, error) {
	return 0, 0, errors.New("refused here")
}

// noMR refuses memory by its address.
type noMR struct{ *double }

func (noMR) regMR(handle, uintptr, int, uint32) (handle, mrKeys, error) {
	return 0, mrKeys{}, errors.New("refused here")
}

// TestOddKeys: keys that WQEs could not tell apart are refused, and their memory is given back.
func TestOddKeys(t *testing.T) {
	_, all := world(t, 1)
	for _, keys := range []mrKeys{{1, 2}, {0, 0}} {
		all[0].NIC.(*nic).adapter.verbs = oddKeys{all[0].double, keys}
		_, err := all[0].Export(pages(8), false)
		says(t, err, "keys", "one that is new, for both ends")
	}
	all[0].NIC.(*nic).adapter.verbs = all[0].double
	if got := strings.Join(all[0].left(), " "); strings.Contains(got, "mr") {
		t.Errorf("left: %s", got)
	}
}

// oddKeys gives keys of its own.
type oddKeys struct {
	*double
	keys mrKeys
}

func (o oddKeys) regMR(pd handle, addr uintptr, bytes int, access uint32) (handle, mrKeys, error) {
	h, _, err := o.double.regMR(pd, addr, bytes, access)
	return h, o.keys, err
}
