// SPDX-License-Identifier: Apache-2.0
//
// The words that gin.cuh is written in, as package gpu has them: ordered accesses, atomics, the clock, and threads that act
// together. With nvcc each is one PTX instruction of the order and scope that its name says. With another compiler a
// kernel's code runs on the CPU, as threads of the host: each group of threads is one thread, orders are at least those
// that the names say, and scopes are the machine.
#pragma once
#include <cstdint>

#ifdef __CUDACC__
#define DOORBELL_DEVICE __device__ __forceinline__
#else
#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#define DOORBELL_DEVICE inline
#endif

namespace doorbell {

// coop names the threads that take part in a call: each of them makes it, with the same arguments.
enum coop : int { by_thread, by_warp, by_block };

namespace word {

#ifdef __CUDACC__

constexpr bool on_gpu = true;
constexpr int32_t warp_size = 32;

#define DOORBELL_LOAD(name, op, T, t, c)                                                                  \
  DOORBELL_DEVICE T name(const T *p) {                                                                    \
    T v;                                                                                                  \
    asm volatile(op "." t " %0, [%1];" : "=" c(v) : "l"(__cvta_generic_to_global(p)) : "memory");         \
    return v;                                                                                             \
  }
#define DOORBELL_STORE(name, op, T, t, c)                                                                 \
  DOORBELL_DEVICE void name(T *p, T v) {                                                                  \
    asm volatile(op "." t " [%0], %1;" ::"l"(__cvta_generic_to_global(p)), c(v) : "memory");              \
  }
#define DOORBELL_CAS(name, op, T, t, c)                                                                   \
  DOORBELL_DEVICE bool name(T *p, T old, T next) {                                                        \
    T was;                                                                                                \
    asm volatile(op "." t " %0, [%1], %2, %3;"                                                            \
                 : "=" c(was) : "l"(__cvta_generic_to_global(p)), c(old), c(next) : "memory");            \
    return was == old;                                                                                    \
  }
#define DOORBELL_ADD(name, op, T, t, c)                                                                   \
  DOORBELL_DEVICE T name(T *p, T v) {                                                                     \
    T was;                                                                                                \
    asm volatile(op "." t " %0, [%1], %2;" : "=" c(was) : "l"(__cvta_generic_to_global(p)), c(v) : "memory"); \
    return was;                                                                                           \
  }

DOORBELL_LOAD(relaxed_sys, "ld.relaxed.sys.global", uint32_t, "u32", "r")
DOORBELL_LOAD(relaxed_sys, "ld.relaxed.sys.global", uint64_t, "u64", "l")
DOORBELL_LOAD(relaxed_gpu, "ld.relaxed.gpu.global", uint64_t, "u64", "l")
DOORBELL_LOAD(relaxed_block, "ld.relaxed.cta.global", uint64_t, "u64", "l")
DOORBELL_LOAD(acquire_sys, "ld.acquire.sys.global", uint64_t, "u64", "l")
DOORBELL_STORE(store_sys, "st.relaxed.sys.global", uint32_t, "u32", "r")
DOORBELL_STORE(store_sys, "st.relaxed.sys.global", uint64_t, "u64", "l")
DOORBELL_STORE(store_gpu, "st.relaxed.gpu.global", uint64_t, "u64", "l")
DOORBELL_STORE(store_phased, "st.relaxed.sys.global", uint64_t, "u64", "l")  // a word that says by a bit of its own that it is new
DOORBELL_STORE(release_sys, "st.release.sys.global", uint32_t, "u32", "r")
DOORBELL_STORE(release_sys, "st.release.sys.global", uint64_t, "u64", "l")
DOORBELL_STORE(add_release_sys, "red.release.sys.global.add", uint64_t, "u64", "l")
DOORBELL_STORE(add_relaxed_gpu, "red.relaxed.gpu.global.add", uint64_t, "u64", "l")
DOORBELL_ADD(fetch_add_gpu, "atom.relaxed.gpu.global.add", uint64_t, "u64", "l")
DOORBELL_ADD(fetch_add_block, "atom.relaxed.cta.global.add", uint64_t, "u64", "l")
DOORBELL_CAS(cas_gpu, "atom.relaxed.gpu.global.cas", uint32_t, "b32", "r")
DOORBELL_CAS(cas_gpu, "atom.relaxed.gpu.global.cas", uint64_t, "b64", "l")
DOORBELL_CAS(cas_block, "atom.relaxed.cta.global.cas", uint64_t, "b64", "l")

#undef DOORBELL_LOAD
#undef DOORBELL_STORE
#undef DOORBELL_CAS
#undef DOORBELL_ADD

DOORBELL_DEVICE void fence_sys() { asm volatile("fence.acq_rel.sys;" ::: "memory"); }

// clock_ns is a time in nanoseconds that never steps back, the same for all threads of a device.
DOORBELL_DEVICE uint64_t clock_ns() {
  uint64_t t;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t)::"memory");
  return t;
}

