// SPDX-License-Identifier: Apache-2.0
//
// Bodies of gin.cuh: what waits (gin/wait.go, signal.go, signal_at.go, shadow.go, flush.go).
#pragma once
#include "../gin.cuh"

namespace doorbell {

namespace word {

constexpr uint64_t note_after = 10000000000;  // when a wait leaves word of itself for the host to log, ns
constexpr int near_looks = 64;                // how often the LSA word is looked at before the NET word is, when the last signal came by it

// leave fills a record for the host if no other thread has claimed it. The claim is a word of the device's memory: the
// record may be in the host's, where no atomic of a GPU belongs.
DOORBELL_DEVICE void leave(uint32_t *claim, record *r, record note, uint32_t s) {
  if (!cas_gpu(claim, uint32_t(0), uint32_t(1))) return;
  note.Status = s, note.State = 0;
  *r = note;
  release_sys(&r->State, uint32_t(2));
}

struct words_at {
  const uint64_t *net, *lsa;
  uint64_t *offset;
};
DOORBELL_DEVICE words_at words_of(const signal_window &w, uint64_t off) {
  return {reinterpret_cast<const uint64_t *>(w.Net + off), reinterpret_cast<const uint64_t *>(w.LSA + off), reinterpret_cast<uint64_t *>(w.Offset + off)};
}

}  // namespace word

// trouble is the reason why a wait for src cannot end well, if there is one; it names the rank in note.
DOORBELL_DEVICE uint32_t context::trouble(source src, record &note) const {
  if (uint32_t e = word::relaxed_sys(&dc.Control->Ended)) return e;
  for (int32_t p = src.from; p < src.to; p++) {
    int32_t to = src.of.world_rank(dc, p), q;
    if (to < 0 || to >= dc.Ranks) continue;
    uint32_t lost = word::relaxed_sys(dc.Lost + to);
    if (lost == rank_out && src.to - src.from > 1) continue;  // the others go on without it
    if (lost) {
      note.Peer = to;
      return peer_lost;
    }
    if (queue(src.of, p, q, to)) {
      if (uint32_t s = word::relaxed_sys(dc.Status + q)) {
        note.Peer = to;
        return s;
      }
    }
  }
  return ok;
}

DOORBELL_DEVICE void context::waiter::rest() const {
  if (far && waited) word::rest(waited);
}

// step is called after each look that found nothing. ok: look again.
DOORBELL_DEVICE uint32_t context::step(waiter &w, source src) const {
  if ((++w.polls & (dc.Looks - 1)) == 0) return pause(w, src);
  w.rest();
  return ok;
}

// pause is called every dc.Looks looks: it looks for reasons to end the wait, and gives way. ok: look again.
DOORBELL_DEVICE uint32_t context::pause(waiter &w, source src) const {
  uint64_t now = word::clock_ns();
  if (w.start == 0) w.start = now;
  uint64_t waited = w.waited = now - w.start;
  if (uint32_t s = trouble(src, w.note)) {
    w.note.Since = waited;
    word::leave(&dc.Control->Cause, &dc.Notes->Cause, w.note, s);
    return s;
  }
  uint32_t s = waited >= timeout_ns ? timeout : ok;
  // Who sets a shorter deadline than the communicator's looks in on something, and is not waiting in vain.
  if ((waited >= word::note_after || (s != ok && timeout_ns >= dc.Timeout)) && !w.noted) {
    w.noted = true;
    w.note.Since = waited;
    word::leave(&dc.Control->Waiter, &dc.Notes->Waiter, w.note, s);
  }
  if (s == ok) word::relax();
  return s;
}

DOORBELL_DEVICE int32_t context::source_peer(source src) const { return src.to - src.from == 1 ? src.of.world_rank(dc, src.from) : -1; }

DOORBELL_DEVICE uint64_t context::read_signal(int32_t i) const {
  if (!has_signal(i)) return 0;
  int32_t at = signal_word(i);
  return word::acquire_sys(dc.Net + at) + word::acquire_sys(dc.LSA + at) - dc.SigOffset[at];
}

DOORBELL_DEVICE status context::wait_signal(coop co, int32_t i, uint64_t least, source src, int32_t bits) {
  uint32_t s = ok;
  if (word::begins(co)) s = !has_signal(i) || bits < 1 || bits > 64 ? uint32_t(invalid) : wait_word(signal_word(i), i, least, bits, src);
  return status(word::ends(co, s));
}

// wait_word: the NET word is across PCIe, at 1 us a look, and the LSA word near, at a sixth of it: the one that grew for the
// last wait is looked at more often.
DOORBELL_DEVICE uint32_t context::wait_word(int32_t i, int32_t sig, uint64_t least, int32_t bits, source src) {
  const uint64_t *net = dc.Net + i, *lsa = dc.LSA + i;
  uint64_t off = dc.SigOffset[i], want = least + off;
  if (far_word != i) {
    near_was = word::acquire_sys(lsa), by_lsa = false;
  } else if (by_lsa && bits == 64) {
    // A value of before is never too high: words only grow. Of fewer bits it may be, since it may be half a turn behind.
#ifdef __CUDACC__
#pragma unroll 1
#endif
    for (int n = 0; n < word::near_looks; n++) {
      uint64_t close = word::acquire_sys(lsa);
      if (!word::rolling_le(want, far + close, bits)) continue;
      near_was = close;
      return ok;
    }
  }
#ifdef __CUDACC__
#pragma unroll 1
#endif
  for (uint32_t n = 0; n < dc.Looks; n++) {
    // The near one first, and ordered only if it counts: so that both are on their way at once.
    uint64_t close = word::relaxed_sys(lsa);
    far = word::acquire_sys(net), far_word = i;
    if (!word::rolling_le(want, far + close, bits)) continue;
    by_lsa = close != near_was;
    if (by_lsa) near_was = word::acquire_sys(lsa);
    return ok;
  }
  waiter w = {};
  w.far = true;
  w.note.Op = op_wait_signal, w.note.Peer = source_peer(src), w.note.ID = uint32_t(sig), w.note.Ctx = uint32_t(id), w.note.Wanted = least;
  return wait_pair(net, lsa, off, w, bits, src);
}

// wait_pair waits until the NET and the LSA word less off are at least what w.note wants.
DOORBELL_DEVICE uint32_t context::wait_pair(const uint64_t *net, const uint64_t *lsa, uint64_t off, waiter &w, int32_t bits, source src) {
  uint64_t least = w.note.Wanted;
  uint32_t s = pause(w, src);
  uint64_t before = word::acquire_sys(lsa);
  for (;;) {
    uint64_t close = word::acquire_sys(lsa), seen = word::acquire_sys(net) + close - off;
    if (word::rolling_le(least, seen, bits)) {
      by_lsa = close != before;
      return ok;
    }
    if (s) return s;  // after one more look: it may have come before its sender was lost
    w.note.Seen = seen;
    s = step(w, src);
  }
}

DOORBELL_DEVICE uint64_t context::read_lsa_signal(int32_t i) const { return has_signal(i) ? word::acquire_sys(dc.LSA + signal_word(i)) : 0; }

DOORBELL_DEVICE status context::wait_lsa_signal(coop co, int32_t i, uint64_t least, source src, int32_t bits) {
  uint32_t s = ok;
  if (word::begins(co)) s = !has_signal(i) || bits < 1 || bits > 64 ? uint32_t(invalid) : wait_near(i, least, bits, src);
  return status(word::ends(co, s));
}

DOORBELL_DEVICE uint32_t context::wait_near(int32_t sig, uint64_t least, int32_t bits, source src) const {
  const uint64_t *at = dc.LSA + signal_word(sig);
  waiter w = {};
  w.note.Op = op_wait_signal, w.note.Peer = source_peer(src), w.note.ID = uint32_t(sig), w.note.Ctx = uint32_t(id), w.note.Wanted = least;
  for (uint32_t s = ok;;) {
    w.note.Seen = word::acquire_sys(at);
    if (word::rolling_le(least, w.note.Seen, bits)) return ok;
    if (s) return s;  // after one more look: it may have come before its sender was lost
    s = step(w, src);
  }
}

DOORBELL_DEVICE status context::reset_signal(coop co, int32_t i) {
  uint32_t s = invalid;
  if (word::begins(co) && has_signal(i)) {
    int32_t at = signal_word(i);
    dc.SigOffset[at] += read_signal(i);
    dc.Shadow[at] = 0;
    s = ok;
  }
  return status(word::ends(co, s));
}

DOORBELL_DEVICE uint64_t context::read_signal_at(const signal_window &w, uint64_t off) const {
  if (id < 0 || !word::at_valid(w.Info, w.Gen, off, dc.Rank)) return 0;
  word::words_at at = word::words_of(w, off);
  return word::acquire_sys(at.net) + word::acquire_sys(at.lsa) - *at.offset;
}

DOORBELL_DEVICE status context::wait_signal_at(coop co, const signal_window &sw, uint64_t off, uint64_t least, source src, int32_t bits) {
  uint32_t s = invalid;
  if (word::begins(co) && id >= 0 && bits >= 1 && bits <= 64 && word::at_valid(sw.Info, sw.Gen, off, dc.Rank)) {
    word::words_at at = word::words_of(sw, off);
    s = ok;
    if (!word::rolling_le(least, word::acquire_sys(at.net) + word::acquire_sys(at.lsa) - *at.offset, bits)) {
      waiter w = {};
      w.far = true;
      w.note.Op = op_wait_signal_at, w.note.Peer = source_peer(src), w.note.Ctx = uint32_t(id), w.note.Window = sw.ID, w.note.Offset = off, w.note.Wanted = least;
      s = wait_pair(at.net, at.lsa, *at.offset, w, bits, src);
    }
  }
  return status(word::ends(co, s));
}

DOORBELL_DEVICE status context::reset_signal_at(coop co, const signal_window &w, uint64_t off) {
  uint32_t s = invalid;
  if (word::begins(co) && id >= 0 && word::at_valid(w.Info, w.Gen, off, dc.Rank)) {
    word::words_at at = word::words_of(w, off);
    *at.offset = word::acquire_sys(at.net) + word::acquire_sys(at.lsa);
    s = ok;
  }
  return status(word::ends(co, s));
}

DOORBELL_DEVICE uint64_t context::shadow(int32_t i) const { return has_signal(i) ? word::relaxed_gpu(dc.Shadow + signal_word(i)) : 0; }

DOORBELL_DEVICE status context::add_shadow(int32_t i, uint64_t delta) {
  if (!has_signal(i)) return invalid;
  word::add_relaxed_gpu(dc.Shadow + signal_word(i), delta);
  return ok;
}

DOORBELL_DEVICE status context::wait_meet(coop co, int32_t i, source src) {
  uint32_t s = invalid;
  if (word::begins(co) && has_signal(i)) s = wait_word(signal_word(i), i, shadow(i), 64, src);
  return status(word::ends(co, s));
}

DOORBELL_DEVICE status context::wait_follow(coop co, int32_t i, uint64_t least, source src, uint64_t &before, uint64_t &delta) {
  uint32_t s = invalid;
  before = delta = 0;
  if (word::begins(co) && has_signal(i)) {
    uint64_t was = shadow(i);
    s = wait_word(signal_word(i), i, was + least, 64, src);
    if (s == ok) {
      before = was, delta = read_signal(i) - was;
      word::store_gpu(dc.Shadow + signal_word(i), was + delta);
    }
  }
  s = word::ends(co, s);
  before = word::share(co, before), delta = word::share(co, delta);
  return status(s);
}

DOORBELL_DEVICE uint64_t context::read_counter(int32_t i) const {
  if (!has_counter(i)) return 0;
  int32_t at = id * dc.Counters + i;
  return word::acquire_sys(dc.Counter + at) - dc.CounterOffset[at];
}

DOORBELL_DEVICE status context::wait_counter(coop co, int32_t i, uint64_t least, source src, int32_t bits) {
  uint32_t s = invalid;
  if (word::begins(co) && has_counter(i) && bits >= 1 && bits <= 64) {
    waiter w = {};
    w.far = true;
    w.note.Op = op_wait_counter, w.note.Peer = source_peer(src), w.note.ID = uint32_t(i), w.note.Ctx = uint32_t(id), w.note.Wanted = least;
    for (s = ok;;) {
      uint64_t seen = read_counter(i);
      if (word::rolling_le(least, seen, bits)) {
        s = ok;
        break;
      }
      if (s) break;
      w.note.Seen = seen;
      s = step(w, src);
    }
  }
  return status(word::ends(co, s));
}

DOORBELL_DEVICE status context::reset_counter(coop co, int32_t i) {
  uint32_t s = invalid;
  if (word::begins(co) && has_counter(i)) {
    dc.CounterOffset[id * dc.Counters + i] += read_counter(i);
    s = ok;
  }
  return status(word::ends(co, s));
}

// pending stands for what was posted to a queue so far.
DOORBELL_DEVICE request context::pending(int32_t q, int32_t world_rank) const { return {word::relaxed_gpu(&dc.Prod[q].Ticket), q, world_rank, id + 1}; }

// pending_of is pending for the peer of queue p of this context.
DOORBELL_DEVICE request context::pending_of(int32_t p) const {
  return pending(id * dc.Peers + p, dc.Railed ? p * dc.LSASize + dc.LSARank : p);
}

// mine says whether a request can be one of this context.
DOORBELL_DEVICE bool context::mine(const request &r) const {
  return id >= 0 && r.context_plus1 == id + 1 && r.queue >= id * dc.Peers && r.queue < (id + 1) * dc.Peers && r.world >= 0 && r.world < dc.Ranks;
}

DOORBELL_DEVICE bool context::complete(const request &r) const { return int64_t(word::acquire_sys(&dc.Index[r.queue].Completed) - r.until) >= 0; }

DOORBELL_DEVICE uint32_t context::wait_ticket(const request &r) const {
  waiter w = {};
  w.far = true;
  w.note.Op = op_flush, w.note.Peer = r.world, w.note.Ctx = uint32_t(r.context_plus1 - 1), w.note.Wanted = r.until;
  uint32_t s = ok;
  for (;;) {
    uint64_t seen = word::acquire_sys(&dc.Index[r.queue].Completed);
    if (int64_t(seen - r.until) >= 0) return ok;
    if (s) return s;
    w.note.Seen = seen;
    s = step(w, from_peer(world(dc), r.world));
  }
}

DOORBELL_DEVICE status context::flush(coop co) {
  uint32_t s = invalid;
  if (word::begins(co) && id >= 0) {
    s = ok;
    for (int32_t p = 0; p < dc.Peers; p++) {
      uint32_t e = wait_ticket(pending_of(p));
      if (s == ok) s = e;  // the others are still waited for
    }
  }
  return status(word::ends(co, s));
}

DOORBELL_DEVICE status context::flush_peer(coop co, team t, int32_t peer) {
  uint32_t s = invalid;
  int32_t q, to;
  if (word::begins(co) && queue(t, peer, q, to)) s = wait_ticket(pending(q, to));
  return status(word::ends(co, s));
}

DOORBELL_DEVICE status context::flush_async(coop co, team t, int32_t peer, request &r) {
  word::begins(co);  // what the others posted is counted
  int32_t q, to;
  bool there = queue(t, peer, q, to);
  r = there ? pending(q, to) : request{};
  word::gathered(co);
  return there ? ok : invalid;
}

DOORBELL_DEVICE status context::test(const request &r, bool &done) const {
  done = r.context_plus1 == 0 || (mine(r) && complete(r));
  if (done) return ok;
  if (!mine(r)) return invalid;
  record note = {};
  return status(trouble(from_peer(world(dc), r.world), note));
}

DOORBELL_DEVICE status context::wait(coop co, const request &r) {
  uint32_t s = ok;
  if (word::begins(co) && r.context_plus1 != 0) s = mine(r) ? wait_ticket(r) : uint32_t(invalid);
  return status(word::ends(co, s));
}

DOORBELL_DEVICE status context::flush_all_async(coop co, request *into) {
  uint32_t s = invalid;
  if (word::begins(co) && id >= 0) {
    s = ok;
    for (int32_t p = 0; p < dc.Peers; p++) into[p] = pending_of(p);
  }
  return status(word::ends(co, s));
}

DOORBELL_DEVICE status context::test_all(const request *from, bool &done) const {
  done = true;
  for (int32_t p = 0; p < dc.Peers; p++) {
    status s = test(from[p], done);
    if (!done) return s;
  }
  return ok;
}

DOORBELL_DEVICE status context::wait_all(coop co, const request *from) {
  uint32_t s = ok;
  if (word::begins(co)) {
    for (int32_t p = 0; p < dc.Peers; p++) {
      if (from[p].context_plus1 == 0) continue;
      uint32_t e = mine(from[p]) ? wait_ticket(from[p]) : uint32_t(invalid);
      if (s == ok) s = e;  // the others are still waited for
    }
  }
  return status(word::ends(co, s));
}

DOORBELL_DEVICE status context::fence_contexts(coop co, team t, int32_t peer, int32_t first, int32_t n) {
  uint32_t s = invalid;
  int32_t q, to;
  if (word::begins(co) && queue(t, peer, q, to) && dc.Remote != 0 && first >= 0 && n >= 0 && first <= dc.Contexts - n) {
    s = ok;
    int32_t in = q - id * dc.Peers;
    for (int32_t x = first; x < first + n; x++) {
      request r = pending(x * dc.Peers + in, to);
      r.context_plus1 = x + 1;
      uint32_t e = wait_ticket(r);
      if (s == ok) s = e;
    }
  }
  return status(word::ends(co, s));
}

}  // namespace doorbell
