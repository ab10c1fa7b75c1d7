// SPDX-License-Identifier: Apache-2.0
//
// CUDA C++ twins of the kernels that copy windows (bench/kernels, bench/bulk): same entries, same arguments, same steps. RawCopy
// takes Copy's arguments and has nothing of ours: it is what gin's checks and bounds are measured against.
//   nvcc -O3 -std=c++17 -arch=sm_90 -ptx bench/gpu/copies.cu -o copies.ptx
// TestCopies runs them in turn with ours, in one process.
#include "../../include/doorbell/gin.cuh"
#include "args.cuh"
#include "moves.cuh"

using namespace doorbell;

extern "C" __global__ void __launch_bounds__(1024, 1) Copy(const __grid_constant__ copy_args a) {
  context c(a.DC, 0);
  share s(a.Bytes);
  if (c.lsa_put(by_block, a.Peer, a.Recv, s.from, a.Send.Base + s.from, s.bytes) != ok && threadIdx.x == 0) atomicAdd(a.Refused, 1);
}

extern "C" __global__ void __launch_bounds__(1024, 1) RawCopy(const __grid_constant__ copy_args a) {
  share s(a.Bytes);
  stores(lsa_pointer(a.Recv, a.Peer, s.from), a.Send.Base + s.from, s.bytes);
}

extern "C" __global__ void __launch_bounds__(32, 1) BulkCopy(const __grid_constant__ bulk_copy_args a) {
  __shared__ __align__(128) room r;
  if (threadIdx.x) return;
  if (!bulk({lsa_pointer(a.Recv, a.Peer, 0), a.Send.Base, a.Bytes, a.Timeout}, r)) atomicAdd(a.Failed, 1);
}
