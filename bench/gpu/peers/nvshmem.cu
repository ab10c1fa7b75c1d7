// SPDX-License-Identifier: Apache-2.0
//
// NVSHMEM on two GPUs of a host, two processes, or with the argument "self" on one GPU, to itself: round trips of put with signal,
// by so many threads, and puts of many blocks. A line of JSON each, from the first. The waits are ours, and end. Exit 3: no two GPUs.
//   nvcc -rdc=true -O3 -std=c++17 -arch=sm_90 -I NVSHMEM/include -o nvshmem bench/gpu/peers/nvshmem.cu \
//     NVSHMEM/lib/libnvshmem_device.a NVSHMEM/lib/libnvshmem_host.so.3 -lcuda
#include <nvshmem.h>
#include <nvshmemx.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>

#include "../trips.cuh"

constexpr size_t large = 256 << 20;

enum by { by_thread, by_warp, by_block };

template <by group>
__device__ void put_signal(uint8_t *dst, const uint8_t *src, size_t bytes, uint64_t *flag, uint64_t value, int peer) {
  if constexpr (group == by_thread) nvshmem_putmem_signal_nbi(dst, src, bytes, flag, value, NVSHMEM_SIGNAL_SET, peer);
  if constexpr (group == by_warp) nvshmemx_putmem_signal_nbi_warp(dst, src, bytes, flag, value, NVSHMEM_SIGNAL_SET, peer);
  if constexpr (group == by_block) nvshmemx_putmem_signal_nbi_block(dst, src, bytes, flag, value, NVSHMEM_SIGNAL_SET, peer);
}

// trip is one side of a ping-pong of messages, by all threads of the block.
template <by group>
__global__ void trip(uint8_t *mine, uint8_t *theirs, size_t bytes, uint64_t *flag, int me, uint32_t *ns) {
  __shared__ bool came;
  uint64_t last = now_ns();
  for (uint64_t i = 1; i <= uint64_t(samples) * mean_of; i++) {
    for (int turn = 0; turn < 2; turn++) {
      if (turn == me) {
        put_signal<group>(theirs, mine, bytes, flag, i, 1 - me);
        continue;
      }
      if (threadIdx.x == 0) came = await(flag, i);
      __syncthreads();
      if (!came) return;
    }
    if (threadIdx.x == 0 && me == 0 && i % mean_of == 0) {
      uint64_t now = now_ns();
      ns[i / mean_of - 1] = uint32_t((now - last) / mean_of);
      last = now;
    }
    __syncthreads();
  }
}

template <by group>
__global__ void self(uint8_t *dst, const uint8_t *src, size_t bytes, uint64_t *flag, uint32_t *ns) {
  to_self(flag, ns, [&](uint64_t i) { put_signal<group>(dst, src, bytes, flag, i, 0); });
}

__global__ void __launch_bounds__(1024, 1) puts(uint8_t *dst, const uint8_t *src, size_t bytes, int peer) {
  size_t each = bytes / gridDim.x, from = blockIdx.x * each;
  nvshmemx_putmem_nbi_block(dst + from, src + from, each, peer);
  if (threadIdx.x == 0) nvshmem_quiet();
}

struct rank {
  int id;
  uint8_t *send, *recv;
  uint64_t *flag;
  uint32_t *ns;
  cudaStream_t stream;
};

template <by group>
static void trips(const char *name, rank &r, size_t bytes, int threads) {
  CHECK(cudaMemset(r.flag, 0, sizeof(uint64_t)));
  CHECK(cudaMemset(r.ns, 0, samples * sizeof(uint32_t)));
  CHECK(cudaDeviceSynchronize());
  nvshmem_barrier_all();
  trip<group><<<1, threads, 0, r.stream>>>(r.send, r.recv, bytes, r.flag, r.id, r.ns);
  CHECK(cudaGetLastError());
  CHECK(cudaStreamSynchronize(r.stream));
  nvshmem_barrier_all();
  if (r.id == 0) print(name, sampled(r.ns));
}

static void moved(const char *name, rank &r, int blocks) {
  cudaEvent_t begin, end;
  std::vector<double> rates;
  CHECK(cudaEventCreate(&begin));
  CHECK(cudaEventCreate(&end));
  CHECK(cudaMemset(r.recv, 0, large));
  CHECK(cudaMemset(r.send, 1 + blocks % 7, large));
  CHECK(cudaDeviceSynchronize());
  nvshmem_barrier_all();
  for (int round = 0; r.id == 0 && round < 6; round++) {
    CHECK(cudaEventRecord(begin, r.stream));
    puts<<<blocks, 1024, 0, r.stream>>>(r.recv, r.send, large, 1);
    CHECK(cudaGetLastError());
    CHECK(cudaEventRecord(end, r.stream));
    CHECK(cudaStreamSynchronize(r.stream));
    float ms;
    CHECK(cudaEventElapsedTime(&ms, begin, end));
    if (round) rates.push_back(large / ms / 1e6);  // the first warms up
  }
  nvshmem_barrier_all();
  if (r.id == 1) {
    std::vector<uint8_t> got(large);
    CHECK(cudaMemcpy(got.data(), r.recv, large, cudaMemcpyDefault));
    if (std::count(got.begin(), got.end(), uint8_t(1 + blocks % 7)) != ptrdiff_t(large)) {
      fprintf(stderr, "%s: what came is not what was sent\n", name);
      exit(1);
    }
  } else {
    std::sort(rates.begin(), rates.end());
    printf("{\"floor\":\"%s\",\"GBps\":%.2f}\n", name, rates[rates.size() / 2]);
  }
  nvshmem_barrier_all();
}

