// SPDX-License-Identifier: Apache-2.0

package softnic

import (
	"errors"
	"fmt"
	"slices"

	"github.com/doorbell-net/doorbell/gpu"
	"github.com/doorbell-net/doorbell/netplugin"
)

// A NIC of hardware does not answer for a queue pair that it has ended: the peer's retries run out. Here nobody answers for queue
// pairs, so one that ends says so, by a signal of the wire to a word that the peer's end looks at before each WQE.

// word is where a queue pair of a peer is told that this end is no more.
type word struct {
	region *region // nil: nowhere
	off    uint64
}

// farewell is a word that is yet to be raised.
type farewell struct {
	peer int
	word
}

// Farewells have contexts of their own, each another one: where one is refused, since the peer has withdrawn its word meanwhile, the
// network refuses what follows in its context.
const farewellContexts = 1 << 30

// errPeerEnded is why what is posted to a queue pair that was ended is not answered.
var errPeerEnded = errors.New("the peer has ended its queue pair")

// left says whether the peer has ended its end.
func (q *pair) left() bool {
	return !q.Ended.IsNil() && gpu.Load(q.Ended, gpu.Acquire, gpu.ScopeSys) != 0
}

// nameWord is where a peer finds the word of a queue pair: in which memory of this rank, 0 for none, and at which offset.
func (n *nic) nameWord(at gpu.Ptr[uint64]) (number uint32, off uint64, err error) {
	if at.IsNil() {
		return 0, 0, nil
	}
	for number, o := range n.own {
		off := at.Addr() - gpu.PtrOf(o.mem).Addr()
		if o.signals && off&7 == 0 && netplugin.InBounds(off, 8, uint64(len(o.mem))) {
			return number, off, nil
		}
	}
	return 0, 0, fmt.Errorf("word of its end at %#x: one in a region of signals that was registered is accepted", at.Addr())
}

// wordOf is a peer's word by the name that it gave. Its region was imported by now.
func (n *nic) wordOf(peer int, number uint32, off uint64) (word, error) {
	if number == 0 {
		return word{}, nil
	}
	for _, r := range slices.Backward(n.regions) {
		if r != nil && int(r.peer) == peer && r.number == number && r.signals && off&7 == 0 && netplugin.InBounds(off, 8, r.size) {
			return word{r, off}, nil
		}
	}
	return word{}, fmt.Errorf("word of its end at %d of its memory number %d: one in a region of signals that was imported is accepted", off, number)
}

// leave has the peer of a queue pair told that this end is no more.
func (n *nic) leave(q *pair) {
	if q.theirs.region == nil || n.lost[q.Peer] || q.left() {
		return
	}
	n.farewells = append(n.farewells, farewell{q.Peer, q.theirs})
	n.bid()
}

// bid sends what farewells the wire takes.
func (n *nic) bid() (some bool) {
	for ; len(n.farewells) > 0; n.farewells = n.farewells[1:] {
		f := &n.farewells[0]
		op := &n.ops[0]
		*op = netplugin.Op{Kind: netplugin.Signal, Context: farewellContexts | int32(n.bids%farewellContexts), Peer: int32(f.peer)}
		op.Raise, op.SigDst, op.SigOff, op.SigAdd = true, f.region.wire, f.off, 1
		if n.config.Wire.Post(n.ops[:1]) == 0 {
			return some
		}
		if op.State == netplugin.Posted {
			n.bidding++
		}
		n.bids++
		some = true
	}
	return some
}

// unbid drops farewells that did not go, to a region that is forgotten or a peer that is lost.
func (n *nic) unbid(which func(farewell) bool) { n.farewells = slices.DeleteFunc(n.farewells, which) }
