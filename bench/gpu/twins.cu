// SPDX-License-Identifier: Apache-2.0
//
// CUDA C++ twins of kernels in bench/kernels: same entries, same argument, same steps, same ordered instructions.
//   nvcc -O3 -arch=sm_90 -ptx bench/gpu/twins.cu -o twins.ptx && doorbell bench pingpong --device cuda --local --ptx twins.ptx
// runs them in place of the built-in ones, by the same launch path, verified by the same host code.
#include "../../include/doorbell/gin.cuh"
#include "args.cuh"

using namespace doorbell;
using word::clock_ns;

#define DB DOORBELL_DEVICE

DB uint32_t clamp_ns(uint64_t v) { return v < 0xffffffffu ? uint32_t(v) : 0xffffffffu; }

DB uint64_t pattern(uint64_t seed, int32_t source, uint64_t iter, uint64_t word) {
  uint64_t x = seed + uint64_t(int64_t(source)) * 0x9e3779b97f4a7c15ull + iter * 0xd1342543de82ef95ull + word * 0xa0761d6478bd642full;
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ x >> 27) * 0x94d049bb133111ebull;
  return x ^ x >> 31;
}

DB uint32_t fails(result *r, uint32_t s, uint64_t at) {
  if (s != ok) r->Status = s, r->At = at;
  return s;
}

DB uint32_t send(const exchange &a, context &c) {
  if (a.LSA == 0) return c.put(by_thread, world(a.DC), a.Peer, a.Recv, a.RecvOff, a.Send, a.SendOff, a.Bytes, strong_inc(0));
  int32_t peer = lsa_rank(a.DC, a.Peer);
  if (uint32_t s = c.lsa_put(by_thread, peer, a.Recv, a.RecvOff, a.Send.Base + a.SendOff, a.Bytes)) return s;
  return c.lsa_signal(by_thread, peer, 0, 1);
}

extern "C" __global__ void __launch_bounds__(32, 1) PingPong(const __grid_constant__ exchange a) {
  if (threadIdx.x) return;
  result *r = a.Result;
  context c(a.DC, 0);
  c.released = true;
  bool turn = a.DC.Rank < a.Peer;
  uint64_t start = clock_ns(), last = start, left = a.Every, sample = 0;
#pragma unroll 1
  for (uint64_t k = 0; k < 2 * a.Iters; k++) {
    uint32_t s = turn ? send(a, c) : c.wait_signal(by_thread, 0, a.Base + k / 2 + 1, from_peer(world(a.DC), a.Peer));
    if (fails(r, s, k / 2)) return;
    turn = !turn;
    if ((k & 1) == 0) continue;
    if (--left == 0 && a.Samples) {
      uint64_t now = clock_ns();
      a.Samples[sample++] = clamp_ns((now - last) / a.Every);
      last = now, left = a.Every;
    }
  }
  r->Ns = clock_ns() - start;
  r->Count = a.Iters;
  r->Status = c.flush(by_thread);
  r->Done = 1;
}

extern "C" __global__ void __launch_bounds__(32, 1) Post(const __grid_constant__ post_args a) {
  if (threadIdx.x) return;
  result *r = a.X.Result;
  context c(a.X.DC, 0);
  c.released = true;
  if (a.X.DC.Rank > a.X.Peer) {
    r->Status = c.wait_signal(by_thread, 0, a.X.Base, from_peer(world(a.X.DC), a.X.Peer));
    r->Done = 1;
    return;
  }
  action act = a.Signal ? strong_inc(0) : none();
  uint64_t off = 0, start = clock_ns();
  for (uint64_t i = 0; i < a.X.Iters; i++) {
    if (fails(r, c.put(by_thread, world(a.X.DC), a.X.Peer, a.X.Recv, off, a.X.Send, off, a.X.Bytes, act), i)) return;
    if ((off += a.Step) >= a.Span) off = 0;
  }
  r->Ns = clock_ns() - start;
  r->Count = a.X.Iters;
  uint32_t s = a.Signal ? uint32_t(ok) : c.signal(by_thread, world(a.X.DC), a.X.Peer, strong_inc(0));
  if (s == ok) s = c.flush(by_thread);
  r->Status = s;
  r->Done = 1;
}

