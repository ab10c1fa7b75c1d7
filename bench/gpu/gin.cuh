// SPDX-License-Identifier: Apache-2.0
//
// The device calls of package gin that bench/kernels uses, in CUDA C++: the same steps and the same ordered instructions,
// so that what differs between a kernel here and its Go twin is the compiler. For measuring, not for users.
#pragma once
#include "../../include/doorbell/abi.cuh"
#include "../../include/doorbell/desc.h"

namespace doorbell {

#define DB __device__ __forceinline__

// Ordered accesses, as PTX names them: order, scope, type.
#define DB_LOAD(name, op, T, t, c)                                                    \
  DB T name(const T *p) {                                                             \
    T v;                                                                              \
    asm volatile(op "." t " %0, [%1];" : "=" c(v) : "l"(__cvta_generic_to_global(p)) : "memory"); \
    return v;                                                                         \
  }
#define DB_STORE(name, op, T, t, c)                                                   \
  DB void name(T *p, T v) { asm volatile(op "." t " [%0], %1;" ::"l"(__cvta_generic_to_global(p)), c(v) : "memory"); }
DB_LOAD(relaxed_sys, "ld.relaxed.sys.global", uint32_t, "u32", "r")
DB_LOAD(relaxed_sys, "ld.relaxed.sys.global", uint64_t, "u64", "l")
DB_LOAD(relaxed_gpu, "ld.relaxed.gpu.global", uint64_t, "u64", "l")
DB_LOAD(early, "ld.relaxed.cta.global", uint64_t, "u64", "l")
DB_LOAD(acquire_sys, "ld.acquire.sys.global", uint64_t, "u64", "l")
DB_STORE(store_sys, "st.relaxed.sys.global", uint32_t, "u32", "r")
DB_STORE(store_sys, "st.relaxed.sys.global", uint64_t, "u64", "l")
DB_STORE(store_gpu, "st.relaxed.gpu.global", uint64_t, "u64", "l")
DB_STORE(publish_sys, "st.release.sys.global", uint32_t, "u32", "r")
DB_STORE(add_release_sys, "red.release.sys.global.add", uint64_t, "u64", "l")

DB bool cas_gpu(uint64_t *p, uint64_t old, uint64_t next) {
  uint64_t was;
  asm volatile("atom.relaxed.gpu.global.cas.b64 %0, [%1], %2, %3;" : "=l"(was) : "l"(__cvta_generic_to_global(p)), "l"(old), "l"(next) : "memory");
  return was == old;
}
DB bool cas_gpu(uint32_t *p, uint32_t old, uint32_t next) {
  uint32_t was;
  asm volatile("atom.relaxed.gpu.global.cas.b32 %0, [%1], %2, %3;" : "=r"(was) : "l"(__cvta_generic_to_global(p)), "r"(old), "r"(next) : "memory");
  return was == old;
}
DB uint64_t now_ns() {
  uint64_t t;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t)::"memory");
  return t;
}

enum coop : int { by_thread, by_warp, by_block };

DB bool begins(coop co) {
  if (co == by_thread) return true;
  if (co == by_warp) {
    __syncwarp();
    return threadIdx.x % 32 == 0;
  }
  __syncthreads();
  return threadIdx.x == 0;
}
DB uint32_t ends(coop co, uint32_t s) {
  if (co == by_thread) return s;
  if (co == by_warp) {
    s = __shfl_sync(~0u, s, 0);
    __syncwarp();
    return s;
  }
  __shared__ uint32_t shared;
  if (threadIdx.x == 0) shared = s;
  __syncthreads();
  return shared;
}

struct action {
  uint64_t value;
  int32_t signal;  // id + 1
  bool add;
};
DB action none() { return {0, 0, false}; }
DB action signal_inc(int32_t id) { return {1, id + 1, false}; }
DB action signal_add(int32_t id, uint64_t v) { return {v, id + 1, true}; }

// source is the ranks of the world [from, to) that a wait waits for.
struct source {
  int32_t from, to;
};

DB bool in_bounds(uint64_t off, uint64_t n, uint64_t size) { return n <= size && off <= size - n; }
DB bool rolling_le(uint64_t a, uint64_t b) { return int64_t(b - a) >= 0; }
DB window_peer *peer_of(const window &w, int32_t world) { return reinterpret_cast<window_peer *>(w.Info + 1) + world; }
DB uint32_t generation(const window &w) { return relaxed_sys(&w.Info->Gen); }

