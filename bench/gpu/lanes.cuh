// SPDX-License-Identifier: Apache-2.0
//
// The words that twins of package moe's kernels are written in. With nvcc they are CUDA's. With another compiler threads of a
// block run on the CPU, on one thread of the host: each in turn, until it waits. So warps have 32 lanes there too, and what a kernel
// makes of them can be tried without a GPU.
#pragma once
#ifndef __CUDACC__
#include "lanes_cpu.h"  // says how a wait gives way
#endif
#include "../../include/doorbell/gin.cuh"

#define DB DOORBELL_DEVICE

#ifdef __CUDACC__

// KERNEL is a kernel of that name whose argument is an A named a, for blocks of so many warps at most.
#define KERNEL(name, A, warps) extern "C" __global__ void __launch_bounds__(32 * (warps), 1) name(const __grid_constant__ A a)
#define SHARED __shared__
#define UNROLL _Pragma("unroll")
#define UNROLL_4 _Pragma("unroll 4")
#define UNROLL_8 _Pragma("unroll 8")

DB uint32_t thread() { return threadIdx.x; }
DB uint32_t threads() { return blockDim.x; }
DB uint32_t block() { return blockIdx.x; }
DB uint32_t blocks() { return gridDim.x; }

DB void sync_warp() { __syncwarp(); }
DB void sync_block() { __syncthreads(); }
DB bool any_of_block(bool v) { return __syncthreads_or(v); }
DB uint32_t shfl(uint32_t v, uint32_t from) { return __shfl_sync(~0u, v, from); }
DB uint32_t shfl_xor(uint32_t v, uint32_t mask) { return __shfl_xor_sync(~0u, v, mask); }
DB uint32_t vote(bool v) { return __ballot_sync(~0u, v); }
DB uint32_t bits(uint32_t v) { return __popc(v); }
DB uint32_t first_bit(uint32_t v) { return __ffs(v) - 1; }

DB uint32_t load_gpu(const uint32_t *p) {
  uint32_t v;
  asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(__cvta_generic_to_global(p)) : "memory");
  return v;
}
DB uint32_t add_gpu(uint32_t *p, uint32_t v) { return atomicAdd(p, v); }
DB uint64_t add_gpu(uint64_t *p, uint64_t v) { return atomicAdd(reinterpret_cast<unsigned long long *>(p), v); }
DB uint32_t add_acq_rel_gpu(uint32_t *p, uint32_t v) {
  uint32_t was;
  asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], %2;" : "=r"(was) : "l"(__cvta_generic_to_global(p)), "r"(v) : "memory");
  return was;
}
DB uint64_t add_acq_rel_gpu(uint64_t *p, uint64_t v) {
  uint64_t was;
  asm volatile("atom.acq_rel.gpu.global.add.u64 %0, [%1], %2;" : "=l"(was) : "l"(__cvta_generic_to_global(p)), "l"(v) : "memory");
  return was;
}

DB float as_float(uint32_t v) { return __uint_as_float(v); }
DB uint32_t as_bits(float v) { return __float_as_uint(v); }
DB float mul(float a, float b) { return __fmul_rn(a, b); }
DB float add(float a, float b) { return __fadd_rn(a, b); }
DB uint32_t bf16x2(float lo, float hi) {
  uint32_t v;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(v) : "f"(hi), "f"(lo));
  return v;
}
DB uint32_t e4m3x2(float lo, float hi) {
  uint16_t v;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(v) : "f"(hi), "f"(lo));
  return v;
}

// prefetch has memory on its way into the L2 cache.
DB void prefetch(const void *p) { asm volatile("prefetch.global.L2 [%0];" ::"l"(__cvta_generic_to_global(p))); }

#endif

DB uint32_t lane() { return thread() % 32; }
DB uint32_t warp() { return thread() / 32; }
DB uint32_t warps() { return threads() / 32; }

DB uint32_t larger(uint32_t a, uint32_t b) { return a > b ? a : b; }

DB float bf16_lo(uint32_t w) { return as_float(w << 16); }
DB float bf16_hi(uint32_t w) { return as_float(w & 0xffff0000); }

// copy_warp is a copy by a warp, 16 bytes a lane, eight loads of it on their way. Addresses and bytes are multiples of 16.
DB void copy_warp(uint8_t *dst, const uint8_t *src, uint32_t bytes) {
  constexpr int loads = 8;
  uint4 *to = reinterpret_cast<uint4 *>(dst);
  const uint4 *from = reinterpret_cast<const uint4 *>(src);
  for (uint32_t i = lane(), n = bytes / 16; i < n; i += loads * 32) {
    uint4 v[loads];
    UNROLL for (int k = 0; k < loads; k++)
      if (i + k * 32 < n) v[k] = from[i + k * 32];
    UNROLL for (int k = 0; k < loads; k++)
      if (i + k * 32 < n) to[i + k * 32] = v[k];
  }
}
