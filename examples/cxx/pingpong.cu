// SPDX-License-Identifier: Apache-2.0
//
// Ping-pong: the kernels of two ranks send a message there and back, and each checks every message it got. See run.cuh.
//
//   go build -buildmode=c-shared -o libdoorbell.so ./plugins/libdoorbell
//   nvcc -std=c++17 -O3 -arch=native -I include examples/cxx/pingpong.cu -o pingpong ./libdoorbell.so
//   ./pingpong
#include "run.cuh"

using namespace doorbell;

constexpr uint64_t rounds = 1000, untimed = 100;  // how often it goes there and back; before both kernels are at it

struct args {
  dev_comm dc;
  window win;  // has the message that came last
  outcome *out;
};

// Message i is i*i+1. Rank 0 sends the even ones, rank 1 the odd ones.
KERNEL pingpong(ARGS args a) {
  context c(a.dc, 0);
  team all = world(a.dc);
  int32_t peer = 1 - all.rank;
  const uint64_t *message = reinterpret_cast<const uint64_t *>(a.win.Base);
  uint64_t start = 0;
  for (uint64_t i = 0; i < 2 * rounds; i++) {
    if (i == 2 * untimed) start = word::clock_ns();
    status s;
    if (i % 2 == uint64_t(all.rank))
      s = c.put_value(by_thread, all, peer, a.win, 0, i * i + 1, 8, strong_inc(0));
    else
      s = c.wait_signal(by_thread, 0, i / 2 + 1, from_peer(all, peer));
    if (s != ok) {
      a.out->status = s, a.out->at = i;
      return;
    }
    if (i % 2 != uint64_t(all.rank) && *message != i * i + 1) a.out->wrong++, a.out->at = i;
  }
  a.out->ns = word::clock_ns() - start;
  a.out->status = c.flush(by_thread);
}

void rank(doorbell_handle comm, const doorbell_info &info) {
  if (info.size != 2) {
    fprintf(stderr, "rank %d of %d: pingpong is for 2 ranks\n", info.rank, info.size);
    exit(1);
  }
  registered win = window_of(comm, 8);
  outcome_buffer out = outcome_of(comm);
  args a;
  doorbell_handle devcomm;
  check(doorbell_devcomm_create(comm, "signals=1 sharing=thread", &devcomm, &a.dc, sizeof a.dc), "device communicator");
  a.win = win.window, a.out = out.device;
  load(pingpong);
  check(doorbell_barrier(comm), "barrier");
  launch(comm, pingpong, 1, a);
  outcome o = judge(out, devcomm, info.rank);
  printf("rank %d of 2, %s over %s: %llu messages received, all right, %.2f us there and back\n", info.rank, info.device, info.net,
         (unsigned long long)rounds, double(o.ns) / 1e3 / (rounds - untimed));
}

int main(int argc, char **argv) { run(2, argc > 1 ? argv[1] : "", rank); }
