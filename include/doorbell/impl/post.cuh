// SPDX-License-Identifier: Apache-2.0
//
// Bodies of gin.cuh: what posts (gin/context.go, put.go, get.go, action.go).
#pragma once
#include "../gin.cuh"

namespace doorbell {

namespace word {

DOORBELL_DEVICE const window_peer *peer_of(const window_info *info, int32_t world_rank) {
  return reinterpret_cast<const window_peer *>(info + 1) + world_rank;
}

// generation is that of the window which is registered now under this id, 0 for none.
DOORBELL_DEVICE uint32_t generation(const window_info *info) { return relaxed_sys(&info->Gen); }

DOORBELL_DEVICE uint64_t size_of(const window_info *info, int32_t world_rank) { return relaxed_block(&peer_of(info, world_rank)->Size); }

// base_of is loaded where it stands: compilers put off a plain load until its value is used.
DOORBELL_DEVICE uint8_t *base_of(const window &w, int32_t world_rank) {
  return reinterpret_cast<uint8_t *>(relaxed_block(reinterpret_cast<const uint64_t *>(&peer_of(w.Info, world_rank)->Base)));
}

// at_valid says whether a rank of the world has a signal at that offset of a window that is registered.
DOORBELL_DEVICE bool at_valid(const window_info *info, uint32_t gen, uint64_t off, int32_t world_rank) {
  return info && gen != 0 && (off & 7) == 0 && generation(info) == gen && in_bounds(off, 8, peer_of(info, world_rank)->Size);
}

}  // namespace word

DOORBELL_DEVICE context::context(const dev_comm &dc, int32_t id) : timeout_ns(dc.Timeout), dc(dc), id(id), per_node(uint64_t(1) << 32) {
  if (dc.Version != dev_comm_version || dc.NIC || id < 0 || id >= dc.Contexts) this->id = -1;  // NICs are driven from Go alone so far
  // ceil(2^32/n): x / n is x * per_node >> 32, exactly, for an x whose product with n is below 2^32.
  if (this->id >= 0 && dc.Railed) per_node = uint64_t(0xffffffffu / uint32_t(dc.LSASize)) + 1;
}

// queue finds the queue to a rank of a team and that rank's number in the world; false when there is none. It divides
// nothing and branches nowhere, so that a compiler does all of it before a loop of puts.
DOORBELL_DEVICE bool context::queue(team t, int32_t peer, int32_t &index, int32_t &world_rank) const {
  world_rank = t.world_rank(dc, peer);
  int32_t in = int32_t(uint64_t(uint32_t(world_rank)) * per_node >> 32);
  bool on_rail = (dc.Railed == 0) | (in * dc.LSASize + dc.LSARank == world_rank);
  index = id * dc.Peers + in;
  return (id >= 0) & t.has(peer) & (uint32_t(world_rank) < uint32_t(dc.Ranks)) & on_rail;
}

DOORBELL_DEVICE bool context::valid(const action &a, int32_t world_rank) const {
  if (a.signal_plus1 < 0 || a.signal_plus1 > dc.Signals || a.counter_plus1 < 0 || a.counter_plus1 > dc.Counters || (a.flags & dc.Refused)) return false;
  return !(a.flags & flag_at_address) || word::at_valid(a.info, a.gen, a.at, world_rank);
}

// look is all that a post looks at first, loaded before any of it is tested: each look takes a GPU 0.2 us, several at once
// no longer. Credit may be old, so it is never too high.
DOORBELL_DEVICE context::look_t context::look(int32_t q) const {
  return {word::relaxed_sys(dc.Status + q), word::relaxed_sys(&dc.Control->Ended), word::relaxed_gpu(&dc.Prod[q].Credit), word::relaxed_gpu(&dc.Prod[q].Ticket)};
}

DOORBELL_DEVICE status context::put(coop co, team t, int32_t peer, const window &dst, uint64_t dst_off, const window &src, uint64_t src_off, uint64_t bytes, action act) {
  uint32_t s = ok;
  if (word::begins(co)) s = put_one(t, peer, dst, dst_off, src, src_off, bytes, act);
  return status(word::ends(co, s));
}

DOORBELL_DEVICE uint32_t context::put_one(team t, int32_t peer, const window &dst, uint64_t dst_off, const window &src, uint64_t src_off, uint64_t bytes, const action &act) {
  int32_t q, to;
  if (!queue(t, peer, q, to) || !valid(act, to) || !dst.Info || !src.Info || !word::in_bounds(src_off, bytes, src.Size)) return invalid;
  uint64_t size = word::size_of(dst.Info, to);
  desc d = {};
  d.Op = op_put, d.Size = bytes, d.DstOff = dst_off, d.DstWin = dst.ID, d.DstGen = dst.Gen, d.SrcWin = src.ID, d.Src = src_off;
  const uint8_t *from = src.Base + src_off;
  bool small = bytes <= dc.CellPayload && src.Far == 0;
  if (small && bytes <= 8) d.Op = op_put_value, d.Src = word::bytes_at(from, bytes), d.SrcWin = 0;
  look_t l = look(q);
  uint32_t dst_gen = word::generation(dst.Info), src_gen = word::generation(src.Info);
  if (dst.Gen == 0 || src.Gen == 0 || ((dst_gen ^ dst.Gen) | (src_gen ^ src.Gen)) || !word::in_bounds(dst_off, bytes, size)) return invalid;
  if (small) {
    if (bytes > 8) d.Op = op_put_cell, d.Src = 0, d.SrcWin = 0;
  } else if (!released) {
    word::fence_sys();
  }
  return post(q, to, d, act, from, l);
}

DOORBELL_DEVICE status context::put_value(coop co, team t, int32_t peer, const window &dst, uint64_t dst_off, uint64_t value, uint64_t bytes, action act) {
  uint32_t s = ok;
  if (word::begins(co)) s = put_value_one(t, peer, dst, dst_off, value, bytes, act);
  return status(word::ends(co, s));
}

DOORBELL_DEVICE uint32_t context::put_value_one(team t, int32_t peer, const window &dst, uint64_t dst_off, uint64_t value, uint64_t bytes, const action &act) {
  int32_t q, to;
  if (!queue(t, peer, q, to) || bytes < 1 || bytes > 8 || !valid(act, to) || !dst.Info) return invalid;
  uint64_t size = word::size_of(dst.Info, to);
  look_t l = look(q);
  if (dst.Gen == 0 || word::generation(dst.Info) != dst.Gen || !word::in_bounds(dst_off, bytes, size)) return invalid;
  desc d = {};
  d.Op = op_put_value, d.Size = bytes, d.DstOff = dst_off, d.DstWin = dst.ID, d.DstGen = dst.Gen, d.Src = value;
  return post(q, to, d, act, nullptr, l);
}

DOORBELL_DEVICE status context::get(coop co, team t, int32_t peer, const window &far, uint64_t far_off, const window &near, uint64_t near_off, uint64_t bytes, action act) {
  uint32_t s = ok;
  if (word::begins(co)) s = get_one(t, peer, far, far_off, near, near_off, bytes, act);
  return status(word::ends(co, s));
}

DOORBELL_DEVICE uint32_t context::get_one(team t, int32_t peer, const window &far, uint64_t far_off, const window &near, uint64_t near_off, uint64_t bytes, const action &act) {
  int32_t q, to;
  if (!queue(t, peer, q, to) || !valid(act, to) || (act.flags & (flag_signal_inc | flag_signal_add)) || !far.Info || !near.Info || !word::in_bounds(near_off, bytes, near.Size)) return invalid;
  uint64_t size = word::size_of(far.Info, to);
  look_t l = look(q);
  uint32_t far_gen = word::generation(far.Info), near_gen = word::generation(near.Info);
  if (far.Gen == 0 || near.Gen == 0 || ((far_gen ^ far.Gen) | (near_gen ^ near.Gen)) || !word::in_bounds(far_off, bytes, size)) return invalid;
  desc d = {};
  d.Op = op_get, d.Size = bytes, d.DstOff = far_off, d.DstWin = far.ID, d.DstGen = far.Gen, d.SrcWin = near.ID, d.Src = near_off;
  if (!released) word::fence_sys();  // what the threads did there before is over when the network writes
  return post(q, to, d, act, nullptr, l);
}

DOORBELL_DEVICE status context::signal(coop co, team t, int32_t peer, action act) {
  uint32_t s = ok;
  if (word::begins(co)) {
    int32_t q, to;
    if (queue(t, peer, q, to) && valid(act, to)) {
      desc d = {};
      d.Op = op_signal;
      look_t l = look(q);
      s = post(q, to, d, act, nullptr, l);
    } else {
      s = invalid;
    }
  }
  return status(word::ends(co, s));
}

// post takes a ticket and writes the descriptor. The arguments are valid.
DOORBELL_DEVICE uint32_t context::post(int32_t q, int32_t world_rank, desc &d, const action &a, const uint8_t *from, const look_t &l) {
  d.Version = desc_version;
  d.Flags = a.flags;
  if (a.flags & flag_at_address) {
    d.SigID = a.window, d.SigOff = a.at, d.SigGen = a.gen & sig_gen_mask, d.SigVal = a.value;
  } else if (a.signal_plus1 > 0) {
    d.SigID = uint32_t(a.signal_plus1 - 1), d.SigVal = a.value;
  }
  if (a.counter_plus1 > 0) d.Counter = uint32_t(a.counter_plus1 - 1);
  if (l.stuck | l.ended) return l.stuck ? l.stuck : l.ended;
  uint64_t ticket;
  if (a.skip) {
    ticket = reserve_blindly(&dc.Prod[q].Ticket, l.ticket);
  } else if (uint32_t s = reserve(q, world_rank, d, l, ticket)) {
    return s;
  }
  uint64_t phase = ((ticket >> dc.Shift & 1) ^ 1) << 63, at = uint64_t(q) * (dc.Mask + 1) + (ticket & dc.Mask);
  if (d.Op == op_put_cell) {
    uint64_t *cell = dc.Cells + at * cell_words;
    for (uint64_t i = 0; i * cell_word_payload < d.Size; i++) {
      uint64_t off = i * cell_word_payload, n = d.Size - off < cell_word_payload ? d.Size - off : cell_word_payload;
      word::store_phased(cell + i, word::bytes_at(from + off, n) | phase);
    }
  }
  uint64_t w[desc_words];
  encode(d, w, phase);
  uint64_t *slot = dc.Slots + at * desc_words;
#ifdef __CUDACC__
#pragma unroll
#endif
  for (int i = 0; i < desc_words; i++) word::store_phased(slot + i, w[i]);  // no order among them: each has its phase bit
  if (d.Flags & flag_aggregate) return ok;                                  // the next one tells of it
  word::store_sys(dc.Hints + q, uint32_t(ticket + 1));
  word::wake(dc.Asleep);
  return ok;
}

// reserve takes a ticket, never before room for it is seen: a put that times out leaves no hole behind.
DOORBELL_DEVICE uint32_t context::reserve(int32_t q, int32_t world_rank, const desc &d, const look_t &l, uint64_t &ticket) {
  producer *prod = dc.Prod + q;
  uint64_t limit = l.credit;
  ticket = l.ticket;
  while (int64_t(limit - ticket) > 0) {
    if (claim(&prod->Ticket, ticket)) return ok;
    limit = word::relaxed_gpu(&prod->Credit);
    ticket = word::relaxed_gpu(&prod->Ticket);
  }
  waiter w = {};
  w.far = true;
  w.note.Op = op_wait_credit, w.note.Peer = world_rank, w.note.Ctx = uint32_t(id), w.note.Window = d.DstWin, w.note.Offset = d.DstOff;
  for (;;) {
    ticket = word::relaxed_gpu(&prod->Ticket);
    limit = word::acquire_sys(&dc.Index[q].Consumed) + dc.Mask + 1;
    if (int64_t(limit - ticket) > 0) {
      word::store_gpu(&prod->Credit, limit);
      if (claim(&prod->Ticket, ticket)) return ok;
      continue;
    }
    w.note.Wanted = ticket, w.note.Seen = limit;
    if (uint32_t s = step(w, from_peer(world(dc), world_rank))) return s;
  }
}

// claim takes the ticket that was seen last, if no other thread has.
DOORBELL_DEVICE bool context::claim(uint64_t *next, uint64_t ticket) const {
  if (dc.Sharing == share_thread) {
    word::store_gpu(next, ticket + 1);
    return true;
  }
  return dc.Sharing == share_block ? word::cas_block(next, ticket, ticket + 1) : word::cas_gpu(next, ticket, ticket + 1);
}

DOORBELL_DEVICE uint64_t context::reserve_blindly(uint64_t *next, uint64_t ticket) const {
  if (dc.Sharing == share_thread) {
    word::store_gpu(next, ticket + 1);
    return ticket;
  }
  return dc.Sharing == share_block ? word::fetch_add_block(next, 1) : word::fetch_add_gpu(next, 1);
}

}  // namespace doorbell
