// SPDX-License-Identifier: Apache-2.0

package gin

import (
	"math/bits"

	"github.com/doorbell-net/doorbell/gpu"
	"github.com/doorbell-net/doorbell/internal/abi"
)

// Fence says what a barrier promises besides that all have arrived. Its values are bits.
type Fence uint32

// Fences. (NCCL's device headers have the same levels; they flush after the barrier.)
const (
	// FenceNone: nothing. The barrier takes log2(ranks) rounds of one signal each.
	FenceNone Fence = 0
	// FencePut: the earlier puts of this context among the team are visible, those to itself too. Each rank signals each.
	FencePut Fence = 1 << 0
	// FenceGet: each rank flushes before it arrives. What its gets brought is visible to it, and after the barrier every
	// rank may write what others got from it, and what it put from.
	FenceGet Fence = 1 << 1
)

// LSABarrier waits until each rank of the LSA team has called it with the same id. What they stored before into each
// other's windows is visible after. A call that timed out is repeated: it goes on where it was. One thread at a time uses
// an id, in whatever context.
func (c *Context) LSABarrier(co Coop, id int32) Status {
	co.begin()
	s := Invalid
	if c.barrierValid(id, FenceNone) {
		s = c.lsaBarrier(co, id)
	}
	return co.end(s)
}

// Barrier waits until each rank of the team, World or Rail or a part of one, has called it with the same id in this
// context, and the same fence. A call that timed out is repeated with the same arguments: it goes on where it was. Ids
// are apart from those of LSABarrier. One thread at a time uses an id of a context. Invalid: an id or a fence that is not
// there, FencePut where strong signals were not asked for, a team with a rank that this context has no queue to.
func (c *Context) Barrier(co Coop, team Team, id int32, fence Fence) Status {
	s := Invalid
	if co.begin() && c.barrierValid(id, fence) && team.Has(team.Rank) {
		s = c.barrier(co.t, team, id, fence)
	}
	return co.end(s)
}

// HybridBarrier waits until each rank of the world has called it with the same id in this context, and the same fence.
// Among LSA peers it goes by stores where it can. With FencePut all that any rank did before, by puts of this context or
// by stores to LSA peers, is visible to all after, also where one rank looks into the window of an LSA peer that others
// put to. It is made of LSABarrier and Barrier of that id, which are not to be used for others meanwhile. A call that
// timed out is repeated with the same arguments: it goes on where it was.
func (c *Context) HybridBarrier(co Coop, id int32, fence Fence) Status {
	s := Invalid
	if co.begin() && c.barrierValid(id, fence) {
		s = c.hybridBarrier(co.t, id, fence)
	}
	return co.end(s)
}

func (c *Context) barrierValid(id int32, fence Fence) bool {
	if fence&FencePut != 0 && c.dc.Refused&abi.FlagStrong != 0 {
		return false // it is made of strong signals
	}
	return c.id >= 0 && id >= 0 && id < c.dc.Barriers && fence <= FencePut|FenceGet
}

// ginBarrier is the state of Barrier of that id in this context. That of LSABarrier stands before all contexts'.
func (c *Context) ginBarrier(id int32) gpu.Ptr[abi.BarrierState] {
	return c.dc.Barrier.At(int((1+c.id)*c.dc.Barriers + id))
}

// hybridBarrier: a rank that passed the first half knows that its node has arrived, and by the second half that those
// of its rail have passed the first. That is enough to know of all. But puts off the rail are covered by signals to all
// alone; and what was put to an LSA peer is there once that peer says so, in the last part.
func (c *Context) hybridBarrier(t gpu.Thread, id int32, fence Fence) Status {
	at := gpu.PtrTo(&c.ginBarrier(id).Raw().Stage)
	puts := fence&FencePut != 0
	far, byAll := Rail(c.dc), puts && c.dc.Railed == 0
	if byAll {
		far = World(c.dc)
	}
	if at.Load() == 0 {
		if byAll {
			gpu.Fence(gpu.Release, gpu.ScopeSys) // stores to LSA peers: no signal of the network covers them
		} else if s := c.lsaBarrier(ByThread(t), id); s != OK {
			return s
		}
		at.Store(1)
	}
	if at.Load() == 1 {
		if s := c.barrier(t, far, id, fence); s != OK {
			return s
		}
		at.Store(2)
	}
	if puts && c.dc.LSASize > 1 {
		if s := c.lsaBarrier(ByThread(t), id); s != OK {
			return s
		}
	}
	at.Store(0)
	return OK
}