extern "C" __global__ void __launch_bounds__(512, 1) AllToAll(const __grid_constant__ all_to_all_args a) {
  result *r = a.X.Result;
  context c(a.X.DC, 0);
  int32_t ranks = a.X.DC.Ranks, me = a.X.DC.Rank, warp = threadIdx.x / 32, warps = blockDim.x / 32;
  uint64_t start = clock_ns(), last = start;
  for (uint64_t i = 0; i < a.X.Iters; i++) {
    uint32_t s = ok;
    for (int32_t k = warp; k < ranks; k += warps) {
      int32_t p = (me + k) % ranks, peer = lsa_rank(a.X.DC, p);
      uint64_t from = uint64_t(p) * a.Step, to = uint64_t(me) * a.Step;
      uint32_t q;
      if (a.X.LSA == 0 || peer < 0) {
        q = c.put(by_warp, world(a.X.DC), p, a.X.Recv, to, a.X.Send, from, a.X.Bytes, strong_inc(me));
      } else {
        q = c.lsa_put(by_warp, peer, a.X.Recv, to, a.X.Send.Base + from, a.X.Bytes);
        if (q == ok) q = c.lsa_signal(by_warp, peer, me, 1);
      }
      if (q != ok && s == ok) s = q;
    }
    for (int32_t k = warp; k < ranks; k += warps) {
      int32_t p = (me + ranks - k) % ranks;
      uint32_t q = c.wait_signal(by_warp, p, a.X.Base + i + 1, from_peer(world(a.X.DC), p));
      if (q != ok && s == ok) s = q;
    }
    fails(r, s, i);
    __syncthreads();
    if (*(volatile uint32_t *)&r->Status != ok) return;
    if (threadIdx.x == 0 && a.X.Samples) {
      uint64_t now = clock_ns();
      a.X.Samples[i] = clamp_ns(now - last);
      last = now;
    }
    __syncthreads();
  }
  uint64_t ns = clock_ns() - start;
  uint32_t s = c.flush(by_block);
  if (threadIdx.x == 0) r->Ns = ns, r->Count = a.X.Iters, r->Status = s, r->Done = 1;
}

constexpr uint64_t rate_slots = 8192, rate_group = 64, rate_ack = 1024;

DB void rate_send(const rate_args &a, context &c, result *r) {
  source from = from_peer(world(a.X.DC), a.X.Peer);
  uint64_t start = clock_ns(), n = 0;
  while (n < a.X.Iters || clock_ns() - start < a.Ns) {
    if (n >= rate_slots && fails(r, c.wait_signal(by_thread, 1, (n - rate_slots) / rate_ack + 1, from), n)) return;
#pragma unroll 1
    for (uint64_t k = 0; k < rate_ack; k++) {
      uint64_t slot = n % rate_slots * 8;
      *reinterpret_cast<uint64_t *>(a.X.Send.Base + slot) = pattern(a.Seed, a.X.DC.Rank, a.Iter, n);
      n++;
      action act = n % rate_group == 0 ? strong_add(0, rate_group) : none();
      if (fails(r, c.put(by_thread, world(a.X.DC), a.X.Peer, a.X.Recv, slot, a.X.Send, slot, 8, act), n)) return;
    }
  }
  uint32_t s = c.put_value(by_thread, world(a.X.DC), a.X.Peer, a.X.Recv, rate_slots * 8, n, 8, strong_inc(2));
  if (s == ok) s = c.wait_signal(by_thread, 1, n / rate_ack, from);
  r->At = n, r->Count = n, r->Ns = clock_ns() - start;
  if (s == ok) s = c.flush(by_thread);
  r->Status = s, r->Done = 1;
}

DB void rate_receive(const rate_args &a, context &c, result *r) {
  source from = from_peer(world(a.X.DC), a.X.Peer);
  uint64_t total = ~0ull, n = 0, wrong = 0, start = 0;
  while (n < total) {
    while (c.read_signal(0) - n < rate_group && total == ~0ull) {
      if (c.read_signal(2) != 0) {
        total = *reinterpret_cast<uint64_t *>(a.X.Recv.Base + rate_slots * 8);
        break;
      }
      c.timeout_ns = 20000;
      uint32_t s = c.wait_signal(by_thread, 0, n + rate_group, from);
      c.timeout_ns = a.X.DC.Timeout;
      if (s == timeout && (start == 0 || clock_ns() - start < a.Ns + a.X.DC.Timeout)) continue;
      if (fails(r, s, n)) return;
    }
    if (n >= total) break;
    if (c.read_signal(0) - n < rate_group || n + rate_group > total) {
      r->Status = ok, r->At = n, r->Wrong = wrong + 1;
      return;
    }
    if (start == 0) start = clock_ns();
#pragma unroll 1
    for (uint64_t k = 0; k < rate_group; k++, n++)
      wrong += *reinterpret_cast<uint64_t *>(a.X.Recv.Base + n % rate_slots * 8) != pattern(a.Seed, a.X.Peer, a.Iter, n);
    if (n % rate_ack == 0 && fails(r, c.signal(by_thread, world(a.X.DC), a.X.Peer, strong_inc(1)), n)) return;
  }
  r->Ns = clock_ns() - start, r->Count = n, r->Wrong = wrong, r->Done = 1;
}

extern "C" __global__ void __launch_bounds__(32, 1) Rate(const __grid_constant__ rate_args a) {
  if (threadIdx.x) return;
  context c(a.X.DC, 0);
  if (a.X.DC.Rank < a.X.Peer)
    rate_send(a, c, a.X.Result);
  else
    rate_receive(a, c, a.X.Result);
}