DOORBELL_DEVICE void relax() { __nanosleep(20); }
// rest is for a 128th of what was waited, 65 us at most.
DOORBELL_DEVICE void rest(uint64_t waited) { __nanosleep(waited >> 7 < 65536 ? uint32_t(waited >> 7) : 65536); }
DOORBELL_DEVICE void wake(uint32_t *) {}  // a store of a GPU wakes nobody

DOORBELL_DEVICE uint64_t lane(coop co) { return co == by_thread ? 0 : co == by_warp ? threadIdx.x % 32 : threadIdx.x; }
DOORBELL_DEVICE uint64_t lanes(coop co) { return co == by_thread ? 1 : co == by_warp ? 32 : blockDim.x; }

// begins gathers the threads and says whether this one issues. What all of them wrote is visible to it.
DOORBELL_DEVICE bool begins(coop co) {
  if (co == by_thread) return true;
  if (co == by_warp)
    __syncwarp();
  else
    __syncthreads();
  return lane(co) == 0;
}

// agree is ok (0) when each lane of the first warp has it, else what the first that has not says. What each saw, all see.
DOORBELL_DEVICE uint32_t agree(coop co, uint32_t s) {
  if (co == by_thread) return s;
  __syncwarp();
  uint32_t bad = __ballot_sync(~0u, s != 0);
  return bad ? __shfl_sync(~0u, s, __ffs(int(bad)) - 1) : s;
}

// ends gives the issuing thread's number to all, and what it saw before.
DOORBELL_DEVICE uint32_t ends(coop co, uint32_t v) {
  if (co == by_thread) return v;
  if (co == by_warp) {
    v = __shfl_sync(~0u, v, 0);
    __syncwarp();
    return v;
  }
  __shared__ uint32_t shared;  // the next call's begins stands between its reads and its next write
  if (threadIdx.x == 0) shared = v;
  __syncthreads();
  return shared;
}

// share gives the issuing thread's number to all. It stands between an ends and the next begins.
DOORBELL_DEVICE uint64_t share(coop co, uint64_t v) {
  if (co == by_warp) return __shfl_sync(~0u, v, 0);
  if (co == by_block) {
    __shared__ uint64_t shared;
    if (threadIdx.x == 0) shared = v;
    __syncthreads();
    v = shared;
    __syncthreads();
  }
  return v;
}

// gathered lets all threads go on when each has seen what begins gave it to see.
DOORBELL_DEVICE void gathered(coop co) {
  if (co == by_warp) __syncwarp();
  if (co == by_block) __syncthreads();
}

using wide = uint4;

#else  // the CPU

constexpr bool on_gpu = false;
constexpr int32_t warp_size = 1;

inline uint32_t relaxed_sys(const uint32_t *p) { return __atomic_load_n(p, __ATOMIC_RELAXED); }
inline uint64_t relaxed_sys(const uint64_t *p) { return __atomic_load_n(p, __ATOMIC_RELAXED); }
inline uint64_t relaxed_gpu(const uint64_t *p) { return __atomic_load_n(p, __ATOMIC_RELAXED); }
inline uint64_t relaxed_block(const uint64_t *p) { return __atomic_load_n(p, __ATOMIC_RELAXED); }
inline uint64_t acquire_sys(const uint64_t *p) { return __atomic_load_n(p, __ATOMIC_ACQUIRE); }
inline void store_sys(uint32_t *p, uint32_t v) { __atomic_store_n(p, v, __ATOMIC_RELAXED); }
inline void store_sys(uint64_t *p, uint64_t v) { __atomic_store_n(p, v, __ATOMIC_RELAXED); }
inline void store_gpu(uint64_t *p, uint64_t v) { __atomic_store_n(p, v, __ATOMIC_RELAXED); }
inline void store_phased(uint64_t *p, uint64_t v) { __atomic_store_n(p, v, __ATOMIC_RELEASE); }
inline void release_sys(uint32_t *p, uint32_t v) { __atomic_store_n(p, v, __ATOMIC_RELEASE); }
inline void release_sys(uint64_t *p, uint64_t v) { __atomic_store_n(p, v, __ATOMIC_RELEASE); }
inline void add_release_sys(uint64_t *p, uint64_t v) { __atomic_fetch_add(p, v, __ATOMIC_RELEASE); }
inline void add_relaxed_gpu(uint64_t *p, uint64_t v) { __atomic_fetch_add(p, v, __ATOMIC_RELAXED); }
inline uint64_t fetch_add_gpu(uint64_t *p, uint64_t v) { return __atomic_fetch_add(p, v, __ATOMIC_RELAXED); }
inline uint64_t fetch_add_block(uint64_t *p, uint64_t v) { return __atomic_fetch_add(p, v, __ATOMIC_RELAXED); }
template <class T>
bool cas_gpu(T *p, T old, T next) {
  return __atomic_compare_exchange_n(p, &old, next, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
}
inline bool cas_block(uint64_t *p, uint64_t old, uint64_t next) { return cas_gpu(p, old, next); }
inline void fence_sys() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }

inline uint64_t clock_ns() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return uint64_t(t.tv_sec) * 1000000000 + uint64_t(t.tv_nsec);
}

// A thread that waits gives way now and then: to other threads of the host, or as the program says that was compiled.
#ifndef DOORBELL_RELAX
#define DOORBELL_RELAX() sched_yield()
#endif
inline void relax() { DOORBELL_RELAX(); }
inline void rest(uint64_t) {}

// wake ends the sleep of the thread that moves the data.
inline void wake(uint32_t *asleep) {
  if (__atomic_load_n(asleep, __ATOMIC_RELAXED) != 0 && __atomic_exchange_n(asleep, 0u, __ATOMIC_SEQ_CST) != 0)
    syscall(SYS_futex, asleep, FUTEX_WAKE, 1, nullptr, nullptr, 0);
}

inline uint64_t lane(coop) { return 0; }
inline uint64_t lanes(coop) { return 1; }
inline bool begins(coop) { return true; }
inline uint32_t agree(coop, uint32_t s) { return s; }
inline uint32_t ends(coop, uint32_t v) { return v; }
inline uint64_t share(coop, uint64_t v) { return v; }
inline void gathered(coop) {}

struct alignas(16) wide {
  uint64_t half[2];
};

#endif

// copy copies with all threads that take part, 16 bytes at a time where both are multiples of 16: a load takes a GPU as long
// as many stores, so eight are on their way at once. The areas do not overlap. Nothing is ordered.
DOORBELL_DEVICE void copy(coop co, uint8_t *dst, const uint8_t *src, uint64_t bytes) {
  constexpr int at_once = 8;
  uint64_t done = 0, me = lane(co), all = lanes(co);
  if (((reinterpret_cast<uint64_t>(dst) | reinterpret_cast<uint64_t>(src)) & 15) == 0) {
    wide *to = reinterpret_cast<wide *>(dst);
    const wide *from = reinterpret_cast<const wide *>(src);
    uint64_t i = me, vecs = bytes / 16;
    for (; i + (at_once - 1) * all < vecs; i += at_once * all) {
      wide v[at_once];
#ifdef __CUDACC__
#pragma unroll
#endif
      for (int k = 0; k < at_once; k++) v[k] = from[i + k * all];
#ifdef __CUDACC__
#pragma unroll
#endif
      for (int k = 0; k < at_once; k++) to[i + k * all] = v[k];
    }
    if (i + all < vecs) {
      wide rest[at_once];  // as many as are left, at once too
#ifdef __CUDACC__
#pragma unroll
#endif
      for (int k = 0; k < at_once; k++)
        if (i + k * all < vecs) rest[k] = from[i + k * all];
#ifdef __CUDACC__
#pragma unroll
#endif
      for (int k = 0; k < at_once; k++)
        if (i + k * all < vecs) to[i + k * all] = rest[k];
    } else if (i < vecs) {  // most of a block have one or none of what is small
      to[i] = from[i];
    }
    done = vecs * 16;
  }
  for (uint64_t i = done + me; i < bytes; i += all) dst[i] = src[i];
}

// bytes_at reads the 1 to 8 bytes at p as a number, lowest first, by the one or two aligned words that they lie in; 0 of
// them are 0.
DOORBELL_DEVICE uint64_t bytes_at(const uint8_t *p, uint64_t n) {
  if (n == 0) return 0;
  uint64_t off = reinterpret_cast<uint64_t>(p) & 7;
  const uint64_t *words = reinterpret_cast<const uint64_t *>(p - off);
  if (n == 8 && off == 0) return relaxed_block(words);
  uint64_t v = relaxed_block(words) >> 8 * off;
  if (off + n > 8) v |= relaxed_block(words + 1) << (64 - 8 * off);
  return v & ~uint64_t(0) >> (64 - 8 * n);
}

DOORBELL_DEVICE bool in_bounds(uint64_t off, uint64_t n, uint64_t size) { return n <= size && off <= size - n; }

// rolling_le says a <= b for values that wrap at 2^bits.
DOORBELL_DEVICE bool rolling_le(uint64_t a, uint64_t b, int32_t bits) {
  uint64_t mask = ~uint64_t(0) >> (64 - bits);
  return ((b - a) & mask) <= mask >> 1;
}

}  // namespace word
}  // namespace doorbell
