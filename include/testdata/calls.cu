// SPDX-License-Identifier: Apache-2.0
//
// Two ranks try each call of gin.cuh against the library, on a GPU or, by g++, as threads: calls OPTIONS. Made as
// examples/cxx/pingpong.cu is, with examples/cxx on the include path.
#include "run.cuh"

using namespace doorbell;

struct args {
  dev_comm dc;
  window send, recv;
  signal_window sigs;
  outcome *out;
};

constexpr uint64_t window_bytes = 4096;
constexpr int signals = 5, counters = 2;  // for each of two contexts

DOORBELL_DEVICE uint8_t pattern(int32_t from, uint64_t round, uint64_t at) { return uint8_t(from * 101 + round * 31 + at * 7 + 1); }

DOORBELL_DEVICE bool is_sent(const uint8_t *p, int32_t from, uint64_t round, uint64_t bytes) {
  for (uint64_t i = 0; i < bytes; i++)
    if (p[i] != pattern(from, round, i)) return false;
  return true;
}

// All threads of the block see the same: what is wrong is seen by all of them.
#define WANT(condition)                                                \
  if (!(condition)) {                                                  \
    if (thread_index() == 0) a.out->wrong = 1, a.out->at = __LINE__;   \
    return;                                                            \
  }
#define OK(call) WANT((call) == ok)

