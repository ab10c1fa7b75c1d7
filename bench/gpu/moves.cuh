// SPDX-License-Identifier: Apache-2.0
//
// Copies with nothing of ours: by stores, and by bulk copies (TMA) through shared memory.
#pragma once
#include <cuda_runtime.h>

#include <cstdint>

// stores is 16 bytes a thread of the block, eight loads on their way. Both addresses are multiples of 16.
__device__ __forceinline__ void stores(uint8_t *dst, const uint8_t *src, uint64_t bytes) {
  uint4 *to = reinterpret_cast<uint4 *>(dst);
  const uint4 *from = reinterpret_cast<const uint4 *>(src);
  uint64_t n = bytes / 16, i = threadIdx.x, all = blockDim.x;
  for (; i + 7 * all < n; i += 8 * all) {
    uint4 v[8];
#pragma unroll
    for (int k = 0; k < 8; k++) v[k] = from[i + k * all];
#pragma unroll
    for (int k = 0; k < 8; k++) to[i + k * all] = v[k];
  }
  for (; i < n; i += all) to[i] = from[i];
  for (uint64_t b = n * 16 + threadIdx.x; b < bytes; b += all) dst[b] = src[b];
}

// share is a block's part of bytes, of whole pages.
struct share {
  uint64_t from, bytes;
  __device__ __forceinline__ explicit share(uint64_t all) {
    uint64_t each = ((all + gridDim.x - 1) / gridDim.x + 4095) & ~uint64_t(4095);
    from = min(uint64_t(blockIdx.x) * each, all);
    bytes = min(each, all - from);
  }
};

constexpr int stages = 5, stage_bytes = 9216;

// pieces is a copy by one thread of each block, which take pieces of stage_bytes in turn.
struct pieces {
  uint8_t *dst;
  const uint8_t *src;
  uint64_t bytes, timeout_ns;  // a multiple of 16; of each wait
};

struct room {
  uint8_t bytes[stages][stage_bytes];
  uint64_t full[stages];
};

__device__ __forceinline__ uint32_t in_shared(const void *p) { return uint32_t(__cvta_generic_to_shared(p)); }

__device__ __forceinline__ uint32_t piece(const pieces &p, uint64_t off) { return uint32_t(min(p.bytes - off, uint64_t(stage_bytes))); }

// fetch brings the piece at off, if there is one.
__device__ __forceinline__ void fetch(const pieces &p, room &r, int stage, uint64_t off) {
  if (off >= p.bytes) return;
  uint32_t n = piece(p, off), full = in_shared(&r.full[stage]);
  asm volatile("{ .reg .b64 s; mbarrier.arrive.expect_tx.release.cta.shared::cta.b64 s, [%0], %1; }" ::"r"(full), "r"(n) : "memory");
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(in_shared(r.bytes[stage])),
               "l"(__cvta_generic_to_global(p.src + off)), "r"(n), "r"(full)
               : "memory");
}

__device__ __forceinline__ bool try_wait(const uint64_t *b, uint32_t parity) {
  uint32_t done;
  asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
               : "=r"(done) : "r"(in_shared(b)), "r"(parity) : "memory");
  return done;
}

__device__ __forceinline__ uint64_t global_ns() {
  uint64_t t;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t)::"memory");
  return t;
}

// filled waits for the piece of a stage.
__device__ __forceinline__ bool filled(const pieces &p, const uint64_t *b, uint32_t parity) {
  if (try_wait(b, parity)) return true;
  for (uint64_t start = global_ns(); global_ns() - start < p.timeout_ns;)
    if (try_wait(b, parity)) return true;
  return false;
}

// bulk says whether all of it was copied: no wait ended at its limit.
__device__ __forceinline__ bool bulk(const pieces &p, room &r) {
  for (int s = 0; s < stages; s++)
    asm volatile("mbarrier.init.shared.b64 [%0], 1; fence.proxy.async.shared::cta;" ::"r"(in_shared(&r.full[s])) : "memory");
  uint64_t first = uint64_t(blockIdx.x) * stage_bytes, step = uint64_t(gridDim.x) * stage_bytes;
  for (int k = 0; k < stages; k++) fetch(p, r, k, first + k * step);
  int stage = 0, last = 0;  // of the copy before
  uint32_t parity = 0;
  for (uint64_t off = first; off < p.bytes; off += step) {
    if (!filled(p, &r.full[stage], parity)) return false;
    // The copy before has had the time of that wait to read its piece: the stage is filled anew.
    if (off != first) {
      asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
      fetch(p, r, last, off + (stages - 1) * step);
    }
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(__cvta_generic_to_global(p.dst + off)),
                 "r"(in_shared(r.bytes[stage])), "r"(piece(p, off))
                 : "memory");
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
    last = stage;
    if (++stage == stages) stage = 0, parity ^= 1;
  }
  asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
  return true;
}
