// SPDX-License-Identifier: Apache-2.0
//
// Which way should a small payload travel beside its descriptor? Build and run on a machine with an NVIDIA GPU:
//   nvcc -O3 -arch=sm_90 -o cell bench/gpu/cell.cu && ./cell
// Figures of one run: bench/results/gpu-cell.jsonl.
#include <cstdio>
#include <cstdint>
#include <cuda_runtime.h>
// One warp posts descriptors of 64 bytes with a payload beside them into pinned host memory, as the Proxy's producer does.
// mode 0: phase: payload at 7 bytes a word, each word with a phase bit, no fence. 1: release: 8-byte words, then one
// system fence before the descriptor's first word. 2: one release for 8 puts. 3: descriptor alone.
__global__ void post(uint64_t *slots, uint64_t *cells, const uint8_t *src, int bytes, int mode, int n, int depth, uint64_t *out) {
  int lane = threadIdx.x;
  uint64_t t0 = clock64();
  for (int i = 0; i < n; i++) {
    uint64_t phase = (uint64_t)((i / depth & 1) ^ 1) << 63;
    uint64_t *s = slots + (i % depth) * 8, *c = cells + (i % depth) * 40;
    if (mode == 0) {
      int words = (bytes + 6) / 7;
      for (int w = lane; w < words; w += 32) {
        uint64_t v = 0;
        int at = w * 7, k = min(7, bytes - at);
        for (int j = 0; j < k; j++) v |= (uint64_t)src[at + j] << (8 * j);
        asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(c + w), "l"(v | phase) : "memory");
      }
    } else if (mode < 3) {
      int words = (bytes + 7) / 8;
      for (int w = lane; w < words; w += 32)
        asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(c + w), "l"(((const uint64_t *)src)[w]) : "memory");
      __syncwarp();
      if (lane == 0 && (mode == 1 || i % 8 == 7)) asm volatile("fence.acq_rel.sys;" ::: "memory");
    }
    __syncwarp();
    if (lane < 8) asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(s + lane), "l"((uint64_t)i | phase) : "memory");
    __syncwarp();
  }
  if (lane == 0) *out = (clock64() - t0) / n;
}
int main() {
  const int depth = 256, n = 4096;
  uint64_t *slots, *cells, *out; uint8_t *src;
  cudaHostAlloc(&slots, depth * 64, cudaHostAllocMapped);
  cudaHostAlloc(&cells, depth * 320, cudaHostAllocMapped);
  cudaMalloc(&src, 4096); cudaMallocHost(&out, 64);
  int khz = 0; cudaDeviceGetAttribute(&khz, cudaDevAttrClockRate, 0);
  const char *name[] = {"phase", "release each", "release of 8", "no payload"};
  for (int bytes : {16, 64, 128, 256})
    for (int mode = 0; mode < 4; mode++) {
      double best = 1e18, all[9];
      for (int r = 0; r < 9; r++) {
        post<<<1, 32>>>(slots, cells, src, bytes, mode, n, depth, out);
        if (cudaDeviceSynchronize() != cudaSuccess) return 1;
        all[r] = *out / (khz / 1e6);
        if (all[r] < best) best = all[r];
      }
      for (int a = 0; a < 9; a++) for (int b = a + 1; b < 9; b++) if (all[b] < all[a]) { double x = all[a]; all[a] = all[b]; all[b] = x; }
      printf("{\"bytes\":%d,\"mode\":\"%s\",\"ns_min\":%.1f,\"ns_median\":%.1f}\n", bytes, name[mode], best, all[4]);
    }
}
