// SPDX-License-Identifier: Apache-2.0
//
// Round trips between two kernels, as the floors and the peers on several GPUs measure them: ordered accesses, a wait that ends,
// one side of a ping-pong, and a figure as a line of JSON, which tools/measure reads. A sample is the mean of 16 trips.
#pragma once
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "ways.cuh"

constexpr int mean_of = 16, samples = 512, warm = 32;
constexpr uint64_t gpu_polls = 1 << 23;  // of a wait

#define CHECK(x)                                                                       \
  do {                                                                                 \
    if (int e = int(x)) {                                                              \
      fprintf(stderr, "%s: line %d: %s: error %d\n", __FILE__, __LINE__, #x, e);       \
      exit(1);                                                                         \
    }                                                                                  \
  } while (0)

__device__ __forceinline__ uint64_t acquire(const uint64_t *p) {
  uint64_t v;
  asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
  return v;
}
__device__ __forceinline__ void relaxed(uint64_t *p, uint64_t v) { asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory"); }
__device__ __forceinline__ void release(uint64_t *p, uint64_t v) { asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory"); }
__device__ __forceinline__ void add_release(uint64_t *p, uint64_t v) { asm volatile("red.release.sys.global.add.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory"); }
__device__ __forceinline__ uint64_t now_ns() {
  uint64_t t;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t)::"memory");
  return t;
}
__device__ __forceinline__ bool await(const uint64_t *p, uint64_t v) {
  for (uint64_t n = 0; n < gpu_polls; n++)
    if (acquire(p) >= v) return true;
  return false;
}

enum kind { flag_relaxed, flag_release, word_release, word_add };

// ping is one side of a ping-pong, by one thread; k says what goes with each flag and how it is raised. Means of the first
// side's trips go to ns.
template <kind k>
__device__ __forceinline__ void ping(uint64_t *mine, uint64_t *theirs, const uint64_t *from, uint64_t *to, bool first, uint32_t *ns, uint64_t trips) {
  uint64_t last = now_ns();
  for (uint64_t i = 1; i <= trips; i++) {
    if (!first && !await(mine, i)) return;
    if (k >= word_release) *to = *from;
    if (k == flag_relaxed) relaxed(theirs, i);
    if (k == flag_release || k == word_release) release(theirs, i);
    if (k == word_add) add_release(theirs, 1);
    if (first && !await(mine, i)) return;
    if (i % mean_of == 0 && ns) {
      uint64_t now = now_ns();
      ns[i / mean_of - 1] = uint32_t((now - last) / mean_of);
      last = now;
    }
  }
}

// to_self sends by put to where the flag is waited for, and raises it there; the block's threads all call it.
template <class F>
__device__ __forceinline__ void to_self(const uint64_t *flag, uint32_t *ns, F put) {
  __shared__ bool came;
  uint64_t last = now_ns();
  for (uint64_t i = 1; i <= uint64_t(samples) * mean_of; i++) {
    put(i);
    if (threadIdx.x == 0) came = await(flag, i);
    __syncthreads();
    if (!came) return;
    if (threadIdx.x == 0 && i % mean_of == 0) {
      uint64_t now = now_ns();
      ns[i / mean_of - 1] = uint32_t((now - last) / mean_of);
      last = now;
    }
    __syncthreads();
  }
}

// sampled is what ns holds in microseconds, of the device's memory; empty if a wait ended at its limit.
static std::vector<double> sampled(const uint32_t *ns) {
  std::vector<uint32_t> host(samples);
  CHECK(cudaMemcpy(host.data(), ns, samples * sizeof(uint32_t), cudaMemcpyDefault));
  std::vector<double> us(host.begin(), host.end());
  for (double &v : us) v /= 1e3;
  if (host[samples - 1] == 0) us.clear();
  return us;
}

static void print(const char *name, std::vector<double> us) {
  if (us.empty()) {
    printf("{\"floor\":\"%s\",\"error\":\"a wait ended at its limit\"}\n", name);
    exit(1);
  }
  us.erase(us.begin(), us.begin() + warm);
  std::sort(us.begin(), us.end());
  printf("{\"floor\":\"%s\",\"p50_us\":%.4f,\"min_us\":%.4f}\n", name, us[us.size() / 2], us[0]);
}