KERNEL calls(ARGS args a) {
  const coop co = by_block;
  context c(a.dc, 0), second(a.dc, 1);
  const team all = world(a.dc);
  const int32_t me = all.rank, peer = 1 - me;
  const source from = from_peer(all, peer);
  const uint8_t *recv = a.recv.Base;
  uint64_t round = 0;

  // Puts: in the descriptor, in its cell, by the window, of even and of odd addresses; and their counters.
  const uint64_t sizes[] = {0, 1, 7, 8, 9, 64, 65, 2000};
  for (uint64_t bytes : sizes)
    for (uint64_t off : {uint64_t(0), uint64_t(3)}) {
      for (uint64_t i = thread_index(); i < bytes; i += threads()) a.send.Base[off + i] = pattern(me, round, i);
      OK(c.put(co, all, peer, a.recv, off, a.send, off, bytes, strong_inc(0).counter(0)));
      round++;
      OK(c.wait_signal(co, 0, round, from));
      WANT(is_sent(recv + off, peer, round - 1, bytes));
      OK(c.wait_counter(co, 0, round, from));
      OK(c.barrier(co, all, 0, fence_none));
    }
  WANT(c.read_counter(0) == round && c.read_signal(0) == round);
  OK(c.reset_counter(co, 0));
  OK(c.reset_signal(co, 0));
  WANT(c.read_counter(0) == 0 && c.read_signal(0) == 0);
  OK(c.barrier(co, all, 0, fence_none));

  // Values, and puts that are not told of one by one.
  OK(c.put_value(co, all, peer, a.recv, 16, 0x0123456789abcdef, 8, none().aggregate()));
  OK(c.put_value(co, all, peer, a.recv, 24, 0xfedc, 2, strong_add(0, 3).skip_credit()));
  OK(c.wait_signal(co, 0, 3, from));
  WANT(*reinterpret_cast<const uint64_t *>(recv + 16) == 0x0123456789abcdef && recv[24] == 0xdc && recv[25] == 0xfe);
  OK(c.reset_signal(co, 0));
  WANT(c.read_signal(0) == 0);

  // Gets: by a request, by a counter.
  for (uint64_t i = thread_index(); i < 100; i += threads()) a.send.Base[i] = pattern(me, 77, i);
  OK(c.barrier(co, all, 0, fence_put));
  request r;
  bool done = false;
  OK(c.get(co, all, peer, a.send, 0, a.recv, 1024, 100, none()));
  OK(c.flush_async(co, all, peer, r));
  OK(c.wait(co, r));
  OK(c.test(r, done));
  WANT(done && is_sent(recv + 1024, peer, 77, 100));
  OK(c.get(co, all, peer, a.send, 0, a.recv, 1201, 100, none().counter(1)));
  OK(c.wait_counter(co, 1, 1, from_team(all)));
  WANT(is_sent(recv + 1201, peer, 77, 100));
  OK(c.flush(co));
  OK(c.flush_peer(co, all, peer));

  // Signals: weak and strong, with fewer bits, and shadows.
  OK(c.signal(co, all, peer, strong_add(1, 5)));
  OK(c.signal(co, all, peer, weak_add(1, 7)));
  OK(c.wait_signal(co, 1, 12, from_any()));
  WANT(c.read_signal(1) == 12 && c.shadow(1) == 0);
  OK(c.barrier(co, all, 0, fence_none));
  if (thread_index() == 0) c.add_shadow(1, 13);
  OK(c.signal(co, all, peer, weak_inc(1)));
  OK(c.wait_meet(co, 1, from));
  OK(c.signal(co, all, peer, strong_add(2, 250)));
  OK(c.signal(co, all, peer, strong_add(2, 10)));
  OK(c.wait_signal(co, 2, 510, from, 8));  // 254, of which 4 is 6 more
  OK(c.reset_signal(co, 1));
  WANT(c.shadow(1) == 0);

  // Signals at addresses, of the network and of LSA peers.
  OK(c.signal(co, all, peer, strong_inc_at(a.sigs, 8)));
  OK(c.signal(co, all, peer, weak_add_at(a.sigs, 8, 4)));
  OK(c.lsa_signal_at(co, lsa_rank(a.dc, peer), a.sigs, 8, 2));
  OK(c.wait_signal_at(co, a.sigs, 8, 7, from));
  WANT(c.read_signal_at(a.sigs, 8) == 7 && c.read_signal_at(a.sigs, 16) == 0);
  OK(c.lsa_barrier(co, 0));
  OK(c.reset_signal_at(co, a.sigs, 8));
  WANT(c.read_signal_at(a.sigs, 8) == 0);

  // Stores to LSA peers.
  for (uint64_t bytes : {uint64_t(8), uint64_t(100)}) {
    OK(c.lsa_put(co, lsa_rank(a.dc, peer), a.recv, 2048, a.send.Base, bytes));
    OK(c.lsa_signal(co, lsa_rank(a.dc, peer), 3, bytes));
    OK(c.wait_signal(co, 3, bytes == 8 ? 8 : 108, from));
    WANT(is_sent(recv + 2048, peer, 77, bytes));
    OK(c.lsa_barrier(co, 1));
  }
  WANT(lsa_pointer(a.recv, a.dc.LSARank, 5) == recv + 5);

  // What was stored and put before a barrier is there after it; another context.
  for (uint64_t i = 0; i < 20; i++) {
    for (uint64_t k = thread_index(); k < 512; k += threads()) a.send.Base[k] = pattern(me, i, k);
    OK(c.lsa_put(co, lsa_rank(a.dc, peer), a.recv, 3072, a.send.Base, 512));
    OK(c.lsa_barrier(co, 1));
    WANT(is_sent(recv + 3072, peer, i, 512));
    for (uint64_t k = 0; k < 512; k += 128) OK(second.put(co, all, peer, a.recv, 256 + k, a.send, k, 128, none()));
    OK(second.barrier(co, all, 1, fence_put));
    WANT(is_sent(recv + 256, peer, i, 512));
    OK(second.barrier(co, all, 1, fence_get));
  }
  OK(second.put_value(co, all, peer, a.recv, 0, uint64_t(me), 1, strong_inc(0)));
  OK(second.wait_signal(co, 0, 1, from));
  WANT(recv[0] == peer && c.read_signal(0) == 0);

  // What is refused.
  window stale = a.recv;
  stale.Gen ^= 1;
  request foreign = {0, 0, 0, 2};
  context nobody(a.dc, 2);
  WANT(c.put(co, all, 2, a.recv, 0, a.send, 0, 8, none()) == invalid);
  WANT(c.put(co, all, peer, a.recv, window_bytes - 7, a.send, 0, 8, none()) == invalid);
  WANT(c.put(co, all, peer, a.recv, 0, a.send, ~uint64_t(0), 8, none()) == invalid);
  WANT(c.put(co, all, peer, stale, 0, a.send, 0, 8, none()) == invalid);
  WANT(c.put(co, all, peer, a.recv, 0, a.send, 0, 8, strong_inc(signals)) == invalid);
  WANT(c.put(co, all, peer, a.recv, 0, a.send, 0, 8, none().counter(-1)) == invalid);
  WANT(c.put_value(co, all, peer, a.recv, 0, 1, 9, none()) == invalid);
  WANT(c.get(co, all, peer, a.recv, 0, a.send, 0, 8, strong_inc(0)) == invalid);
  WANT(c.signal(co, all, peer, strong_inc_at(a.sigs, 4)) == invalid);
  WANT(c.wait_signal(co, 0, 1, from, 65) == invalid && c.wait_signal(co, -1, 0, from) == invalid);
  WANT(c.wait(co, foreign) == invalid && c.lsa_put(co, 2, a.recv, 0, a.send.Base, 8) == invalid);
  WANT(c.barrier(co, all, 9, fence_none) == invalid && nobody.flush(co) == invalid);

  // A wait in vain ends by its deadline, and nothing sticks.
  c.timeout_ns = 2000000;
  WANT(c.wait_signal(co, 4, 1, from) == timeout);
  c.timeout_ns = a.dc.Timeout;
  OK(c.barrier(co, all, 0, fence_none));
  OK(c.signal(co, all, peer, strong_inc(4)));
  OK(c.wait_signal(co, 4, 1, from));
  OK(c.flush(co));
}

