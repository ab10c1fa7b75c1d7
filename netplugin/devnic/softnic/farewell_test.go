// SPDX-License-Identifier: Apache-2.0

package softnic_test

import (
	"strings"
	"testing"

	"github.com/doorbell-net/doorbell/gpu"
	"github.com/doorbell-net/doorbell/netplugin"
	"github.com/doorbell-net/doorbell/netplugin/devnic"
	"github.com/doorbell-net/doorbell/netplugin/devnic/wqe"
)

// joinTold is join of queue pairs that are told of each other's end, and keys of memory that rank b has.
func joinTold(t testing.TB, hosts []*host, a, b int, far []byte) (ab, ba *queue, keys []uint32) {
	t.Helper()
	keys, _ = share(t, hosts, b, far, false)
	told := [2][]byte{lines(64), lines(64)}
	share(t, hosts, a, told[0], true)
	share(t, hosts, b, told[1], true)
	ab = createTold(t, hosts[a], b, 4, gpu.Cast[uint64](gpu.PtrOf(told[0])).At(3))
	ba = createTold(t, hosts[b], a, 4, gpu.Cast[uint64](gpu.PtrOf(told[1])).At(5))
	for _, err := range []error{hosts[a].Connect(ab.Number, ba.Address), hosts[b].Connect(ba.Number, ab.Address)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	return ab, ba, keys
}

// TestPeerMadeAnew: a peer that has ended its queue pair and made another, as one that was started again does, is none that answers
// what the old one was connected to; nothing is written, and what it left of the queue is flushed. Other queue pairs go on.
func TestPeerMadeAnew(t *testing.T) {
	for _, again := range []int{0, 3} {
		hosts := world(t, 2, "counted+shm", "")
		far := make([]byte, 64)
		q, old, keys := joinTold(t, hosts, 0, 1, far)
		other, _, _ := joinTold(t, hosts, 0, 1, make([]byte, 64))
		hosts[1].wire.(*counting).again = again
		hosts[1].Destroy(old.Number)
		if quiet, idle := hosts[1].Quiet(), hosts[1].Idle(old.Number); quiet != (again == 0) || idle != quiet {
			t.Errorf("with %d posts that the wire does not take it is quiet: %v, idle: %v", again, quiet, idle)
		}
		for range again {
			hosts[1].Poll()
		}
		anew := create(t, hosts[1], 0, 4)
		if err := hosts[1].Connect(anew.Number, q.Address); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			q.post(func(b *wqe.Block, i uint64) { b.WriteValue(i, q.Number, 0, keys[0], 1, 8) })
		}
		q.bell()
		got, failed := q.wait(t), hosts[0].failed
		if got[0].Syndrome != wqe.RetriesExceeded || got[1].Syndrome != wqe.Flushed || len(failed) != 1 || !failed[0].PeerGone ||
			!strings.Contains(failed[0].Err.Error(), "ended its queue pair") || far[0] != 0 {
			t.Errorf("CQEs %+v, told of %+v; %d is written", got, failed, far[0])
		}
		other.post(func(b *wqe.Block, i uint64) { b.WriteValue(i, other.Number, 0, keys[0], 1, 8) })
		other.bell()
		other.ok(t)
		// Who was told has nobody to tell.
		before := hosts[0].wire.(*counting).ops
		if hosts[0].Destroy(q.Number); hosts[0].wire.(*counting).ops != before {
			t.Error("a queue pair whose peer has ended tells it that it ends")
		}
	}
}

// TestUntold: nobody is told whose word was forgotten, or who is lost, where the wire did not take it before.
func TestUntold(t *testing.T) {
	for what, ends := range map[string]func(h *host, key uint32){
		"forgotten": func(h *host, key uint32) { h.Forget(netplugin.Region(key)) },
		"lost":      func(h *host, _ uint32) { h.Lose(0) },
	} {
		hosts := world(t, 2, "counted+shm", "")
		q, old, keys := joinTold(t, hosts, 0, 1, make([]byte, 64))
		hosts[1].wire.(*counting).again = 2 // one is for Destroy
		hosts[1].Destroy(old.Number)
		ends(hosts[1], keys[1]+1) // the word's, which was shared next
		hosts[1].Poll()
		if !hosts[1].Quiet() || hosts[1].wire.(*counting).again != 1 {
			t.Errorf("%s: its farewell went", what)
		}
		q.post(func(b *wqe.Block, i uint64) { b.WriteValue(i, q.Number, 0, keys[0], 1, 8) })
		q.bell()
		q.ok(t)
	}
}

// TestWordsRefused: words for the peer's end that lie nowhere, or that the peer did not import.
func TestWordsRefused(t *testing.T) {
	hosts := world(t, 2, "shm", "")
	at := gpu.Cast[uint64](gpu.PtrOf(lines(64)))
	config := devnic.QPConfig{Peer: 1, Depth: 2, Send: at, Done: at, Record: gpu.Cast[uint32](at), Ended: at}
	if _, err := hosts[0].Create(config); err == nil || !strings.Contains(err.Error(), "a region of signals that was registered is accepted") {
		t.Errorf("created: %v", err)
	}
	told := lines(64)
	_, export := share(t, hosts, 0, told, true)
	q := createTold(t, hosts[0], 1, 2, gpu.Cast[uint64](gpu.PtrOf(told)))
	theirs := create(t, hosts[1], 0, 2)
	for off, bad := range map[int]byte{20: 4, 12: 9} { // the offset, the memory's number
		address := append([]byte(nil), q.Address...)
		address[off] = bad
		if err := hosts[1].Connect(theirs.Number, address); err == nil || !strings.Contains(err.Error(), "a region of signals that was imported is accepted") {
			t.Errorf("connected: %v", err)
		}
	}
	if err := hosts[1].Connect(theirs.Number, q.Address); err != nil {
		t.Error(err)
	}
	hosts[0].Withdraw(export)
	if _, err := hosts[0].Create(config); err == nil {
		t.Error("a word of memory that was withdrawn is taken")
	}
}
