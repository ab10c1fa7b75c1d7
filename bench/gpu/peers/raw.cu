// SPDX-License-Identifier: Apache-2.0
//
// What two GPUs of a host take over NVLink, with nothing of ours: round trips of flags, copies by stores and by bulk copies of
// so many blocks, and copies by the copy engine. A line of JSON each; every wait ends. Exit 3: there are no two GPUs that reach
// each other's memory.
//   nvcc -O3 -std=c++17 -arch=sm_90 -o raw bench/gpu/peers/raw.cu
#include "../moves.cuh"
#include "../trips.cuh"

constexpr size_t large = 512 << 20, piece_bytes = 4 << 20;
constexpr int in_a_row = 6;  // copies of all, as the test of ours has them

struct gpu {
  cudaStream_t stream;
  uint64_t *words;           // flags and payloads of round trips
  uint8_t *bytes;            // large
  uint32_t *ns, *wrong;
};

template <kind k>
__global__ void trip(uint64_t *mine, uint64_t *theirs, bool first, uint32_t *ns) {
  ping<k>(mine, theirs, mine + 16, theirs + 32, first, ns, uint64_t(samples) * mean_of);
}

template <kind k>
static void trips(const char *name, gpu *g) {
  for (int d = 0; d < 2; d++) {
    CHECK(cudaSetDevice(d));
    CHECK(cudaMemset(g[d].words, 0, 4096));
    CHECK(cudaMemset(g[d].ns, 0, samples * sizeof(uint32_t)));
    CHECK(cudaDeviceSynchronize());
  }
  for (int d = 0; d < 2; d++) {
    CHECK(cudaSetDevice(d));
    trip<k><<<1, 1, 0, g[d].stream>>>(g[d].words, g[1 - d].words, d == 0, d == 0 ? g[d].ns : nullptr);
    CHECK(cudaGetLastError());
  }
  for (int d = 0; d < 2; d++) CHECK(cudaStreamSynchronize(g[d].stream));
  print(name, sampled(g[0].ns));
}

__global__ void __launch_bounds__(1024, 1) by_stores(uint8_t *dst, const uint8_t *src, uint64_t bytes) {
  share s(bytes);
  stores(dst + s.from, src + s.from, s.bytes);
}

__global__ void __launch_bounds__(32, 1) by_bulk(pieces p, uint32_t *failed) {
  __shared__ __align__(128) room r;
  if (threadIdx.x == 0 && !bulk(p, r)) atomicAdd(failed, 1);
}

__device__ uint32_t pattern(uint64_t i, uint32_t seed) { return uint32_t(i * 2654435761u) ^ seed; }

__global__ void fill(uint32_t *p, uint64_t words, uint32_t seed) {
  for (uint64_t i = blockIdx.x * uint64_t(blockDim.x) + threadIdx.x; i < words; i += uint64_t(gridDim.x) * blockDim.x) p[i] = pattern(i, seed);
}

__global__ void compare(const uint32_t *p, uint64_t words, uint32_t seed, uint32_t *wrong) {
  for (uint64_t i = blockIdx.x * uint64_t(blockDim.x) + threadIdx.x; i < words; i += uint64_t(gridDim.x) * blockDim.x)
    if (p[i] != pattern(i, seed)) atomicAdd(wrong, 1);
}