// stuck waits for what never comes.
KERNEL stuck(ARGS args a) {
  context c(a.dc, 0);
  a.out->status = c.wait_signal(by_thread, 0, 1000, from_peer(world(a.dc), 1 - a.dc.Rank));
}

struct made {
  args a;
  doorbell_handle devcomm, sigs;
  outcome_buffer out;
};

made make(doorbell_handle comm) {
  made m;
  m.a.send = window_of(comm, window_bytes).window, m.a.recv = window_of(comm, window_bytes).window;
  check(doorbell_register_signals(comm, 4, &m.sigs, &m.a.sigs, sizeof m.a.sigs), "register signals");
  std::string needs = "contexts=2 barriers=2 small_put=64 signals=" + std::to_string(signals) + " counters=" + std::to_string(counters);
  check(doorbell_devcomm_create(comm, needs.c_str(), &m.devcomm, &m.a.dc, sizeof m.a.dc), "device communicator");
  m.out = outcome_of(comm);
  m.a.out = m.out.device;
  return m;
}

void rank(doorbell_handle comm, const doorbell_info &info) {
  made m = make(comm);
  load(calls);
  check(doorbell_barrier(comm), "barrier");
  launch(comm, calls, 64, m.a);
  judge(m.out, m.devcomm, info.rank);
  printf("rank %d of 2, %s over %s: all calls right\n", info.rank, info.device, info.net);
}

// lose has rank 1 leave while rank 0's kernel waits for it.
void lose(const std::string &options) {
  doorbell_handle comms[2];
  made m[2];
  check(doorbell_open_local(2, options.c_str(), comms), "open");
  std::thread other([&] { m[1] = make(comms[1]); });
  m[0] = make(comms[0]);
  other.join();
  load(stuck);
  std::thread leaves([&] { check(doorbell_close(comms[1]), "close"); });
  launch(comms[0], stuck, 1, m[0].a);
  leaves.join();
  outcome o;
  doorbell_cause cause;
  check(doorbell_read(m[0].out.buffer, 0, &o, sizeof o), "read");
  check(doorbell_get_cause(m[0].devcomm, &cause), "cause");
  if (o.status != peer_lost || cause.status != DOORBELL_PEER_LOST || cause.peer != 1 || cause.wanted != 1000 || strcmp(cause.op, "wait for signal") != 0) {
    fprintf(stderr, "a wait for a rank that left: status %u, cause %d: %s\n", o.status, cause.status, cause.text);
    exit(1);
  }
  check(doorbell_close(comms[0]), "close");
  printf("a wait ended: %s\n", cause.text);
}

int main(int argc, char **argv) {
  std::string options = argc > 1 ? argv[1] : "";
  run(2, options, rank);
  lose(std::string(device_options) + " " + options);
}
