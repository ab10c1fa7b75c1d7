// SPDX-License-Identifier: Apache-2.0
//
// The CPU's part of lanes.cuh: threads of a GPU as contexts of one thread of the host.
#pragma once
#include <sched.h>
#include <ucontext.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

struct alignas(8) uint2 {
  uint32_t x, y;
};
struct alignas(16) uint4 {
  uint32_t x, y, z, w;
};

namespace lanes {

// group is who has come to a place where so many wait for each other.
struct group {
  uint32_t come = 0, times = 0;
};

// run is a block.
struct run {
  static constexpr size_t stack_bytes = 64 << 10;

  const uint32_t block, blocks, count;  // count: threads
  uint32_t now = 0;  // which of them runs
  uint32_t ended = 0, waiting = 0;
  std::vector<ucontext_t> at = std::vector<ucontext_t>(count);
  std::vector<bool> over = std::vector<bool>(count);
  std::vector<uint32_t> value = std::vector<uint32_t>(count);  // that each gives to others
  std::vector<group> warps = std::vector<group>(count / 32);
  group all = {};
  void (*body)(const void *) = nullptr;
  const void *args = nullptr;
  ucontext_t caller = {};

  // next runs the next thread that has not ended.
  void next() {
    uint32_t from = now;
    do now = (now + 1) % count;
    while (over[now]);
    if (now != from) swapcontext(&at[from], &at[now]);
  }

  // meet waits until n threads have come.
  void meet(group &g, uint32_t n) {
    uint32_t times = g.times;
    if (++g.come == n) {
      g.come = 0, g.times++, waiting -= n - 1;
      return;
    }
    for (waiting++; g.times == times; next())
      if (waiting + ended == count) {
        fprintf(stderr, "block %u: all threads that have not ended wait for others of their warp or block\n", block);
        abort();
      }
  }
  void meet_warp() { meet(warps[now / 32], 32); }
  void meet_block() { meet(all, count); }
};

inline thread_local run *current;

inline void thread_main() {
  run *r = current;
  r->body(r->args);
  r->over[r->now] = true;
  if (++r->ended == r->count) setcontext(&r->caller);
  r->next();
}

// give_way is called by a thread that waits for what others store.
inline void give_way() {
  current->next();
  sched_yield();
}

// launch runs a block and returns when its threads have ended.
inline void launch(uint32_t block, uint32_t blocks, uint32_t count, void (*body)(const void *), const void *args) {
  run r{block, blocks, count};
  r.body = body, r.args = args;
  std::unique_ptr<char[]> stacks(new char[count * run::stack_bytes]);
  for (uint32_t i = 0; i < count; i++) {
    getcontext(&r.at[i]);
    r.at[i].uc_stack.ss_sp = &stacks[i * run::stack_bytes];
    r.at[i].uc_stack.ss_size = run::stack_bytes;
    r.at[i].uc_link = nullptr;
    makecontext(&r.at[i], thread_main, 0);
  }
  current = &r;
  swapcontext(&r.caller, &r.at[0]);
  current = nullptr;
}

}  // namespace lanes

#define DOORBELL_RELAX lanes::give_way

