// SPDX-License-Identifier: Apache-2.0
//
// What the hardware takes, with nothing of ours: round trips of flags between a CPU thread and a GPU thread, and between
// two kernels of one GPU. A line of JSON each; samples are means of 16 trips, as the benches' are. Every wait ends after
// so many polls. Build: nvcc -O3 -std=c++17 -arch=sm_90 -o floors bench/gpu/floors.cu -lcuda
#include <cuda.h>

#include <atomic>
#include <chrono>
#include <utility>

#include "trips.cuh"

constexpr size_t area = 8 << 20;
constexpr uint64_t cpu_polls = 1ull << 31;

// echo answers each value at in by the same at out.
__global__ void echo(const uint64_t *in, uint64_t *out, uint64_t trips) {
  for (uint64_t i = 1; i <= trips; i++) {
    if (!await(in, i)) return;
    relaxed(out, i);
  }
}

__device__ __forceinline__ int multiprocessor() {
  int id;
  asm volatile("mov.u32 %0, %%smid;" : "=r"(id));
  return id;
}

// trip is one side of a ping-pong of two kernels: one thread, on the multiprocessor sm unless that is negative.
template <kind k>
__global__ void trip(uint64_t *mine, uint64_t *theirs, const uint64_t *from, uint64_t *to, bool first, uint32_t *ns, uint64_t trips, int sm,
                     int *taken) {
  if (sm >= 0 && (multiprocessor() != sm || atomicExch(taken, 1))) return;
  ping<k>(mine, theirs, from, to, first, ns, trips);
}

static bool spin(volatile uint64_t *p, uint64_t v) {
  for (uint64_t n = 0; n < cpu_polls; n++) {
    if (*p >= v) {
      std::atomic_thread_fence(std::memory_order_acquire);
      return true;
    }
  }
  return false;
}

template <class F>
static void cpu_trips(const char *name, volatile uint64_t *back, F send) {
  std::vector<double> us;
  bool whole = true;
  uint64_t i = 0;
  for (int s = 0; s < samples && whole; s++) {
    auto start = std::chrono::steady_clock::now();
    for (int k = 0; k < mean_of && whole; k++) {
      send(++i);
      whole = spin(back, i);
    }
    us.push_back(std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count() / mean_of);
  }
  print(name, whole ? us : std::vector<double>{});
}

// place is where the two kernels run, and how far apart their words lie, in lines.
struct place {
  int sm[2];
  int apart;
};

template <kind k>
static std::vector<double> gpu_trips(uint64_t *mem, cudaStream_t *st, place at) {
  uint32_t *ns;
  uint64_t trips = uint64_t(samples) * mean_of;
  CHECK(cudaMalloc(&ns, samples * 4));
  CHECK(cudaMemset(ns, 0, samples * 4));
  CHECK(cudaMemset(mem, 0, area));
  CHECK(cudaDeviceSynchronize());
  int *taken = reinterpret_cast<int *>(mem + area / 8 - 16), blocks = at.sm[0] < 0 ? 1 : 1024;
  uint64_t step = uint64_t(at.apart) * 16;
  uint64_t *flag[2] = {mem, mem + step}, *from[2] = {mem + 2 * step, mem + 3 * step}, *to[2] = {mem + 4 * step, mem + 5 * step};
  trip<k><<<blocks, 1, 0, st[0]>>>(flag[0], flag[1], from[0], to[1], true, ns, trips, at.sm[0], taken);
  trip<k><<<blocks, 1, 0, st[1]>>>(flag[1], flag[0], from[1], to[0], false, nullptr, trips, at.sm[1], taken + 8);
  CHECK(cudaDeviceSynchronize());
  std::vector<double> us = sampled(ns);
  CHECK(cudaFree(ns));
  return us;
}

template <kind k>
static void near_trips(const char *name, uint64_t *mem, cudaStream_t *st) {
  auto us = gpu_trips<k>(mem, st, {{-1, -1}, 4});
  print(name, us);
}

