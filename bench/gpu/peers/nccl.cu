// SPDX-License-Identifier: Apache-2.0
//
// NCCL on two GPUs of a host: round trips through its LSA pointers by the same kernel as bench/gpu/peers/raw.cu, its LSA barrier,
// and host collectives; or with the argument "self" on one GPU: what a rank sends to itself through them. A line of JSON each; a wait
// of ours ends, NCCL's own ends with the process (timeout). Exit 3: no two GPUs. NCCL_NVLS_ENABLE=0 is set here: nothing is multicast.
//   nvcc -O3 -std=c++17 -arch=sm_90 -I NCCL/include -o nccl bench/gpu/peers/nccl.cu NCCL/lib/libnccl.so.2
#include <nccl.h>
#include <nccl_device.h>

#include <chrono>
#include <thread>

#include "../moves.cuh"
#include "../trips.cuh"

constexpr size_t window_bytes = 16 << 20, large = 256 << 20, send_at = 4096, recv_at = 8 << 20;
constexpr int barriers_timed = 8192;

struct rank {
  int id;
  ncclComm_t comm;
  cudaStream_t stream;
  ncclWindow_t window;
  ncclDevComm_t dev;
  uint8_t *memory, *send, *recv;
  uint32_t *ns;
};

__global__ void trip(ncclWindow_t w, int me, uint32_t *ns) {
  uint64_t *mine = static_cast<uint64_t *>(ncclGetLocalPointer(w, 0)), *theirs = static_cast<uint64_t *>(ncclGetLsaPointer(w, 0, 1 - me));
  ping<word_add>(mine, theirs, mine + 16, theirs + 32, me == 0, ns, uint64_t(samples) * mean_of);
}

// self is a copy by the block's threads, and a flag raised behind it.
__global__ void __launch_bounds__(1024, 1) self(ncclWindow_t w, size_t bytes, uint32_t *ns) {
  auto *mine = static_cast<uint8_t *>(ncclGetLocalPointer(w, 0)), *peer = static_cast<uint8_t *>(ncclGetLsaPointer(w, 0, 0));
  auto *flag = reinterpret_cast<uint64_t *>(mine), *raised = reinterpret_cast<uint64_t *>(peer);
  to_self(flag, ns, [&](uint64_t i) {
    if (bytes != 8)
      stores(peer + recv_at, mine + send_at, bytes);
    else if (threadIdx.x == 0)
      raised[recv_at / 8] = flag[send_at / 8];
    __syncthreads();
    if (threadIdx.x == 0) release(raised, i);
  });
}

__global__ void barrier(ncclDevComm_t dev, uint32_t *ns) {
  ncclLsaBarrierSession<ncclCoopCta> b(ncclCoopCta(), dev, ncclTeamTagLsa(), 0);
  uint64_t last = now_ns();
  for (int i = 1; i <= barriers_timed; i++) {
    b.sync(ncclCoopCta(), cuda::memory_order_acq_rel);
    if (threadIdx.x == 0 && i % mean_of == 0) {
      uint64_t now = now_ns();
      ns[i / mean_of - 1] = uint32_t((now - last) / mean_of);
      last = now;
    }
  }
}
static_assert(barriers_timed / mean_of == samples);

static void clear(rank &r) {
  CHECK(cudaMemset(r.ns, 0, samples * sizeof(uint32_t)));
  CHECK(cudaMemset(r.memory, 0, 4096));
  CHECK(cudaDeviceSynchronize());
}

// both runs a step on each rank, in a thread of its own: NCCL's calls wait for each other.
template <class F>
static void both(rank *r, F step) {
  std::thread threads[2];
  for (int d = 0; d < 2; d++)
    threads[d] = std::thread([&, d] {
      CHECK(cudaSetDevice(d));
      step(r[d]);
    });
  for (std::thread &t : threads) t.join();
}

static void make(rank &r) {
  CHECK(cudaStreamCreateWithFlags(&r.stream, cudaStreamNonBlocking));
  CHECK(ncclMemAlloc(reinterpret_cast<void **>(&r.memory), window_bytes));
  CHECK(cudaMalloc(&r.send, large));
  CHECK(cudaMalloc(&r.recv, large));
  CHECK(cudaMalloc(&r.ns, samples * sizeof(uint32_t)));
  CHECK(ncclCommWindowRegister(r.comm, r.memory, window_bytes, &r.window, NCCL_WIN_COLL_SYMMETRIC));
  ncclDevCommRequirements needs = {};
  needs.lsaBarrierCount = 1;
  CHECK(ncclDevCommCreate(r.comm, &needs, &r.dev));
}