DB void copy_lanes(uint8_t *dst, const uint8_t *src, uint64_t bytes, uint64_t lane, uint64_t lanes) {
  uint64_t done = 0;
  if (((uint64_t(dst) | uint64_t(src)) & 15) == 0) {
    for (uint64_t i = lane; i < bytes / 16; i += lanes) reinterpret_cast<uint4 *>(dst)[i] = reinterpret_cast<const uint4 *>(src)[i];
    done = bytes / 16 * 16;
  }
  for (uint64_t i = done + lane; i < bytes; i += lanes) dst[i] = src[i];
}

DB uint64_t load_bytes(const uint8_t *p, uint64_t n) {
  if (n == 8 && (uint64_t(p) & 7) == 0) return early(reinterpret_cast<const uint64_t *>(p));
  if (n == 0) return 0;
  uint64_t off = uint64_t(p) & 7;
  const uint64_t *words = reinterpret_cast<const uint64_t *>(p - off);
  uint64_t v = early(words) >> 8 * off;
  if (off + n > 8) v |= early(words + 1) << (64 - 8 * off);
  return v & ~0ull >> (64 - 8 * n);
}

DB void leave(uint32_t *claim, record *r, const record &note, uint32_t s) {
  if (!cas_gpu(claim, 0, 1)) return;
  record copy = note;
  copy.Status = s;
  copy.State = 0;
  *r = copy;
  publish_sys(&r->State, 2);
}

struct waiter {
  uint64_t start;
  uint32_t polls;
  bool noted;
  record note;
};

// context is one context of a world without rails.
struct context {
  const dev_comm &dc;
  uint64_t limit;  // ns
  bool released = false, by_lsa = false;
  int32_t far_word = 0, near = 0;
  uint64_t *near_lsa = nullptr;
  uint64_t far = 0;

  DB context(const dev_comm &dc) : dc(dc), limit(dc.Timeout) {}
  DB bool alive() const { return dc.Version == dev_comm_version && dc.Contexts > 0; }

  DB uint32_t trouble(source src, record &note) {
    if (uint32_t e = relaxed_sys(&dc.Control->Ended)) return e;
    for (int32_t p = src.from; p < src.to; p++) {
      if (p < 0 || p >= dc.Ranks) continue;
      if (relaxed_sys(dc.Lost + p)) {
        note.Peer = p;
        return peer_lost;
      }
      if (uint32_t s = relaxed_sys(dc.Status + p)) {
        note.Peer = p;
        return s;
      }
    }
    return ok;
  }

  // pause is called now and then by a wait: it looks for reasons to end it. ok: look again.
  DB uint32_t pause(waiter &w, source src) {
    uint64_t now = now_ns();
    if (w.start == 0) w.start = now;
    uint64_t waited = now - w.start;
    if (uint32_t s = trouble(src, w.note)) {
      w.note.Since = waited;
      leave(&dc.Control->Cause, &dc.Notes->Cause, w.note, s);
      return s;
    }
    uint32_t s = waited >= limit ? timeout : ok;
    if ((waited >= 10000000000ull || (s != ok && limit >= dc.Timeout)) && !w.noted) {
      w.noted = true;
      w.note.Since = waited;
      leave(&dc.Control->Waiter, &dc.Notes->Waiter, w.note, s);
    }
    if (s == ok) __nanosleep(20);
    return s;
  }
  DB uint32_t step(waiter &w, source src) { return ++w.polls % dc.Looks ? uint32_t(ok) : pause(w, src); }

  DB bool claim(uint64_t *next, uint64_t ticket) {
    if (dc.Sharing == share_thread) {
      store_gpu(next, ticket + 1);
      return true;
    }
    return cas_gpu(next, ticket, ticket + 1);
  }

  struct look {
    uint32_t stuck, ended;
    uint64_t credit, ticket;
  };
  DB look looks(int32_t q) {
    return {relaxed_sys(dc.Status + q), relaxed_sys(&dc.Control->Ended), relaxed_gpu(&dc.Prod[q].Credit), relaxed_gpu(&dc.Prod[q].Ticket)};
  }

  DB uint32_t reserve(int32_t q, const desc &d, const look &l, uint64_t &ticket) {
    producer *prod = dc.Prod + q;
    uint64_t limit = l.credit;
    ticket = l.ticket;
    while (int64_t(limit - ticket) > 0) {
      if (claim(&prod->Ticket, ticket)) return ok;
      limit = relaxed_gpu(&prod->Credit);
      ticket = relaxed_gpu(&prod->Ticket);
    }
    waiter w = {};
    w.note.Op = wait_credit;
    w.note.Peer = q;
    w.note.Window = d.DstWin;
    w.note.Offset = d.DstOff;
    for (;;) {
      ticket = relaxed_gpu(&prod->Ticket);
      limit = acquire_sys(&dc.Index[q].Consumed) + dc.Mask + 1;
      if (int64_t(limit - ticket) > 0) {
        store_gpu(&prod->Credit, limit);
        if (claim(&prod->Ticket, ticket)) return ok;
        continue;
      }
      w.note.Wanted = ticket;
      w.note.Seen = limit;
      if (uint32_t s = step(w, {q, q + 1})) return s;
    }
  }

