// SPDX-License-Identifier: Apache-2.0

package gin

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/doorbell-net/doorbell/internal/abi"
)

// TestQueueModel: the queue to a rank, found without a division, is the one that its definition names.
func TestQueueModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		lsa := rapid.Int32Range(1, 1<<12).Draw(t, "LSA size")
		nodes := rapid.Int32Range(1, (1<<20)/lsa).Draw(t, "nodes")
		dc := abi.DevComm{Version: abi.DevCommVersion, Ranks: lsa * nodes, LSASize: lsa, Contexts: 3}
		dc.Rank = rapid.Int32Range(0, dc.Ranks-1).Draw(t, "rank")
		dc.LSARank = dc.Rank % lsa
		dc.Peers = dc.Ranks
		if rapid.Bool().Draw(t, "railed") {
			dc.Railed, dc.Peers = 1, nodes
		}
		c := Open(&dc, rapid.Int32Range(0, 2).Draw(t, "context"))
		peer := rapid.Int32Range(-2, dc.Ranks+1).Draw(t, "peer")
		want, there := peer, peer >= 0 && peer < dc.Ranks
		if dc.Railed != 0 {
			want, there = peer/lsa, there && peer%lsa == dc.LSARank
		}
		index, world, ok := c.queue(World(&dc), peer)
		if ok != there || ok && (world != peer || index != c.id*dc.Peers+want) {
			t.Fatalf("queue to %d of %d ranks, %d a node, railed %d, from %d: %d, rank %d, %v; want %d, %v",
				peer, dc.Ranks, lsa, dc.Railed, dc.Rank, index, world, ok, c.id*dc.Peers+want, there)
		}
	})
}

// TestReciprocal: it divides exactly to the end of its range.
func TestReciprocal(t *testing.T) {
	for n := uint64(1); n < 1<<16; n = n*5/4 + 1 {
		r := reciprocal(uint32(n))
		most := min((1<<32-1)/n, 1<<31-1)
		for _, x := range []uint64{0, 1, n - 1, n, n + 1, most/n*n - 1, most / n * n, most} {
			if x <= most && x*r>>32 != x/n {
				t.Errorf("%d / %d is %d, want %d", x, n, x*r>>32, x/n)
			}
		}
	}
}