// collective measures calls of both ranks, queued 20 at a time.
template <class F>
static void collective(const char *what, size_t bytes, rank *r, F call) {
  constexpr int times = 20;
  std::vector<double> us;
  for (int round = 0; round < 9; round++) {
    double took[2];
    both(r, [&](rank &x) {
      CHECK(cudaStreamSynchronize(x.stream));
      auto start = std::chrono::steady_clock::now();
      for (int i = 0; i < times; i++) CHECK(call(x));
      CHECK(cudaStreamSynchronize(x.stream));
      took[x.id] = std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count() / times;
    });
    if (round > 1) us.push_back(std::max(took[0], took[1]));  // the first ones warm up
  }
  std::sort(us.begin(), us.end());
  printf("{\"floor\":\"NCCL %s, %zu B\",\"p50_us\":%.3f,\"min_us\":%.3f}\n", what, bytes, us[us.size() / 2], us[0]);
}

// alone is one rank, which sends to itself.
static int alone() {
  rank r = {};
  CHECK(cudaSetDevice(0));
  CHECK(ncclCommInitAll(&r.comm, 1, nullptr));
  make(r);
  for (way w : ways) {
    clear(r);
    self<<<1, w.threads, 0, r.stream>>>(r.window, w.bytes, r.ns);
    CHECK(cudaGetLastError());
    CHECK(cudaStreamSynchronize(r.stream));
    char name[80];
    snprintf(name, sizeof name, "NCCL LSA to itself, %zu B, %d threads", w.bytes, w.threads);
    print(name, sampled(r.ns));
  }
  CHECK(ncclDevCommDestroy(r.comm, &r.dev));
  CHECK(ncclCommDestroy(r.comm));
  return 0;
}

int main(int argc, char **) {
  setenv("NCCL_NVLS_ENABLE", "0", 1);
  if (argc == 2) return alone();
  int count = 0, version = 0;
  cudaError_t e = cudaGetDeviceCount(&count);
  if (count < 2) {
    fprintf(stderr, "nccl: two GPUs are needed: %d are here (%s)\n", count, cudaGetErrorString(e));
    return 3;
  }
  CHECK(ncclGetVersion(&version));
  fprintf(stderr, "NCCL %d\n", version);
  ncclComm_t comms[2];
  CHECK(ncclCommInitAll(comms, 2, nullptr));
  rank r[2] = {};
  for (int d = 0; d < 2; d++) r[d].id = d, r[d].comm = comms[d];
  both(r, make);

  both(r, clear);
  both(r, [](rank &x) {
    trip<<<1, 1, 0, x.stream>>>(x.window, x.id, x.id == 0 ? x.ns : nullptr);
    CHECK(cudaGetLastError());
    CHECK(cudaStreamSynchronize(x.stream));
  });
  CHECK(cudaSetDevice(0));
  print("NCCL LSA, 8 B and flag, release by add, 1 thread", sampled(r[0].ns));

  both(r, clear);
  both(r, [](rank &x) {
    barrier<<<1, 32, 0, x.stream>>>(x.dev, x.ns);
    CHECK(cudaGetLastError());
    CHECK(cudaStreamSynchronize(x.stream));
  });
  CHECK(cudaSetDevice(0));
  print("NCCL LSA barrier, 32 threads", sampled(r[0].ns));

  for (size_t bytes : {size_t(8), size_t(64) << 10, size_t(1) << 20, size_t(64) << 20}) {
    collective("all-reduce", bytes, r, [&](rank &x) { return ncclAllReduce(x.send, x.recv, bytes / 4, ncclFloat, ncclSum, x.comm, x.stream); });
    collective("all-gather", bytes, r, [&](rank &x) { return ncclAllGather(x.send, x.recv, bytes / 2, ncclInt8, x.comm, x.stream); });
    collective("all-to-all", bytes, r, [&](rank &x) {
      CHECK(ncclGroupStart());
      for (int p = 0; p < 2; p++) {
        CHECK(ncclSend(x.send + p * (bytes / 2), bytes / 2, ncclInt8, p, x.comm, x.stream));
        CHECK(ncclRecv(x.recv + p * (bytes / 2), bytes / 2, ncclInt8, p, x.comm, x.stream));
      }
      return ncclGroupEnd();
    });
  }
  both(r, [](rank &x) { CHECK(ncclDevCommDestroy(x.comm, &x.dev)); });
  both(r, [](rank &x) { CHECK(ncclCommDestroy(x.comm)); });
}