static rank begin(int id, int ranks, nvshmemx_uniqueid_t unique) {
  CHECK(cudaSetDevice(id));
  nvshmemx_init_attr_t attr = NVSHMEMX_INIT_ATTR_INITIALIZER;
  CHECK(nvshmemx_set_attr_uniqueid_args(id, ranks, &unique, &attr));
  CHECK(nvshmemx_init_attr(NVSHMEMX_INIT_WITH_UNIQUEID, &attr));
  rank r = {id, static_cast<uint8_t *>(nvshmem_malloc(large)), static_cast<uint8_t *>(nvshmem_malloc(large)), static_cast<uint64_t *>(nvshmem_malloc(64)), nullptr, nullptr};
  CHECK(cudaMalloc(&r.ns, samples * sizeof(uint32_t)));
  CHECK(cudaStreamCreateWithFlags(&r.stream, cudaStreamNonBlocking));
  return r;
}

// alone is one rank, which sends to itself.
static int alone(nvshmemx_uniqueid_t unique) {
  rank r = begin(0, 1, unique);
  for (way w : ways) {
    CHECK(cudaMemset(r.flag, 0, sizeof(uint64_t)));
    CHECK(cudaMemset(r.ns, 0, samples * sizeof(uint32_t)));
    CHECK(cudaDeviceSynchronize());
    auto kernel = w.threads == 1 ? self<by_thread> : w.threads == 32 ? self<by_warp> : self<by_block>;
    kernel<<<1, w.threads, 0, r.stream>>>(r.recv, r.send, w.bytes, r.flag, r.ns);
    CHECK(cudaGetLastError());
    CHECK(cudaStreamSynchronize(r.stream));
    char name[80];
    snprintf(name, sizeof name, "NVSHMEM to itself, %zu B, %d threads", w.bytes, w.threads);
    print(name, sampled(r.ns));
  }
  nvshmem_finalize();
  return 0;
}

static void be(int id, nvshmemx_uniqueid_t unique) {
  rank r = begin(id, 2, unique);
  trips<by_thread>("NVSHMEM put with signal, 8 B, 1 thread", r, 8, 1);
  trips<by_warp>("NVSHMEM put with signal, 8 B, 32 threads", r, 8, 32);
  trips<by_block>("NVSHMEM put with signal, 8 B, 256 threads", r, 8, 256);
  trips<by_block>("NVSHMEM put with signal, 7168 B, 256 threads", r, 7168, 256);
  trips<by_block>("NVSHMEM put with signal, 7168 B, 1024 threads", r, 7168, 1024);
  moved("NVSHMEM put, 16 blocks of 1024 threads", r, 16);
  moved("NVSHMEM put, 64 blocks of 1024 threads", r, 64);
  nvshmem_finalize();
}

// main is rank 0, whose process makes the unique id and starts rank 1 with it as text.
int main(int argc, char **argv) {
  nvshmemx_uniqueid_t unique = NVSHMEMX_UNIQUEID_INITIALIZER;
  auto *bytes = reinterpret_cast<unsigned char *>(&unique);
  setenv("NVSHMEM_REMOTE_TRANSPORT", "none", 1);
  setenv("NVSHMEM_DISABLE_NVLS", "1", 1);
  if (argc == 2 && !strcmp(argv[1], "self")) {
    CHECK(nvshmemx_get_uniqueid(&unique));
    return alone(unique);
  }
  if (argc == 2) {
    for (size_t i = 0; i < sizeof unique; i++) sscanf(argv[1] + 2 * i, "%2hhx", bytes + i);
    be(1, unique);
    return 0;
  }
  int count = 0, status = 0;
  cudaError_t e = cudaGetDeviceCount(&count);
  if (count < 2) {
    fprintf(stderr, "nvshmem: two GPUs are needed: %d are here (%s)\n", count, cudaGetErrorString(e));
    return 3;
  }
  CHECK(nvshmemx_get_uniqueid(&unique));
  std::vector<char> text(2 * sizeof unique + 1);
  for (size_t i = 0; i < sizeof unique; i++) snprintf(&text[2 * i], 3, "%02x", bytes[i]);
  pid_t other = fork();
  if (other == 0) {
    execl("/proc/self/exe", argv[0], text.data(), nullptr);
    _exit(127);
  }
  be(0, unique);
  CHECK(waitpid(other, &status, 0) != other);
  return status != 0;
}