// lsaBarrier is called by all of the lanes (Coop.lanes): the ranks are dealt out to them. All that is kept of an id is the
// last epoch that was complete: who comes back after a time-out tells of the same one again, which changes nothing.
func (c *Context) lsaBarrier(co Coop, id int32) Status {
	lane, lanes := co.lanes()
	if lane >= lanes {
		return OK
	}
	team, done := LSA(c.dc), gpu.PtrTo(&c.dc.Barrier.At(int(id)).Raw().Done)
	others := team.Ranks - 1
	// On their way while the fence waits, since nothing between needs them. The fence is one for all ranks: a release store
	// to each would wait for the one before it.
	box := c.dc.PeerInbox.At(int(min(team.other(lane), others))).Load()
	epoch := early(done)
	gpu.Fence(gpu.Release, gpu.ScopeSys)
	s := OK
	if lane < others {
		epoch++
		for i := lane; ; {
			gpu.Store(box.At(int(id*team.Ranks+team.Rank)), epoch, gpu.Relaxed, gpu.ScopeSys)
			if i += lanes; i >= others {
				break
			}
			box = c.dc.PeerInbox.At(int(team.other(i))).Load()
		}
		if c.bundled {
			c.pushAll(co.t) // who posted may have heard of its ranks before others have of theirs
		}
		w := waiter{note: abi.Record{Op: abi.OpLSABarrier, ID: uint32(id), Ctx: uint32(c.id)}}
		for i := lane; i < others && s == OK; i += lanes {
			p := team.other(i)
			w.note.Peer = team.WorldRank(c.dc, p)
			s = c.arrived(co.t, c.dc.Inbox.At(int(id*team.Ranks+p)), epoch, &w, team)
		}
	}
	if s = co.agree(s); s == OK && lane == 0 {
		done.Store(epoch)
	}
	return s
}

// barrier: where puts are to be covered each rank signals each, since a strong signal covers those to its own target.
// Else each rank signals the one 1, 2, 4, ... after it, and each signal speaks for all that its sender had heard of.
func (c *Context) barrier(t gpu.Thread, team Team, id int32, fence Fence) Status {
	for p := range team.Ranks {
		if _, _, ok := c.queue(team, p); !ok {
			return Invalid // before anything is announced: the id stays usable
		}
	}
	st := c.ginBarrier(id).Raw()
	if st.Arrived == st.Done {
		if fence&FenceGet != 0 {
			for p := range team.Ranks {
				i, world, _ := c.queue(team, p)
				r := c.pending(i, world)
				if s := c.waitTicket(t, &r); s != OK {
					return s
				}
			}
		}
		st.Arrived++
		st.Sent, st.Heard = 0, 0
	}
	toAll := fence&FencePut != 0
	steps := uint64(bits.Len32(uint32(team.Ranks - 1)))
	if toAll {
		steps = uint64(team.Ranks) // this rank too: a put to itself may be on its way like the others
	}
	base, first := int(c.id)*int(c.dc.SignalStride), c.dc.Signals+id*c.dc.Ranks // signal of this barrier from rank 0 of the world
	w := waiter{note: abi.Record{Op: abi.OpGINBarrier, ID: uint32(id), Ctx: uint32(c.id)}}
	for ; st.Heard < steps; st.Heard++ {
		for ; st.Sent < steps && (toAll || st.Sent == st.Heard); st.Sent++ {
			if s := c.announce(t, team, wrap(team.Rank+away(toAll, st.Sent), team.Ranks), first, toAll); s != OK {
				return s
			}
		}
		peer := team.WorldRank(c.dc, wrap(team.Rank-away(toAll, st.Heard)+team.Ranks, team.Ranks))
		// Only the network raises it, and nothing resets it. It counts that peer's arrivals of this id in all teams.
		word := base + int(first+peer)
		shadow := c.dc.Shadow.At(word)
		w.note.Peer, w.polls = peer, 0
		if s := c.arrived(t, c.dc.Net.At(word), shadow.Load()+1, &w, team); s != OK {
			return s
		}
		shadow.Store(shadow.Load() + 1)
	}
	st.Done = st.Arrived
	return OK
}

// away is how far from this rank the peer of a step is: 1, 2, 3, ... after it and itself at last, or 1, 2, 4, ... after it.
func away(toAll bool, step uint64) int32 {
	if toAll {
		return int32(step) + 1
	}
	return 1 << (step & 31)
}

// wrap is r mod n for r below 2n: a division takes ten times as long.
func wrap(r, n int32) int32 {
	if r >= n {
		return r - n
	}
	return r
}

// announce tells a rank of the team that this one has arrived.
func (c *Context) announce(t gpu.Thread, team Team, peer, first int32, strong bool) Status {
	i, world, _ := c.queue(team, peer)
	act := WeakInc(first + c.dc.Rank) // an id behind those of Signals
	if strong {
		act = StrongInc(first + c.dc.Rank)
	}
	return c.signal(t, i, world, &act, &lot{})
}

// arrived waits until a word that one peer raises is at least want. Who waits for one peer waits for all that it waits
// for itself: the wait ends when any of the team is lost.
func (c *Context) arrived(t gpu.Thread, word gpu.Ptr[uint64], want uint64, w *waiter, team Team) Status {
	s := OK
	for {
		seen := gpu.Load(word, gpu.Acquire, gpu.ScopeSys)
		if int64(seen-want) >= 0 {
			return OK
		}
		if s != OK {
			return s // after one more look: it may have come before that
		}
		w.note.Wanted, w.note.Seen = want, seen
		if c.dc.Together != 0 && team.Ranks > c.dc.Together {
			w.polls = c.dc.Looks - 1 // what is waited for comes when somebody else runs: 64 looks before are 5 us lost
		}
		s = c.step(t, w, FromTeam(team))
	}
}
