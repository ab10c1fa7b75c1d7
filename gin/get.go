// SPDX-License-Identifier: Apache-2.0

package gin

import (
	"github.com/doorbell-net/doorbell/gpu"
	"github.com/doorbell-net/doorbell/internal/abi"
)

// Get copies bytes from (far, farOff) of a peer to (near, nearOff) of this rank. They are there after a flush, a Wait of a
// request, or the counter of act, which may have no signal. Nothing orders a get and the puts before it, of this context
// or of others. 0 bytes are legal.
//
// It returns when the get is queued, and waits for room as Put does. Invalid: as Put, and a signal.
func (c *Context) Get(co Coop, team Team, peer int32, far Window, farOff uint64, near Window, nearOff, bytes uint64, act Action) Status {
	s, mine := OK, c.takeLots(co, team, peer, true, bytes, &act)
	if co.begin() {
		s = c.get(co.t, team, peer, far, farOff, near, nearOff, bytes, c.held(co, act), &mine)
	}
	c.ringLanes(co, team, peer, &act, mine, s)
	return co.end(s)
}

func (c *Context) get(t gpu.Thread, team Team, peer int32, far Window, farOff uint64, near Window, nearOff, bytes uint64, act Action, mine *lot) Status {
	i, world, ok := c.queue(team, peer)
	if !ok || !c.valid(&act, world) || act.raises() || act.signal != 0 ||
		far.Info.IsNil() || near.Info.IsNil() || !inBounds(nearOff, bytes, near.Size) {
		return Invalid
	}
	size := sizeOf(&far, world)
	l, farGen, nearGen := c.look(i), generation(far), generation(near)
	if far.Gen == 0 || near.Gen == 0 || (farGen^far.Gen)|(nearGen^near.Gen) != 0 || !inBounds(farOff, bytes, size) {
		return Invalid
	}
	d := abi.Desc{Op: abi.OpGet, Size: bytes, DstOff: farOff, DstWin: far.ID, DstGen: far.Gen, SrcWin: near.ID, Src: nearOff}
	// What the threads read or wrote there before is over when the network writes.
	if c.released < gpu.ScopeSys {
		gpu.Fence(gpu.Release, gpu.ScopeSys)
	}
	if c.onNIC() {
		return c.postWQEs(t, i, world, &d, &act, far.Info, near.Info, &l, mine)
	}
	return c.post(t, i, world, &d, &act, gpu.Ptr[byte]{}, &l)
}