  DB uint32_t post(int32_t q, desc &d, action act, const uint8_t *from, const look &l) {
    d.Version = desc_version;
    if (act.signal > 0) {
      d.Flags |= flag_strong | (act.add ? flag_signal_add : flag_signal_inc);
      d.SigID = uint32_t(act.signal - 1);
      d.SigVal = act.value;
    }
    if (l.stuck | l.ended) return l.stuck ? l.stuck : l.ended;
    uint64_t ticket;
    if (uint32_t s = reserve(q, d, l, ticket)) return s;
    uint64_t slot = ticket & dc.Mask, phase = ((ticket >> dc.Shift & 1) ^ 1) << 63, at = uint64_t(q) * (dc.Mask + 1) + slot;
    if (d.Op == op_put_cell) {
      uint64_t *cell = dc.Cells + at * cell_words;
      for (uint64_t i = 0; i * cell_word_payload < d.Size; i++) {
        uint64_t off = i * cell_word_payload, n = d.Size - off < cell_word_payload ? d.Size - off : cell_word_payload;
        store_sys(cell + i, load_bytes(from + off, n) | phase);
      }
    }
    uint64_t w[desc_words];
    encode(d, w, phase);
    uint64_t *p = dc.Slots + at * desc_words;
#pragma unroll
    for (int i = 0; i < desc_words; i++) store_sys(p + i, w[i]);
    store_sys(dc.Hints + q, uint32_t(ticket + 1));
    return ok;
  }

  DB uint32_t put(coop co, int32_t peer, const window &dst, uint64_t dst_off, const window &src, uint64_t src_off, uint64_t bytes, action act) {
    if (!begins(co)) return ends(co, ok);
    if (!alive() || peer < 0 || peer >= dc.Ranks || dc.Railed || act.signal < 0 || act.signal > dc.Signals || !dst.Info || !src.Info ||
        !in_bounds(src_off, bytes, src.Size))
      return ends(co, invalid);
    uint64_t size = early(&peer_of(dst, peer)->Size);
    desc d = {};
    d.Op = op_put, d.Size = bytes, d.DstOff = dst_off, d.DstWin = dst.ID, d.DstGen = dst.Gen, d.SrcWin = src.ID, d.Src = src_off;
    const uint8_t *from = src.Base + src_off;
    bool small = bytes <= dc.CellPayload && src.Far == 0;
    if (small && bytes <= 8) d.Op = op_put_value, d.Src = load_bytes(from, bytes), d.SrcWin = 0;
    look l = looks(peer);
    uint32_t dst_gen = generation(dst), src_gen = generation(src);
    if (dst.Gen == 0 || src.Gen == 0 || (dst_gen ^ dst.Gen) | (src_gen ^ src.Gen) || !in_bounds(dst_off, bytes, size)) return ends(co, invalid);
    if (small) {
      if (bytes > 8) d.Op = op_put_cell, d.Src = 0, d.SrcWin = 0;
    } else if (!released) {
      __threadfence_system();
    }
    return ends(co, post(peer, d, act, from, l));
  }

  DB uint32_t put_value(int32_t peer, const window &dst, uint64_t dst_off, uint64_t value, uint64_t bytes, action act) {
    if (!alive() || peer < 0 || peer >= dc.Ranks || bytes < 1 || bytes > 8 || act.signal > dc.Signals || !dst.Info) return invalid;
    uint64_t size = early(&peer_of(dst, peer)->Size);
    look l = looks(peer);
    if (dst.Gen == 0 || generation(dst) != dst.Gen || !in_bounds(dst_off, bytes, size)) return invalid;
    desc d = {};
    d.Op = op_put_value, d.Size = bytes, d.DstOff = dst_off, d.DstWin = dst.ID, d.DstGen = dst.Gen, d.Src = value;
    return post(peer, d, act, nullptr, l);
  }

  DB uint32_t signal(int32_t peer, action act) {
    if (!alive() || peer < 0 || peer >= dc.Ranks || act.signal > dc.Signals) return invalid;
    desc d = {};
    d.Op = op_signal;
    look l = looks(peer);
    return post(peer, d, act, nullptr, l);
  }

