// SPDX-License-Identifier: Apache-2.0

package gin

import (
	"github.com/doorbell-net/doorbell/gpu"
	"github.com/doorbell-net/doorbell/internal/abi"
)

// LSABarrier waits until each rank of the LSA team has called it with the same id. What they stored before into each
// other's windows is visible after. A call that timed out is repeated: it goes on where it was.
func (c *Context) LSABarrier(co Coop, id int32) Status {
	s := OK
	if co.begin() {
		if c.id < 0 || id < 0 || id >= c.dc.Barriers {
			s = Invalid
		} else {
			s = c.lsaBarrier(co.t, id)
		}
	}
	return co.end(s)
}

func (c *Context) lsaBarrier(t gpu.Thread, id int32) Status {
	st := c.dc.Barrier.At(int(id)).Raw()
	team := LSA(c.dc)
	if st.Arrived == st.Done {
		st.Arrived++
		gpu.Fence(gpu.Release, gpu.ScopeSys)
		for p := int32(0); p < team.Ranks; p++ {
			box := c.dc.PeerInbox.At(int(p)).Load().At(int(id*team.Ranks + team.Rank))
			gpu.Store(box, st.Arrived, gpu.Release, gpu.ScopeSys)
		}
	}
	for p := int32(0); p < team.Ranks; p++ {
		box := c.dc.Inbox.At(int(id*team.Ranks + p))
		src := FromPeer(team, p)
		w := waiter{note: abi.Record{Op: abi.OpLSABarrier, Peer: team.WorldRank(c.dc, p), ID: uint32(id), Ctx: uint32(c.id), Wanted: st.Arrived}}
		s := OK
		for {
			seen := gpu.Load(box, gpu.Acquire, gpu.ScopeSys)
			if int64(seen-st.Arrived) >= 0 {
				break
			}
			if s != OK {
				return s
			}
			w.note.Seen = seen
			s = c.step(t, &w, src)
		}
	}
	st.Done = st.Arrived
	return OK
}

// Barrier waits until each rank of the team, World or Rail or a part of one, has called it with the same id in this
// context. Its signals are strong: the earlier puts of this context among them are visible after. A call that timed
// out is repeated with the same team: it goes on where it was. Ids are apart from those of LSABarrier.
func (c *Context) Barrier(co Coop, team Team, id int32) Status {
	s := OK
	if co.begin() {
		if c.id < 0 || id < 0 || id >= c.dc.Barriers || !team.Has(team.Rank) {
			s = Invalid
		} else {
			s = c.barrier(co.t, team, id)
		}
	}
	return co.end(s)
}

func (c *Context) barrier(t gpu.Thread, team Team, id int32) Status {
	for p := int32(0); p < team.Ranks; p++ {
		if _, _, ok := c.queue(team, p); !ok {
			return Invalid // before anything is announced: the id stays usable
		}
	}
	st := c.dc.Barrier.At(int((1+c.id)*c.dc.Barriers + id)).Raw()
	if st.Arrived == st.Done {
		st.Arrived++
		st.Sent = 0
	}
	first := c.dc.Signals + id*c.dc.Ranks // signal of this barrier from rank 0 of the world
	// This rank is told like the others: a put to itself may be on its way too.
	for ; int32(st.Sent) < team.Ranks; st.Sent++ {
		i, world, _ := c.queue(team, int32(st.Sent))
		d := abi.Desc{Op: abi.OpSignal, Version: abi.DescVersion, Flags: abi.FlagStrong | abi.FlagSignalInc, SigVal: 1, SigID: uint32(first + c.dc.Rank)}
		l := c.look(i)
		if s := c.enqueue(t, i, world, &d, false, gpu.Ptr[byte]{}, &l); s != OK {
			return s
		}
	}
	base := int(c.id) * int(c.dc.SignalStride)
	for p := int32(0); p < team.Ranks; p++ {
		word := int(first + team.WorldRank(c.dc, p))
		want := c.dc.Shadow.At(base+word).Load() + 1
		if s := c.waitWord(t, base+word, abi.OpGINBarrier, uint32(id), want, 64, FromPeer(team, p)); s != OK {
			return s
		}
	}
	// All are there: count them, so that other teams of the same id find their places.
	for p := int32(0); p < team.Ranks; p++ {
		sh := c.dc.Shadow.At(base + int(first+team.WorldRank(c.dc, p)))
		sh.Store(sh.Load() + 1)
	}
	st.Done = st.Arrived
	return OK
}
