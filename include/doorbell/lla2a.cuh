// SPDX-License-Identifier: Apache-2.0
//
// The low-latency all-to-all among LSA peers (gin/lla2a.go): words that say by themselves that they are new, so that nothing
// has to be released or raised beside them. Each rank has slots of 8 bytes, numbered alike on all, into which peers send; who
// receives looks at its own.
//
// It goes by epochs. In each, a slot is sent to once at most, and whoever sends to a rank also receives from it: so a rank is
// one epoch ahead of another at most, and two halves by the epoch's parity are enough.
#pragma once
#include "gin.cuh"
#include "impl/number.cuh"

namespace doorbell {

// ll_slots is how many slots an element of so many bytes takes.
DOORBELL_DEVICE int32_t ll_slots(uint64_t bytes) { return int32_t((bytes + 7) / 8); }

// lla2a is filled in by context::lla2a; each call of another one is invalid. It belongs to one thread of those that take
// part: each of them sends and receives what it wants of the slots, and end_epoch gathers them. One group of threads at a time
// uses a block. The context outlives it.
class lla2a {
 public:
  // send puts v into a slot of an LSA peer, bcast into that slot of each of them, this rank among them. The others do it for an
  // element in memory, into ll_slots(bytes) slots from slot on. invalid: a peer that is not in the LSA team, a slot that is
  // not there.
  DOORBELL_DEVICE status send(int32_t lsa_peer, int32_t slot, uint64_t v);
  DOORBELL_DEVICE status bcast(int32_t slot, uint64_t v);
  DOORBELL_DEVICE status send_from(int32_t lsa_peer, int32_t slot, const uint8_t *src, uint64_t bytes);
  DOORBELL_DEVICE status bcast_from(int32_t slot, const uint8_t *src, uint64_t bytes);

  // recv waits for what src, of the LSA team, sends into that slot of this rank in this epoch. A call that timed out may be
  // repeated. invalid: a slot that is not there, or one that was sent to for a later epoch already: somebody sends to this rank
  // and does not receive from it. recv_into is for an element; what it stores before it fails is not defined.
  DOORBELL_DEVICE status recv(int32_t slot, source src, uint64_t &v);
  DOORBELL_DEVICE status recv_into(int32_t slot, uint8_t *dst, uint64_t bytes, source src);
  // recv_reduce receives n slots, stride apart, and makes one number of them in the order of the slots: an integer, or a float,
  // f16 or bf16 that was sent as its bits.
  template <class T>
  DOORBELL_DEVICE status recv_reduce(int32_t slot, int32_t stride, int32_t n, op o, source src, T &out);

  // end_epoch ends the epoch: all threads that take part have received what they wanted of it. It waits for those threads and
  // for no rank.
  DOORBELL_DEVICE status end_epoch();

 private:
  friend class context;

  context *c = nullptr;
  coop co = by_thread;
  int32_t block = -1;  // of a session that was refused
  uint32_t epoch = 0;

