// SPDX-License-Identifier: Apache-2.0
//
// CUDA C++ twins of the kernels that copy windows (bench/kernels, bench/bulk): same entries, same arguments, same steps. RawCopy
// takes Copy's arguments and has nothing of ours: it is what gin's checks and bounds are measured against.
//   nvcc -O3 -std=c++17 -arch=sm_90 -ptx bench/gpu/copies.cu -o copies.ptx
// TestCopies runs them in turn with ours, in one process.
#include "../../include/doorbell/gin.cuh"
#include "args.cuh"

using namespace doorbell;

#define DB DOORBELL_DEVICE

struct part {
  uint64_t from, bytes;
};

// part_of is a block's share, of whole pages.
DB part part_of(uint64_t bytes) {
  uint64_t share = ((bytes + gridDim.x - 1) / gridDim.x + 4095) & ~uint64_t(4095), from = min(uint64_t(blockIdx.x) * share, bytes);
  return {from, min(share, bytes - from)};
}

extern "C" __global__ void __launch_bounds__(1024, 1) Copy(const __grid_constant__ copy_args a) {
  context c(a.DC, 0);
  part p = part_of(a.Bytes);
  status s = c.lsa_put(by_block, a.Peer, a.Recv, p.from, a.Send.Base + p.from, p.bytes);
  if (s != ok && threadIdx.x == 0) atomicAdd(a.Refused, 1);
}

// RawCopy: 16 bytes a thread, eight loads on their way.
extern "C" __global__ void __launch_bounds__(1024, 1) RawCopy(const __grid_constant__ copy_args a) {
  part p = part_of(a.Bytes);
  uint4 *to = reinterpret_cast<uint4 *>(lsa_pointer(a.Recv, a.Peer, p.from));
  const uint4 *from = reinterpret_cast<const uint4 *>(a.Send.Base + p.from);
  uint64_t n = p.bytes / 16, i = threadIdx.x, all = blockDim.x;
  for (; i + 7 * all < n; i += 8 * all) {
    uint4 v[8];
#pragma unroll
    for (int k = 0; k < 8; k++) v[k] = from[i + k * all];
#pragma unroll
    for (int k = 0; k < 8; k++) to[i + k * all] = v[k];
  }
  for (; i < n; i += all) to[i] = from[i];
  for (uint64_t b = n * 16 + threadIdx.x; b < p.bytes; b += all) reinterpret_cast<uint8_t *>(to)[b] = reinterpret_cast<const uint8_t *>(from)[b];
}

constexpr int stages = 5, stage_bytes = 9216;

struct room {
  uint8_t bytes[stages][stage_bytes];
  uint64_t full[stages];
};

DB uint32_t shared(const void *p) { return uint32_t(__cvta_generic_to_shared(p)); }

DB uint32_t piece(const bulk_copy_args &a, uint64_t off) { return uint32_t(min(a.Bytes - off, uint64_t(stage_bytes))); }

// in fetches the piece at off, if there is one.
DB void in(const bulk_copy_args &a, room &r, int stage, uint64_t off) {
  if (off >= a.Bytes) return;
  uint32_t n = piece(a, off);
  asm volatile("{ .reg .b64 s; mbarrier.arrive.expect_tx.release.cta.shared::cta.b64 s, [%0], %1; }" ::"r"(shared(&r.full[stage])), "r"(n) : "memory");
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(shared(r.bytes[stage])),
               "l"(__cvta_generic_to_global(a.Send.Base + off)), "r"(n), "r"(shared(&r.full[stage]))
               : "memory");
}

DB bool try_wait(const uint64_t *b, uint32_t parity) {
  uint32_t done;
  asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }" : "=r"(done) : "r"(shared(b)), "r"(parity) : "memory");
  return done;
}

// filled waits for the pieces of a stage.
DB bool filled(const bulk_copy_args &a, const uint64_t *b, uint32_t parity) {
  if (try_wait(b, parity)) return true;
  for (uint64_t start = word::clock_ns(); word::clock_ns() - start < a.Timeout;)
    if (try_wait(b, parity)) return true;
  return false;
}

extern "C" __global__ void __launch_bounds__(32, 1) BulkCopy(const __grid_constant__ bulk_copy_args a) {
  __shared__ __align__(128) room r;
  if (threadIdx.x) return;
  for (int s = 0; s < stages; s++) asm volatile("mbarrier.init.shared.b64 [%0], 1; fence.proxy.async.shared::cta;" ::"r"(shared(&r.full[s])) : "memory");
  uint64_t first = uint64_t(blockIdx.x) * stage_bytes, step = uint64_t(gridDim.x) * stage_bytes;
  for (int k = 0; k < stages; k++) in(a, r, k, first + k * step);
  int stage = 0;
  uint32_t parity = 0;
  for (uint64_t off = first; off < a.Bytes; off += step) {
    if (!filled(a, &r.full[stage], parity)) {
      atomicAdd(a.Failed, 1);
      return;
    }
    // The copy before has had the time of that wait to read its piece: the stage is filled anew.
    if (off != first) {
      asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
      in(a, r, (stage + stages - 1) % stages, off + (stages - 1) * step);
    }
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(__cvta_generic_to_global(lsa_pointer(a.Recv, a.Peer, off))), "r"(shared(r.bytes[stage])), "r"(piece(a, off)) : "memory");
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
    if (++stage == stages) stage = 0, parity ^= 1;
  }
  asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}
