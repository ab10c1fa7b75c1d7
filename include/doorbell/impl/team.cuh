// SPDX-License-Identifier: Apache-2.0
//
// Bodies of gin.cuh: stores to LSA peers and barriers (gin/lsa.go, signal_at.go, barrier.go).
#pragma once
#include "../gin.cuh"

namespace doorbell {

DOORBELL_DEVICE uint8_t *lsa_pointer(const window &w, int32_t lsa_peer, uint64_t off) { return word::peer_of(w.Info, w.LSA0 + lsa_peer)->Base + off; }

DOORBELL_DEVICE status context::lsa_put(coop co, int32_t lsa_peer, const window &dst, uint64_t dst_off, const uint8_t *src, uint64_t bytes) {
  if (id < 0 || lsa_peer < 0 || lsa_peer >= dc.LSASize || !dst.Info || dst.Gen == 0 || dc.Inject) return invalid;
  bool whole = co == by_thread && bytes == 8 && ((reinterpret_cast<uint64_t>(src) | dst_off) & 7) == 0;
  // First, since what hangs on a condition is put behind the rest's arrival.
  uint64_t value = whole ? word::relaxed_block(reinterpret_cast<const uint64_t *>(src)) : 0;
  uint32_t gen = word::generation(dst.Info);
  uint64_t size = word::size_of(dst.Info, dst.LSA0 + lsa_peer);
  uint8_t *to = word::base_of(dst, dst.LSA0 + lsa_peer) + dst_off;
  if (gen != dst.Gen || !word::in_bounds(dst_off, bytes, size)) return invalid;
  if (whole && (reinterpret_cast<uint64_t>(to) & 7) == 0)
    *reinterpret_cast<uint64_t *>(to) = value;
  else
    word::copy(co, to, src, bytes);
  return ok;
}

DOORBELL_DEVICE status context::lsa_signal(coop co, int32_t lsa_peer, int32_t i, uint64_t v) {
  uint32_t s = ok;
  if (word::begins(co)) {
    if (!has_signal(i) || lsa_peer < 0 || lsa_peer >= dc.LSASize || dc.Inject) {
      s = invalid;
    } else {
      if (near != lsa_peer + 1) near = lsa_peer + 1, near_lsa = dc.PeerLSA[lsa_peer];
      word::add_release_sys(near_lsa + signal_word(i), v);
    }
  }
  return status(word::ends(co, s));
}

DOORBELL_DEVICE status context::lsa_signal_at(coop co, int32_t lsa_peer, const signal_window &w, uint64_t off, uint64_t v) {
  uint32_t s = invalid;
  if (word::begins(co) && id >= 0 && lsa_peer >= 0 && lsa_peer < dc.LSASize && !dc.Inject && word::at_valid(w.Info, w.Gen, off, w.LSA0 + lsa_peer)) {
    word::add_release_sys(reinterpret_cast<uint64_t *>(word::peer_of(w.Info, w.LSA0 + lsa_peer)->Base + off), v);
    s = ok;
  }
  return status(word::ends(co, s));
}

DOORBELL_DEVICE status context::lsa_barrier(coop co, int32_t barrier_id) {
  uint32_t s = invalid;
  word::begins(co);
  if (barrier_valid(barrier_id, fence_none)) s = lsa_barrier_part(co, barrier_id);
  return status(word::ends(co, s));
}

DOORBELL_DEVICE status context::barrier(coop co, team t, int32_t barrier_id, fence f) {
  uint32_t s = invalid;
  if (word::begins(co) && barrier_valid(barrier_id, f) && t.has(t.rank)) s = barrier_one(t, barrier_id, f);
  return status(word::ends(co, s));
}

DOORBELL_DEVICE status context::hybrid_barrier(coop co, int32_t barrier_id, fence f) {
  uint32_t s = invalid;
  if (word::begins(co) && barrier_valid(barrier_id, f)) s = hybrid_barrier_one(barrier_id, f);
  return status(word::ends(co, s));
}

DOORBELL_DEVICE bool context::barrier_valid(int32_t i, uint32_t f) const {
  if ((f & fence_put) && (dc.Refused & flag_strong)) return false;  // it is made of strong signals
  return id >= 0 && i >= 0 && i < dc.Barriers && f <= (fence_put | fence_get);
}

// hybrid_barrier_one: a rank that passed the first half knows that its node has arrived, and by the second half that those of
// its rail have passed the first. That is enough to know of all. But puts off the rail are covered by signals to all alone;
// and what was put to an LSA peer is there once that peer says so, in the last part.
DOORBELL_DEVICE uint32_t context::hybrid_barrier_one(int32_t barrier_id, fence f) {
  uint64_t *stage = &gin_barrier(barrier_id)->Stage;
  bool puts = f & fence_put, by_all = puts && !dc.Railed;
  if (*stage == 0) {
    if (by_all)
      word::fence_sys();  // stores to LSA peers: no signal of the network covers them
    else if (uint32_t s = lsa_barrier_part(by_thread, barrier_id))
      return s;
    *stage = 1;
  }
  if (*stage == 1) {
    if (uint32_t s = barrier_one(by_all ? world(dc) : rail(dc), barrier_id, f)) return s;
    *stage = 2;
  }
  if (puts && dc.LSASize > 1)
    if (uint32_t s = lsa_barrier_part(by_thread, barrier_id)) return s;
  *stage = 0;
  return ok;
}

// lsa_barrier_part is called by all threads that take part: the ranks are dealt out to the first warp's lanes. All that is kept
// of an id is the last epoch that was complete: who comes back after a time-out tells of the same one again, which changes nothing.
DOORBELL_DEVICE uint32_t context::lsa_barrier_part(coop co, int32_t barrier_id) {
  int32_t lane = int32_t(word::lane(co)), lanes = co == by_thread ? 1 : word::warp_size;
  if (lane >= lanes) return ok;
  team t = lsa(dc);
  int32_t others = t.ranks - 1;
  auto other = [&](int32_t i) { return i < t.rank ? i : i + 1; };  // the ranks but this one
  uint64_t *done = &dc.Barrier[barrier_id].Done;
  // On their way while the fence waits. It is one for all ranks: a release store to each would wait for the one before it.
  uint64_t *box = dc.PeerInbox[lane < others ? other(lane) : others];
  uint64_t epoch = word::relaxed_block(done);
  word::fence_sys();
  uint32_t s = ok;
  if (lane < others) {
    epoch++;
    for (int32_t i = lane;;) {
      word::store_sys(box + (barrier_id * t.ranks + t.rank), epoch);
      if ((i += lanes) >= others) break;
      box = dc.PeerInbox[other(i)];
    }
    waiter w = {};
    w.note.Op = op_lsa_barrier, w.note.ID = uint32_t(barrier_id), w.note.Ctx = uint32_t(id);
    for (int32_t i = lane; i < others && s == ok; i += lanes) {
      w.note.Peer = t.world_rank(dc, other(i));
      s = arrived(dc.Inbox + (barrier_id * t.ranks + other(i)), epoch, w, t);
    }
  }
  s = word::agree(co, s);
  if (s == ok && lane == 0) *done = epoch;
  return s;
}

// barrier_one: where puts are to be covered each rank signals each, since a strong signal covers those to its own target.
// Else each rank signals the one 1, 2, 4, ... after it, and each signal speaks for all that its sender had heard of.
DOORBELL_DEVICE uint32_t context::barrier_one(team t, int32_t barrier_id, fence f) {
  int32_t q, to;
  for (int32_t p = 0; p < t.ranks; p++)
    if (!queue(t, p, q, to)) return invalid;  // before anything is announced: the id stays usable
  barrier_state *st = gin_barrier(barrier_id);
  if (st->Arrived == st->Done) {
    for (int32_t p = 0; (f & fence_get) && p < t.ranks; p++) {
      queue(t, p, q, to);
      if (uint32_t s = wait_ticket(pending(q, to))) return s;
    }
    st->Arrived++;
    st->Sent = st->Heard = 0;
  }
  bool to_all = f & fence_put;
  uint64_t steps = 0;
  if (to_all)
    steps = uint64_t(t.ranks);  // this rank too: a put to itself may be on its way like the others
  else
    while (int64_t(1) << steps < t.ranks) steps++;
  int32_t first = dc.Signals + barrier_id * dc.Ranks;  // signal of this barrier from rank 0 of the world
  waiter w = {};
  w.note.Op = op_gin_barrier, w.note.ID = uint32_t(barrier_id), w.note.Ctx = uint32_t(id);
  auto away = [&](uint64_t step) { return to_all ? int32_t(step) + 1 : int32_t(1) << (step & 31); };
  for (; st->Heard < steps; st->Heard++) {
    for (; st->Sent < steps && (to_all || st->Sent == st->Heard); st->Sent++)
      if (uint32_t s = announce(t, (t.rank + away(st->Sent)) % t.ranks, first, to_all)) return s;
    int32_t peer = t.world_rank(dc, (t.rank - away(st->Heard) + t.ranks) % t.ranks);
    // Only the network raises it, and nothing resets it. It counts that peer's arrivals of this id in all teams.
    int32_t at = signal_word(first + peer);
    w.note.Peer = peer, w.polls = 0;
    if (uint32_t s = arrived(dc.Net + at, dc.Shadow[at] + 1, w, t)) return s;
    dc.Shadow[at]++;
  }
  st->Done = st->Arrived;
  return ok;
}

// announce tells a rank of the team that this one has arrived.
DOORBELL_DEVICE uint32_t context::announce(team t, int32_t peer, int32_t first, bool strong) {
  int32_t q, to;
  queue(t, peer, q, to);
  desc d = {};
  d.Op = op_signal;
  look_t l = look(q);
  return post(q, to, d, by_id(first + dc.Rank, 1, flag_signal_inc | (strong ? flag_strong : 0)), nullptr, l);
}

// arrived waits until a word that one peer raises is at least want. Who waits for one peer waits for all that it waits for
// itself: the wait ends when any of the team is lost.
DOORBELL_DEVICE uint32_t context::arrived(const uint64_t *at, uint64_t want, waiter &w, team t) const {
  uint32_t s = ok;
  for (;;) {
    uint64_t seen = word::acquire_sys(at);
    if (int64_t(seen - want) >= 0) return ok;
    if (s) return s;
    w.note.Wanted = want, w.note.Seen = seen;
    if (dc.Together && t.ranks > dc.Together) w.polls = dc.Looks - 1;  // what is waited for comes when somebody else runs
    s = step(w, from_team(t));
  }
}

}  // namespace doorbell
