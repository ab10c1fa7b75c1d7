// SPDX-License-Identifier: Apache-2.0

package staged

import (
	"encoding/binary"
	"errors"
	"testing"

	"github.com/doorbell-net/doorbell/gpu"
	"github.com/doorbell-net/doorbell/netplugin"
)

// TestPeerEnds: where the network notices that a peer has ended, what lies in its ring ends with that, though nothing of the
// network's is on its way; what the peer had given back before is done.
func TestPeerEnds(t *testing.T) {
	e := alone(t)
	r, err := e.Import(1, netplugin.Key{Bytes: binary.LittleEndian.AppendUint32(nil, 1), Size: 64})
	if err != nil {
		t.Fatal(err)
	}
	for token := range uint64(2) {
		op := []netplugin.Op{{Kind: netplugin.Signal, Peer: 1, Raise: true, SigDst: r, SigAdd: 1, Token: token}}
		if e.Post(op) != 1 || op[0].State != netplugin.Posted {
			t.Fatalf("a signal was not taken: %v", op[0].Err)
		}
	}
	o, ends := &e.peers[1].out[requests], map[uint64]error{}
	poll := func() {
		var done [4]netplugin.Completion
		for _, c := range done[:e.Poll(done[:])] {
			ends[c.Token] = c.Err
		}
	}
	poll()
	if o.sent == 0 || o.sent != o.begun || len(ends) > 0 {
		t.Fatalf("%d of %d bytes are in the ring; ended: %v", o.sent, o.begun, ends)
	}
	credit := gpu.Cast[uint64](gpu.PtrOf(e.words).Byte(e.creditAt(1, requests)))
	gpu.Store(credit, o.records[0].end, gpu.Release, gpu.ScopeSys)
	*e.inner.(nowhere).over = netplugin.ErrPeerLost
	poll()
	if first, some := ends[0]; len(ends) != 2 || !some || first != nil || !errors.Is(ends[1], netplugin.ErrPeerLost) {
		t.Errorf("ended: %v, want one that is done and one whose peer is lost", ends)
	}
}