#define KERNEL(name, A, warps)                                                                                                \
  static void name##_thread(const A &a);                                                                                      \
  extern "C" void name(const A *a, uint32_t block, uint32_t blocks, uint32_t threads) {                                       \
    lanes::launch(block, blocks, threads, [](const void *p) { name##_thread(*static_cast<const A *>(p)); }, a);               \
  }                                                                                                                           \
  static void name##_thread(const A &a)
#define SHARED static thread_local
#define UNROLL
#define UNROLL_4
#define UNROLL_8

inline uint32_t thread() { return lanes::current->now; }
inline uint32_t threads() { return lanes::current->count; }
inline uint32_t block() { return lanes::current->block; }
inline uint32_t blocks() { return lanes::current->blocks; }

inline void sync_warp() { lanes::current->meet_warp(); }
inline void sync_block() { lanes::current->meet_block(); }

// of_warp gives each lane's value to f, which looks at all of them.
template <class F>
inline auto of_warp(uint32_t v, F f) {
  lanes::run &r = *lanes::current;
  r.value[r.now] = v;
  r.meet_warp();
  auto got = f(&r.value[r.now / 32 * 32], r.now % 32);
  r.meet_warp();
  return got;
}
inline uint32_t shfl(uint32_t v, uint32_t from) {
  return of_warp(v, [=](const uint32_t *all, uint32_t) { return all[from % 32]; });
}
inline uint32_t shfl_xor(uint32_t v, uint32_t mask) {
  return of_warp(v, [=](const uint32_t *all, uint32_t me) { return all[(me ^ mask) % 32]; });
}
inline uint32_t vote(bool v) {
  return of_warp(v, [](const uint32_t *all, uint32_t) {
    uint32_t set = 0;
    for (int i = 0; i < 32; i++) set |= all[i] << i;
    return set;
  });
}
inline bool any_of_block(bool v) {
  lanes::run &r = *lanes::current;
  r.value[r.now] = v;
  r.meet_block();
  bool any = false;
  for (uint32_t x : r.value) any |= x;
  r.meet_block();
  return any;
}
inline uint32_t bits(uint32_t v) { return uint32_t(__builtin_popcount(v)); }
inline uint32_t first_bit(uint32_t v) { return uint32_t(__builtin_ffs(int(v)) - 1); }

inline uint32_t load_gpu(const uint32_t *p) { return __atomic_load_n(p, __ATOMIC_RELAXED); }
inline uint32_t add_gpu(uint32_t *p, uint32_t v) { return __atomic_fetch_add(p, v, __ATOMIC_RELAXED); }
inline uint64_t add_gpu(uint64_t *p, uint64_t v) { return __atomic_fetch_add(p, v, __ATOMIC_RELAXED); }
inline uint32_t add_acq_rel_gpu(uint32_t *p, uint32_t v) { return __atomic_fetch_add(p, v, __ATOMIC_ACQ_REL); }
inline uint64_t add_acq_rel_gpu(uint64_t *p, uint64_t v) { return __atomic_fetch_add(p, v, __ATOMIC_ACQ_REL); }

inline void prefetch(const void *) {}

inline float as_float(uint32_t v) {
  float f;
  memcpy(&f, &v, 4);
  return f;
}
inline uint32_t as_bits(float f) {
  uint32_t v;
  memcpy(&v, &f, 4);
  return v;
}
inline float mul(float a, float b) { return a * b; }  // compiled with -ffp-contract=off
inline float add(float a, float b) { return a + b; }

inline uint32_t bf16_of(float f) {
  uint32_t b = as_bits(f);
  return (b & 0x7fffffff) > 0x7f800000 ? 0x7fff : (b + 0x7fff + (b >> 16 & 1)) >> 16;
}
inline uint32_t bf16x2(float lo, float hi) { return bf16_of(lo) | bf16_of(hi) << 16; }

// e4m3_of rounds to the nearest, ties to even; what is larger than 448 becomes that.
inline uint32_t e4m3_of(float f) {
  uint32_t sign = as_bits(f) >> 24 & 0x80, b = as_bits(f) & 0x7fffffff;
  if (b > 0x7f800000) return 0x7f;
  float v = as_float(b);
  if (v >= 448) return sign | 0x7e;
  if (v < 0x1p-6f) return sign | (as_bits(v + 0x1p14f) - as_bits(0x1p14f));  // units of 2^-9, by the addition's rounding
  return sign | (b - ((127 - 7) << 23) + 0x7ffff + (b >> 20 & 1)) >> 20;
}
inline uint32_t e4m3x2(float lo, float hi) { return e4m3_of(lo) | e4m3_of(hi) << 8; }
