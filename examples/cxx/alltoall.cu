// SPDX-License-Identifier: Apache-2.0
//
// All-to-all: each rank's kernel sends a block of its own to each rank and checks what it gets from each, ten times over.
// On a GPU a warp serves a peer. See run.cuh.
#include "run.cuh"

using namespace doorbell;

constexpr uint64_t words = 1000, times = 10;  // of 8 bytes in a block

struct args {
  dev_comm dc;
  window send, recv;  // a block for each rank
  outcome *out;
};

DOORBELL_DEVICE uint64_t pattern(uint64_t from, uint64_t to, uint64_t time, uint64_t word) {
  return (((from << 8 | to) << 8 | time) << 32 | word) * 0x9e3779b97f4a7c15;
}

KERNEL alltoall(ARGS args a) {
  context c(a.dc, 0);
  team all = world(a.dc);
  const uint64_t bytes = 8 * words;
  const int lane = thread_index() % warp_size, warp = thread_index() / warp_size, warps = threads() / warp_size;
  uint32_t bad = 0, wrong = 0, all_bad = 0;  // of this warp; of the block, the same in all its threads
  uint64_t start = word::clock_ns();
  for (uint64_t time = 0; time < times && all_bad == 0; time++) {
    for (int32_t p = warp; p < all.ranks; p += warps) {
      uint64_t *block = reinterpret_cast<uint64_t *>(a.send.Base + p * bytes);
      for (uint64_t i = lane; i < words; i += warp_size) block[i] = pattern(all.rank, p, time, i);
      bad |= c.put(by_warp, all, p, a.recv, all.rank * bytes, a.send, p * bytes, bytes, strong_inc(all.rank));
    }
    for (int32_t p = warp; p < all.ranks; p += warps) {
      bad |= c.wait_signal(by_warp, p, time + 1, from_peer(all, p));
      const uint64_t *block = reinterpret_cast<const uint64_t *>(a.recv.Base + p * bytes);
      for (uint64_t i = lane; i < words; i += warp_size) wrong += block[i] != pattern(p, all.rank, time, i);
    }
    all_bad |= c.flush(by_block);                        // blocks may be written anew
    all_bad |= c.barrier(by_block, all, 0, fence_none);  // and each has looked at what it got
  }
  if (wrong) a.out->wrong = wrong;
  if (bad | all_bad) a.out->status = bad | all_bad;
  if (thread_index() == 0) a.out->ns = word::clock_ns() - start;
}

void rank(doorbell_handle comm, const doorbell_info &info) {
  uint64_t n = uint64_t(info.size);
  registered send = window_of(comm, n * 8 * words), recv = window_of(comm, n * 8 * words);
  outcome_buffer out = outcome_of(comm);
  args a;
  doorbell_handle devcomm;
  std::string needs = "barriers=1 signals=" + std::to_string(n);
  check(doorbell_devcomm_create(comm, needs.c_str(), &devcomm, &a.dc, sizeof a.dc), "device communicator");
  a.send = send.window, a.recv = recv.window, a.out = out.device;
  load(alltoall);
  check(doorbell_barrier(comm), "barrier");
  launch(comm, alltoall, 4 * warp_size, a);
  outcome o = judge(out, devcomm, info.rank);
  printf("rank %d of %d, %s over %s: %llu bytes from each rank, %llu times, all right, %.1f us each\n", info.rank, info.size, info.device, info.net,
         (unsigned long long)(8 * words), (unsigned long long)times, double(o.ns) / 1e3 / times);
}

int main(int argc, char **argv) { run(4, argc > 1 ? argv[1] : "", rank); }
