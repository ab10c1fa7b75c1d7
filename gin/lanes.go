// SPDX-License-Identifier: Apache-2.0

package gin

import (
	"math/bits"

	"github.com/doorbell-net/doorbell/gpu"
	"github.com/doorbell-net/doorbell/internal/abi"
	"github.com/doorbell-net/doorbell/netplugin/devnic/wqe"
)

// Lanes that post together (ByLanes) to a NIC take their tickets together too: one atomic for all that post to the same queue. If
// each took its own they would go on one after the other from there, since a GPU does not bring lanes together again that a
// loop of atomics has parted.

// lot is the n tickets that were taken for one lane, none of them for 0.
type lot struct{ ticket, n uint64 }

// takeLots takes the tickets of a warp's lanes, each of which is about to post. A lane that may have to wait, or for which there is
// no room, gets none here.
func (c *Context) takeLots(co Coop, team Team, peer int32, moves bool, bytes uint64, act *Action) (mine lot) {
	if co.kind != coopLanes || !c.onNIC() {
		return mine
	}
	t := co.t
	i, _, ok := c.queue(team, peer)
	if !ok || !c.atOnce(moves, bytes, act) {
		i = -1
	}
	like, n := gpu.Match(t, i), act.wqes(moves)
	two := gpu.Ballot(t, n == 2)
	first := int32(bits.TrailingZeros32(like))
	got := uint32(0)
	if i >= 0 && t.Lane() == first {
		l := c.look(i)
		if mine.ticket, ok = c.reserveNow(c.dc.Prod.At(int(i)), wqesOf(like, two), &l); ok {
			got = 1
		}
	}
	if gpu.ShflIdx(t, got, first) != 0 {
		mine.n = n
	}
	ticket := uint64(gpu.ShflIdx(t, uint32(mine.ticket>>32), first))<<32 | uint64(gpu.ShflIdx(t, uint32(mine.ticket), first))
	mine.ticket = ticket + wqesOf(like&(1<<t.Lane()-1), two)
	return mine
}

// wqesOf is how many WQEs these lanes have, some of them two.
func wqesOf(lanes, two uint32) uint64 {
	return uint64(bits.OnesCount32(lanes) + bits.OnesCount32(lanes&two))
}

// held is an action whose doorbell waits for the other lanes of a warp. See ringLanes.
func (c *Context) held(co Coop, act Action) Action {
	if co.kind == coopLanes && c.onNIC() {
		act.flags |= abi.FlagAggregate
	}
	return act
}

// ringLanes rings for all lanes of a warp that have posted to the same queue, if one of them wants it: the first lane of those.
// s is what became of this lane's post: where it failed, what was taken for it does nothing.
func (c *Context) ringLanes(co Coop, team Team, peer int32, act *Action, mine lot, s Status) {
	if co.kind != coopLanes || !c.onNIC() {
		return
	}
	i, _, _ := c.queue(team, peer)
	switch {
	case s == OK && act.flags&abi.FlagAggregate != 0 || s != OK && mine.n == 0:
		i = -1
	case s != OK:
		number := c.dc.QPs.At(int(i)).Load().Number
		for end := mine.ticket + mine.n; mine.ticket != end; mine.ticket++ {
			var b wqe.Block
			b.Nop(mine.ticket, number)
			c.write(i, mine.ticket, &b)
		}
	}
	first := bits.TrailingZeros32(gpu.Match(co.t, i))
	co.t.SyncWarp() // what the others wrote is visible to it
	if i >= 0 && int32(first) == co.t.Lane() {
		c.pushBoth(co.t, i, 1)
	}
}