  DOORBELL_DEVICE bool has(int32_t slot, int32_t n) const {
    return block >= 0 && slot >= 0 && n >= 0 && n <= c->dc.LLSlots && slot <= c->dc.LLSlots - n;
  }
  DOORBELL_DEVICE bool has_bytes(int32_t slot, uint64_t bytes) const {
    return block >= 0 && bytes <= 8 * uint64_t(c->dc.LLSlots) && has(slot, ll_slots(bytes));
  }
  DOORBELL_DEVICE bool has_peer(int32_t p) const { return p >= 0 && p < c->dc.LSASize; }
  // at is where a slot of this epoch is, in words.
  DOORBELL_DEVICE int64_t at(int32_t slot) const { return (int64_t(block * 2 + int32_t(epoch & 1)) * c->dc.LLSlots + slot) * ll_slot_words; }
  DOORBELL_DEVICE void send_one(int32_t lsa_peer, int32_t slot, uint64_t v);
  DOORBELL_DEVICE uint32_t recv_one(int32_t slot, source src, uint64_t &v);
  DOORBELL_DEVICE void clear();
};

DOORBELL_DEVICE status context::lla2a(coop co, int32_t block, doorbell::lla2a &session) {
  session = {};
  if (id < 0 || block < 0 || block >= dc.LLBlocks) return invalid;
  word::begins(co);  // the epoch that another of these threads has stored is there
  session.c = this, session.co = co, session.block = block, session.epoch = dc.LLState[block].Epoch;
  return ok;
}

DOORBELL_DEVICE void lla2a::send_one(int32_t lsa_peer, int32_t slot, uint64_t v) {
  uint64_t *p = c->dc.PeerLL[lsa_peer] + at(slot), high = uint64_t(epoch) << 32;
  word::store_sys(p, (v & 0xffffffff) | high);
  word::store_sys(p + 1, v >> 32 | high);
}

DOORBELL_DEVICE status lla2a::send(int32_t lsa_peer, int32_t slot, uint64_t v) {
  if (!has(slot, 1) || !has_peer(lsa_peer)) return invalid;
  send_one(lsa_peer, slot, v);
  return ok;
}

DOORBELL_DEVICE status lla2a::bcast(int32_t slot, uint64_t v) {
  if (!has(slot, 1)) return invalid;
  for (int32_t p = 0; p < c->dc.LSASize; p++) send_one(p, slot, v);
  return ok;
}

DOORBELL_DEVICE status lla2a::send_from(int32_t lsa_peer, int32_t slot, const uint8_t *src, uint64_t bytes) {
  if (!has_bytes(slot, bytes) || !has_peer(lsa_peer)) return invalid;
  for (uint64_t off = 0; off < bytes; off += 8) send_one(lsa_peer, slot + int32_t(off / 8), word::bytes_at(src + off, bytes - off < 8 ? bytes - off : 8));
  return ok;
}

DOORBELL_DEVICE status lla2a::bcast_from(int32_t slot, const uint8_t *src, uint64_t bytes) {
  if (!has_bytes(slot, bytes)) return invalid;
  for (int32_t p = 0; p < c->dc.LSASize; p++) send_from(p, slot, src, bytes);
  return ok;
}

DOORBELL_DEVICE uint32_t lla2a::recv_one(int32_t slot, source src, uint64_t &v) {
  const uint64_t *p = c->dc.LL + at(slot);
  context::waiter w = {};
  w.note.Op = op_lla2a, w.note.Peer = c->source_peer(src), w.note.ID = uint32_t(slot), w.note.Ctx = uint32_t(c->id), w.note.Wanted = epoch;
  for (uint32_t s = ok;;) {
    uint64_t lo = word::relaxed_sys(p), hi = word::relaxed_sys(p + 1);
    uint32_t first = uint32_t(lo >> 32), second = uint32_t(hi >> 32);
    if (first == epoch && second == epoch) {
      v = (lo & 0xffffffff) | hi << 32;
      return ok;
    }
    if (first > epoch || second > epoch) return invalid;
    if (s) return s;  // after one more look: it may have come before that
    w.note.Seen = first;
    s = c->step(w, src);
  }
}

DOORBELL_DEVICE status lla2a::recv(int32_t slot, source src, uint64_t &v) {
  v = 0;
  return has(slot, 1) ? status(recv_one(slot, src, v)) : invalid;
}

DOORBELL_DEVICE status lla2a::recv_into(int32_t slot, uint8_t *dst, uint64_t bytes, source src) {
  if (!has_bytes(slot, bytes)) return invalid;
  for (uint64_t off = 0, v; off < bytes; off += 8) {
    if (uint32_t s = recv_one(slot + int32_t(off / 8), src, v)) return status(s);
    for (uint64_t b = 0; b < 8 && off + b < bytes; b++) dst[off + b] = uint8_t(v >> 8 * b);
  }
  return ok;
}

template <class T>
DOORBELL_DEVICE status lla2a::recv_reduce(int32_t slot, int32_t stride, int32_t n, op o, source src, T &out) {
  if (block < 0 || n < 1 || n > c->dc.LLSlots || stride < 0 || stride > c->dc.LLSlots || slot < 0 || !word::reduces<T>(o) ||
      int64_t(slot) + int64_t(n - 1) * stride >= c->dc.LLSlots)
    return invalid;
  return status(word::reduce(o, n, out, [&](int32_t i, T &v) {
    uint64_t bits = 0;
    uint32_t s = recv_one(slot + i * stride, src, bits);
    if constexpr (std::is_integral<T>::value)
      v = T(bits);
    else
      word::from_bits(bits, v);
    return s;
  }));
}

DOORBELL_DEVICE status lla2a::end_epoch() {
  if (block < 0) return invalid;
  uint32_t next = epoch + 1;
  if (next < ll_first_epoch) next = ll_first_epoch;
  if (word::begins(co)) {
    if (epoch >= 0xfffffffe) clear();
    c->dc.LLState[block].Epoch = next;
  }
  epoch = next;
  return status(word::ends(co, ok));
}

// clear forgets this epoch's half, when numbers begin anew after the next one: an epoch of the same number may be in a slot that
// was not sent to since. Nobody sends to this half before this rank has sent in the next epoch.
DOORBELL_DEVICE void lla2a::clear() {
  uint64_t *p = c->dc.LL + at(0);
  for (int64_t i = 0; i < int64_t(c->dc.LLSlots) * ll_slot_words; i++) word::store_sys(p + i, uint64_t(0));
  word::fence_sys();  // before what lets them
}

}  // namespace doorbell
