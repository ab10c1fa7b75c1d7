// SPDX-License-Identifier: Apache-2.0
//
// The CUDA C++ twin of bench/kernels' WQEs: the same argument, the same WQEs, and what gin does to write them: a look at the queue and
// the window, tickets that are seen to be free, the first word last, a doorbell that one thread rings for all who come meanwhile.
// Left out is what it is not run with: counters, atomics on windows, puts larger than a message, lanes that post to different peers.
//   nvcc -O3 -std=c++17 -arch=sm_90 -ptx bench/gpu/gdaki.cu -o gdaki.ptx
#include "lanes.cuh"
#include "args.cuh"

using namespace doorbell;

namespace {

#ifdef __CUDACC__

DB uint64_t acquire_gpu(const uint64_t *p) {
  uint64_t v;
  asm volatile("ld.acquire.gpu.global.u64 %0, [%1];" : "=l"(v) : "l"(__cvta_generic_to_global(p)) : "memory");
  return v;
}
DB uint64_t add_acq_rel_gpu(uint64_t *p, uint64_t v) {
  uint64_t was;
  asm volatile("atom.acq_rel.gpu.global.add.u64 %0, [%1], %2;" : "=l"(was) : "l"(__cvta_generic_to_global(p)), "l"(v) : "memory");
  return was;
}
DB bool cas_acq_rel_gpu(uint64_t *p, uint64_t old, uint64_t next) {
  uint64_t was;
  asm volatile("atom.acq_rel.gpu.global.cas.b64 %0, [%1], %2, %3;" : "=l"(was) : "l"(__cvta_generic_to_global(p)), "l"(old), "l"(next) : "memory");
  return was == old;
}
DB void fence_gpu() { asm volatile("fence.acq_rel.gpu;" ::: "memory"); }
DB uint32_t swapped(uint32_t v) { return __byte_perm(v, 0, 0x0123); }

#else

inline uint64_t acquire_gpu(const uint64_t *p) { return __atomic_load_n(p, __ATOMIC_ACQUIRE); }
inline uint64_t add_acq_rel_gpu(uint64_t *p, uint64_t v) { return __atomic_fetch_add(p, v, __ATOMIC_ACQ_REL); }
inline bool cas_acq_rel_gpu(uint64_t *p, uint64_t old, uint64_t next) {
  return __atomic_compare_exchange_n(p, &old, next, false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED);
}
inline void fence_gpu() { __atomic_thread_fence(__ATOMIC_ACQ_REL); }
inline uint32_t swapped(uint32_t v) { return __builtin_bswap32(v); }

#endif

constexpr int wqe_words = 8;
constexpr uint32_t op_write = 0x08, op_fetch_add = 0x12, inline_data = 1u << 31;

DB uint64_t be(uint64_t v) { return uint64_t(swapped(uint32_t(v))) << 32 | swapped(uint32_t(v >> 32)); }
DB uint64_t pair(uint32_t first, uint32_t second) { return uint64_t(swapped(second)) << 32 | swapped(first); }

// queue is the queue pair to a peer.
struct queue {
  const wqes_args &a;
  producer &prod;
  uint64_t *slots;
  const qp pair_of;
  const bool alone;  // one thread posts

  DB queue(const wqes_args &a)
      : a(a), prod(a.X.DC.Prod[a.X.Peer]), slots(a.X.DC.Slots + uint64_t(uint32_t(a.X.Peer)) * (a.X.DC.Mask + 1) * wqe_words),
        pair_of(a.X.DC.QPs[a.X.Peer]), alone(a.X.DC.Sharing == share_thread) {}

  DB uint64_t *slot(uint64_t index) const { return slots + (index & a.X.DC.Mask) * wqe_words; }

  // claim takes n tickets from the one that was seen last on.
  DB bool claim(uint64_t ticket, uint64_t n) const {
    if (alone) {
      word::store_gpu(&prod.Ticket, ticket + n);
      return true;
    }
    return a.X.DC.Sharing == share_block ? word::cas_block(&prod.Ticket, ticket, ticket + n) : word::cas_gpu(&prod.Ticket, ticket, ticket + n);
  }

  // reserve takes n tickets from ticket on, or from what that is by then: no room for them is no ticket.
  DB bool reserve(uint64_t &ticket, uint64_t limit, uint64_t n) const {
    for (; int64_t(limit - ticket) >= int64_t(n); limit = word::relaxed_gpu(&prod.Credit), ticket = word::relaxed_gpu(&prod.Ticket))
      if (claim(ticket, n)) return true;
    return false;
  }

  DB void write(uint64_t index, const uint64_t (&b)[wqe_words]) const {
    uint64_t *p = slot(index);
    UNROLL for (int i = 1; i < wqe_words; i++) word::store_phased(p + i, b[i]);
    if (!alone) fence_gpu();  // else the doorbell's release is enough
    word::store_phased(p, b[0]);
  }

  // ring tells the NIC of all below end, the last of which begins with the word last.
  DB void ring(uint64_t end, uint64_t last) const {
    word::release_sys(pair_of.Record, swapped(uint32_t(end & 0xffff)));
    word::release_sys(pair_of.Bell, last);
    word::store_gpu(&prod.Rung, end);
    word::store_gpu(&prod.Bells, word::relaxed_gpu(&prod.Bells) + 1);
    if (!word::on_gpu && word::relaxed_sys(a.X.DC.Asleep)) word::wake(a.X.DC.Asleep);
  }