// moved measures copies of GPU 0's bytes to GPU 1, all pieces so many times in a row, and compares what came of the last.
template <class F>
static void moved(const char *name, gpu *g, size_t bytes, int pieces, int times, F copy) {
  static uint32_t seed;
  cudaEvent_t begin, end;
  CHECK(cudaSetDevice(0));
  fill<<<132, 256, 0, g[0].stream>>>(reinterpret_cast<uint32_t *>(g[0].bytes), large / 4, ++seed);
  CHECK(cudaEventCreate(&begin));
  CHECK(cudaEventCreate(&end));
  std::vector<double> rates;
  for (int round = 0; round < 6; round++) {
    CHECK(cudaEventRecord(begin, g[0].stream));
    for (int i = 0; i < times * pieces; i++) copy(i % pieces);
    CHECK(cudaGetLastError());
    CHECK(cudaEventRecord(end, g[0].stream));
    CHECK(cudaStreamSynchronize(g[0].stream));
    float ms;
    CHECK(cudaEventElapsedTime(&ms, begin, end));
    if (round) rates.push_back(double(bytes) * pieces * times / ms / 1e6);  // the first warms up
  }
  CHECK(cudaEventDestroy(begin));
  CHECK(cudaEventDestroy(end));
  uint32_t wrong[2];
  CHECK(cudaSetDevice(1));
  compare<<<132, 256, 0, g[1].stream>>>(reinterpret_cast<uint32_t *>(g[1].bytes), bytes * pieces / 4, seed, g[1].wrong);
  CHECK(cudaStreamSynchronize(g[1].stream));
  for (int d = 0; d < 2; d++) CHECK(cudaMemcpy(wrong + d, g[d].wrong, sizeof *wrong, cudaMemcpyDefault));
  if (wrong[0] || wrong[1]) {
    printf("{\"floor\":\"%s\",\"error\":\"%u waits ended at their limit, %u words are wrong\"}\n", name, wrong[0], wrong[1]);
    exit(1);
  }
  std::sort(rates.begin(), rates.end());
  printf("{\"floor\":\"%s\",\"GBps\":%.2f,\"p50_us\":%.3f}\n", name, rates[rates.size() / 2], bytes / rates[rates.size() / 2] / 1e3);
}

int main() {
  int count = 0, reach[2] = {};
  cudaError_t e = cudaGetDeviceCount(&count);
  if (count >= 2)
    for (int d = 0; d < 2; d++) CHECK(cudaDeviceCanAccessPeer(&reach[d], d, 1 - d));
  if (!reach[0] || !reach[1]) {
    fprintf(stderr, "raw: two GPUs that reach each other's memory are needed: %d GPUs are here (%s)\n", count, cudaGetErrorString(e));
    return 3;
  }
  gpu g[2];
  for (int d = 0; d < 2; d++) {
    CHECK(cudaSetDevice(d));
    CHECK(cudaDeviceEnablePeerAccess(1 - d, 0));
    CHECK(cudaStreamCreateWithFlags(&g[d].stream, cudaStreamNonBlocking));
    CHECK(cudaMalloc(&g[d].words, 4096));
    CHECK(cudaMalloc(&g[d].bytes, large));
    CHECK(cudaMalloc(&g[d].ns, samples * sizeof(uint32_t)));
    CHECK(cudaMalloc(&g[d].wrong, sizeof(uint32_t)));
    CHECK(cudaMemset(g[d].wrong, 0, sizeof(uint32_t)));
  }
  trips<flag_relaxed>("two GPUs, flag, relaxed", g);
  trips<flag_release>("two GPUs, flag, release", g);
  trips<word_release>("two GPUs, 8 B and flag, release", g);
  trips<word_add>("two GPUs, 8 B and flag, release by add", g);
  moved("two GPUs, copy engine", g, large, 1, in_a_row, [&](int) { CHECK(cudaMemcpyPeerAsync(g[1].bytes, 1, g[0].bytes, 0, large, g[0].stream)); });
  moved("two GPUs, 16 copies of 4 MiB", g, piece_bytes, 16, 1, [&](int i) {
    CHECK(cudaMemcpyPeerAsync(g[1].bytes + i * piece_bytes, 1, g[0].bytes + i * piece_bytes, 0, piece_bytes, g[0].stream));
  });
  for (int blocks : {4, 8, 16, 32, 64, 132}) {
    char name[64];
    snprintf(name, sizeof name, "two GPUs, stores, %d blocks", blocks);
    moved(name, g, large, 1, in_a_row, [&](int) { by_stores<<<blocks, 1024, 0, g[0].stream>>>(g[1].bytes, g[0].bytes, large); });
    snprintf(name, sizeof name, "two GPUs, bulk copies, %d blocks", blocks);
    moved(name, g, large, 1, in_a_row, [&](int) { by_bulk<<<blocks, 32, 0, g[0].stream>>>({g[1].bytes, g[0].bytes, large, 1000000000}, g[0].wrong); });
  }
}