  DB uint32_t lsa_put(coop co, int32_t peer, const window &dst, uint64_t dst_off, const uint8_t *src, uint64_t bytes) {
    if (!alive() || peer < 0 || peer >= dc.LSASize || !dst.Info || dst.Gen == 0) return invalid;
    bool whole = co == by_thread && bytes == 8 && ((uint64_t(src) | dst_off) & 7) == 0;
    uint64_t word = whole ? early(reinterpret_cast<const uint64_t *>(src)) : 0;
    window_peer *at = peer_of(dst, dst.LSA0 + peer);
    uint32_t gen = generation(dst);
    uint64_t size = early(&at->Size);
    uint8_t *to = reinterpret_cast<uint8_t *>(early(reinterpret_cast<const uint64_t *>(&at->Base))) + dst_off;
    if (gen != dst.Gen || !in_bounds(dst_off, bytes, size) || dc.Inject) return invalid;
    if (whole && (uint64_t(to) & 7) == 0) {
      *reinterpret_cast<uint64_t *>(to) = word;
      return ok;
    }
    if (co == by_thread) copy_lanes(to, src, bytes, 0, 1);
    if (co == by_warp) copy_lanes(to, src, bytes, threadIdx.x % 32, 32);
    if (co == by_block) copy_lanes(to, src, bytes, threadIdx.x, blockDim.x);
    return ok;
  }

  DB uint32_t lsa_signal(coop co, int32_t peer, int32_t id, uint64_t v) {
    uint32_t s = ok;
    if (begins(co)) {
      if (!alive() || peer < 0 || peer >= dc.LSASize || id < 0 || id >= dc.Signals) {
        s = invalid;
      } else {
        if (near != peer + 1) near = peer + 1, near_lsa = dc.PeerLSA[peer];
        add_release_sys(near_lsa + id, v);
      }
    }
    return ends(co, s);
  }

  DB uint64_t read_signal(int32_t id) {
    if (!alive() || id < 0 || id >= dc.Signals) return 0;
    return acquire_sys(dc.Net + id) + acquire_sys(dc.LSA + id) - dc.SigOffset[id];
  }

  DB uint32_t wait_signal(coop co, int32_t id, uint64_t least, source src) {
    uint32_t s = ok;
    if (begins(co)) s = !alive() || id < 0 || id >= dc.Signals ? uint32_t(invalid) : wait_word(id, least, src);
    return ends(co, s);
  }

  DB uint32_t wait_word(int32_t i, uint64_t least, source src) {
    const uint64_t *net = dc.Net + i, *lsa = dc.LSA + i;
    uint64_t want = least + dc.SigOffset[i];
    if (by_lsa && far_word == i) {
#pragma unroll 1
      for (int n = 0; n < 64; n++)
        if (rolling_le(want, far + acquire_sys(lsa))) return ok;
    }
    uint64_t before = relaxed_sys(lsa);
#pragma unroll 1
    for (uint32_t n = 0; n < dc.Looks; n++) {
      uint64_t close = relaxed_sys(lsa);
      far = acquire_sys(net), far_word = i;
      if (!rolling_le(want, far + close)) continue;
      by_lsa = close != before;
      if (by_lsa) acquire_sys(lsa);
      return ok;
    }
    waiter w = {};
    w.note.Op = doorbell::wait_signal;
    w.note.Peer = src.to - src.from == 1 ? src.from : -1;
    w.note.ID = i;
    w.note.Wanted = least;
    uint32_t s = pause(w, src);
    before = acquire_sys(lsa);
    for (;;) {
      uint64_t close = acquire_sys(lsa), seen = acquire_sys(net) + close - dc.SigOffset[i];
      if (rolling_le(least, seen)) {
        by_lsa = close != before;
        return ok;
      }
      if (s) return s;
      w.note.Seen = seen;
      if (++w.polls % dc.Looks == 0) s = pause(w, src);
    }
  }

  DB uint32_t flush(coop co) {
    uint32_t s = ok;
    if (begins(co)) {
      for (int32_t q = 0; q < dc.Peers; q++) {
        uint64_t want = relaxed_gpu(&dc.Prod[q].Ticket);
        waiter w = {};
        w.note.Op = wait_flush;
        w.note.Peer = q;
        w.note.Wanted = want;
        uint32_t r = ok;
        for (;;) {
          uint64_t seen = acquire_sys(&dc.Index[q].Completed);
          if (int64_t(seen - want) >= 0) break;
          if (r) {
            if (!s) s = r;
            break;
          }
          w.note.Seen = seen;
          r = step(w, {q, q + 1});
        }
      }
    }
    return ends(co, s);
  }
};

}  // namespace doorbell