  static DB bool written(uint64_t first, uint64_t index) { return first != 0 && uint16_t(be(first) >> 40) == uint16_t(index); }

  // push sees to it that the NIC is told of all that is written. Who posts alone knows that: it is what ends below end.
  DB void push(uint64_t end, uint64_t last) const {
    if (alone) return ring(end, last);
    if (add_acq_rel_gpu(&prod.Pending, 1) != 0) return;
    for (;;) {
      uint64_t seen = acquire_gpu(&prod.Pending), rung = word::relaxed_gpu(&prod.Rung);
      end = rung;
      for (uint64_t first; written(first = word::acquire_sys(slot(end)), end); end++) last = first;
      if (end != rung) ring(end, last);
      if (cas_acq_rel_gpu(&prod.Pending, seen, 0)) return;
    }
  }
};

DB const uint32_t *key_of(const window &w, int32_t ranks, int32_t rank) { return reinterpret_cast<const uint32_t *>(word::peer_of(w.Info, ranks)) + rank; }

DB uint64_t shfl64(uint64_t v, uint32_t from) { return uint64_t(shfl(uint32_t(v >> 32), from)) << 32 | shfl(uint32_t(v), from); }

// write_one writes the WQEs of a put, and tells nobody: they are below end, and the last begins with the word last. TOGETHER: each lane of
// the warp does so, and the first takes the tickets of all.
template <bool TOGETHER>
DB uint32_t write_one(const queue &q, uint64_t at, uint64_t value, uint64_t &end, uint64_t &last) {
  const wqes_args &a = q.a;
  const dev_comm &dc = a.X.DC;
  const window &dst = a.X.Recv, &src = a.X.Send;
  int32_t peer = a.X.Peer;
  uint64_t bytes = a.Value ? 8 : a.X.Bytes, size = word::size_of(dst.Info, peer);
  uint32_t stuck = word::relaxed_sys(dc.Status + peer), ended = word::relaxed_sys(&dc.Control->Ended);
  uint64_t limit = word::relaxed_gpu(&q.prod.Credit), ticket = word::relaxed_gpu(&q.prod.Ticket);
  uint32_t stale = word::generation(dst.Info) ^ dst.Gen;
  if (!a.Value) stale |= word::generation(src.Info) ^ src.Gen;
  uint32_t s = ok;
  if (stale || !word::in_bounds(at, bytes, size) || !word::in_bounds(at, bytes, src.Size) || bytes == 0 || bytes > dc.MaxMessage)
    s = invalid;
  else if (stuck | ended)
    s = stuck ? stuck : ended;
  uint64_t n = a.Signal ? 2 : 1;
  if (TOGETHER) {
    uint32_t posting = vote(s == ok), first = first_bit(posting), before = bits(posting & ((1u << lane()) - 1));
    bool got = s == ok && lane() == first && q.reserve(ticket, limit, n * bits(posting));
    got = shfl(got, first), ticket = shfl64(ticket, first) + n * before;
    if (s == ok && !got) s = timeout;
  } else if (s == ok && !q.reserve(ticket, limit, n)) {
    s = timeout;  // there is room for all that it is run with
  }
  if (s != ok) return end = last = 0, s;
  uint32_t number = q.pair_of.Number, far_key = *key_of(dst, dc.Ranks, peer);
  uint64_t b[wqe_words] = {pair(uint32_t(ticket & 0xffff) << 8 | op_write, number << 8 | 3), be(0x08ull << 32), be(at), pair(far_key, 0), 0, 0, 0, 0};
  if (a.Value) {
    b[4] = uint64_t(swapped(8 | inline_data)) | value << 32, b[5] = value >> 32;
  } else {
    b[4] = pair(uint32_t(bytes), *key_of(src, dc.Ranks, dc.Rank)), b[5] = be(at);
  }
  q.write(ticket, b);
  end = ticket + n, last = b[0];
  if (!a.Signal) return ok;
  b[0] = pair(uint32_t((ticket + 1) & 0xffff) << 8 | op_fetch_add, number << 8 | 4);
  b[2] = 0, b[3] = pair(dc.SignalKeys[peer], 0), b[4] = be(1), b[5] = 0, b[6] = pair(8, dc.HomeKey), b[7] = 0;
  q.write(ticket + 1, b);
  last = b[0];
  return ok;
}

// write_all writes those of all puts of a thread, whose bytes begin at offset at. TOGETHER: all lanes of its warp do so.
template <bool TOGETHER>
DB void write_all(const wqes_args &a, uint64_t at) {
  queue q(a);
  uint32_t status = ok;
  for (uint64_t i = 0; i < a.X.Iters; i++) {
    uint64_t end, last;
    uint32_t s = write_one<TOGETHER>(q, at, i, end, last);
    bool rings = s == ok;
    if (TOGETHER) {
      uint32_t posted = vote(rings);
      sync_warp();  // what the others wrote is visible to the one that rings
      rings = posted && lane() == first_bit(posted);
    }
    if (rings) q.push(end, last);
    if (s != ok) status = s;
  }
  if (status != ok) a.X.Result->Status = status;
}

}  // namespace

KERNEL(WQEs, wqes_args, 1) {
  if (a.Lanes)
    write_all<true>(a, a.X.Bytes * lane());
  else if (thread() == 0)
    write_all<false>(a, 0);
}