// far_trips goes over places: the second level of the cache has two halves, and multiprocessors and lines belong to one.
template <kind k>
static void far_trips(const char *name, uint64_t *mem, cudaStream_t *st) {
  std::vector<double> medians;
  for (int apart : {4, 37, 1031, 4099})
    for (auto sm : {std::pair<int, int>{0, 1}, {0, 16}, {2, 65}, {33, 98}, {64, 131}, {90, 14}}) {
      auto us = gpu_trips<k>(mem, st, {{sm.first, sm.second}, apart});
      if (us.empty()) return print(name, us);
      std::sort(us.begin(), us.end());
      medians.push_back(us[us.size() / 2]);
      fprintf(stderr, "multiprocessors %d and %d, words %d lines apart: %.3f us\n", sm.first, sm.second, apart, medians.back());
    }
  std::sort(medians.begin(), medians.end());
  printf("{\"floor\":\"%s\",\"p50_us\":%.4f,\"min_us\":%.4f,\"max_us\":%.4f}\n", name, medians[medians.size() / 2], medians[0], medians.back());
}

// device_copies are the driver's, back to back, between two parts of the GPU's memory that take turns so that none is in a cache.
static void device_copies(const char *name, size_t bytes, int times, cudaStream_t st) {
  constexpr size_t half = size_t(1) << 29;
  uint8_t *all;
  cudaEvent_t begin, end;
  CHECK(cudaMalloc(&all, 2 * half));
  CHECK(cudaEventCreate(&begin));
  CHECK(cudaEventCreate(&end));
  std::vector<double> us;
  for (int round = 0; round < 8; round++) {
    CHECK(cudaEventRecord(begin, st));
    for (int i = 0; i < times; i++) {
      size_t at = i * bytes % (half - bytes + 1) & ~size_t(255);
      CHECK(cudaMemcpyAsync(all + half + at, all + at, bytes, cudaMemcpyDeviceToDevice, st));
    }
    CHECK(cudaEventRecord(end, st));
    CHECK(cudaStreamSynchronize(st));
    float ms;
    CHECK(cudaEventElapsedTime(&ms, begin, end));
    if (round) us.push_back(ms * 1e3 / times);  // the first warms up
  }
  CHECK(cudaEventDestroy(begin));
  CHECK(cudaEventDestroy(end));
  CHECK(cudaFree(all));
  std::sort(us.begin(), us.end());
  double p50 = us[us.size() / 2];
  printf("{\"floor\":\"%s\",\"p50_us\":%.4f,\"min_us\":%.4f,\"GBps\":%.1f}\n", name, p50, us[0], bytes / p50 / 1e3);
}

int main() {
  cudaStream_t st[2];
  uint64_t *host, *mem;
  for (auto &s : st) CHECK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
  CHECK(cudaHostAlloc(&host, 4096, cudaHostAllocMapped));
  CHECK(cudaMalloc(&mem, area));
  uint64_t trips = uint64_t(samples) * mean_of;
  auto clear = [&] {
    CHECK(cudaMemset(mem, 0, area));
    CHECK(cudaDeviceSynchronize());
    std::fill(host, host + 512, 0);
  };

  clear();
  echo<<<1, 1, 0, st[0]>>>(host, host + 64, trips);
  cpu_trips("cpu-gpu-cpu flag", host + 64, [&](uint64_t i) { reinterpret_cast<std::atomic<uint64_t> *>(host)->store(i, std::memory_order_release); });
  CHECK(cudaDeviceSynchronize());

  clear();
  echo<<<1, 1, 0, st[0]>>>(mem, host + 64, trips);
  cpu_trips("stream write to kernel to cpu", host + 64, [&](uint64_t i) { CHECK(cuStreamWriteValue64(st[1], CUdeviceptr(mem), i, 0)); });
  CHECK(cudaDeviceSynchronize());

  near_trips<flag_relaxed>("two kernels, flag, relaxed", mem, st);
  near_trips<flag_release>("two kernels, flag, release", mem, st);
  near_trips<word_release>("two kernels, 8 B and flag, release", mem, st);
  near_trips<word_add>("two kernels, 8 B and flag, release by add", mem, st);
  far_trips<word_add>("two kernels, 8 B and flag, release by add, over places", mem, st);
  device_copies("device copy, 512 MiB", size_t(1) << 29, 6, st[0]);
  device_copies("device copy, 14 KiB", 14336, 4096, st[0]);
}
