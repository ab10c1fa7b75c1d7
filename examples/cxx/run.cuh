// SPDX-License-Identifier: Apache-2.0
//
// What the programs here share: how ranks start, and how a kernel is launched. nvcc makes a program for a GPU;
// another C++ compiler (g++ -x c++) makes one whose kernels are threads of the host, for the software device.
#pragma once
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include <doorbell.h>
#include <doorbell/gin.cuh>

inline void check(int code, const char *what) {
  if (code == DOORBELL_OK) return;
  fprintf(stderr, "%s: code %d: %s\n", what, code, doorbell_last_error());
  exit(1);
}

#ifdef __CUDACC__

constexpr const char *device_options = "device=cuda progress=thread";
#define KERNEL extern "C" __global__ void
#define ARGS const __grid_constant__

inline void check(cudaError_t e, const char *what) {
  if (e == cudaSuccess) return;
  fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(e));
  exit(1);
}

// load has the driver load a kernel, before any runs: loading waits for kernels that run, and those here wait for each other.
template <class A>
void load(void (*kernel)(A)) {
  cudaFuncAttributes unused;
  check(cudaFuncGetAttributes(&unused, kernel), "load kernel");
}

// launch runs a kernel as one block and waits until it has ended, which its own deadlines see to.
template <class A>
void launch(doorbell_handle comm, void (*kernel)(A), int threads, A args) {
  cudaStream_t stream;
  check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream");
  check(doorbell_kernels_begin(comm), "kernels begin");
  kernel<<<1, threads, 0, stream>>>(args);
  check(cudaGetLastError(), "launch");
  cudaError_t e;
  while ((e = cudaStreamQuery(stream)) == cudaErrorNotReady) std::this_thread::yield();
  check(e, "kernel");
  check(doorbell_kernels_end(comm), "kernels end");
  check(cudaStreamDestroy(stream), "stream");
}

DOORBELL_DEVICE int thread_index() { return threadIdx.x; }
DOORBELL_DEVICE int threads() { return blockDim.x; }
constexpr int warp_size = 32;

#else

constexpr const char *device_options = "device=soft progress=thread";
#define KERNEL extern "C" void
#define ARGS const

template <class A>
void load(void (*)(A)) {}

template <class A>
void launch(doorbell_handle, void (*kernel)(A), int, A args) {
  std::thread(kernel, args).join();
}

inline int thread_index() { return 0; }
inline int threads() { return 1; }
constexpr int warp_size = 1;

#endif

// run makes the ranks and calls rank for each: the one that a launcher made of this process ("doorbell run -n 2 -- PROGRAM"),
// else so many in this process. options are doorbell_open's.
inline void run(int ranks, const std::string &options, void (*rank)(doorbell_handle, const doorbell_info &)) {
  std::vector<doorbell_handle> comms(1);
  std::string all = std::string(device_options) + " " + options;
  if (getenv("DOORBELL_WORLD_SIZE")) {
    check(doorbell_open(all.c_str(), &comms[0]), "open");
  } else {
    comms.resize(ranks);
    check(doorbell_open_local(ranks, all.c_str(), comms.data()), "open");
  }
  std::vector<std::thread> threads;
  for (doorbell_handle c : comms)
    threads.emplace_back([c, rank] {
      doorbell_info info;
      check(doorbell_get_info(c, &info), "info");
      rank(c, info);
      check(doorbell_barrier(c), "barrier");  // nobody leaves while another still waits for it
    });
  for (std::thread &t : threads) t.join();
  for (doorbell_handle c : comms) check(doorbell_close(c), "close");
}

// buffer is memory of the host that kernels reach, registered as a window.
struct registered {
  doorbell_handle buffer, handle;
  doorbell::window window;
};
inline registered window_of(doorbell_handle comm, uint64_t bytes) {
  registered r;
  check(doorbell_alloc_host(comm, bytes, &r.buffer), "alloc");
  check(doorbell_register(comm, r.buffer, &r.handle, &r.window, sizeof r.window), "register");
  return r;
}

// outcome is what a kernel leaves for its host.
struct outcome {
  uint32_t status, wrong;
  uint64_t at, ns;
};
struct outcome_buffer {
  doorbell_handle buffer;
  outcome *device;
};
inline outcome_buffer outcome_of(doorbell_handle comm) {
  outcome_buffer b;
  void *device, *host;
  check(doorbell_alloc_host(comm, sizeof(outcome), &b.buffer), "alloc");
  check(doorbell_address(b.buffer, &device, &host), "address");
  b.device = static_cast<outcome *>(device);
  return b;
}

// judge reads it, and says why a kernel's wait ended badly.
inline outcome judge(const outcome_buffer &b, doorbell_handle devcomm, int rank) {
  outcome o;
  check(doorbell_read(b.buffer, 0, &o, sizeof o), "read");
  if (o.status == doorbell::ok && o.wrong == 0) return o;
  doorbell_cause cause;
  check(doorbell_get_cause(devcomm, &cause), "cause");
  fprintf(stderr, "rank %d: status %u, %u wrong at %llu; %s\n", rank, o.status, o.wrong, (unsigned long long)o.at, cause.status ? cause.text : "no cause");
  exit(1);
}
