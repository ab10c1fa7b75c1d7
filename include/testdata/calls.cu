// SPDX-License-Identifier: Apache-2.0
//
// Ranks try each call of gin.cuh against the library, on a GPU or, by g++, as threads: calls OPTIONS. Made as
// examples/cxx/pingpong.cu is, with examples/cxx on the include path.
#include <doorbell/lla2a.cuh>
#include <doorbell/multimem.cuh>

#include "run.cuh"

using namespace doorbell;

struct args {
  dev_comm dc;
  window send, recv;
  signal_window sigs;
  request *each;
  outcome *out;
};

constexpr uint64_t window_bytes = 4096;
constexpr int signals = 5, counters = 2;  // for each of two contexts
constexpr int ll_words = 12;              // slots of LLA2A

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
  for (int32_t i = 0; i < all.ranks; i++) OK(c.get(co, all, i, a.send, 0, a.recv, 1024 + uint64_t(i) * 128, 100, none()));
  WANT(c.requests() == all.ranks);
  OK(c.flush_all_async(co, a.each));
  OK(c.wait_all(co, a.each));
  OK(c.test_all(a.each, done));
  WANT(done && is_sent(recv + 1024, 0, 77, 100) && is_sent(recv + 1152, 1, 77, 100));

  // A fence over contexts: what was put in another one is there with the signal.
  for (uint64_t i = 0; i < 20; i++) {
    OK(second.put_value(co, all, peer, a.recv, 512, i + 1, 8, none()));
    OK(c.fence_contexts(co, all, peer, 0, 2));
    OK(c.signal(co, all, peer, weak_inc(0)));
    OK(c.wait_signal(co, 0, i + 1, from));
    WANT(*reinterpret_cast<const uint64_t *>(recv + 512) == i + 1);
    OK(c.barrier(co, all, 0, fence_none));
  }
  OK(c.reset_signal(co, 0));

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
  OK(c.barrier(co, all, 0, fence_none));
  OK(c.signal(co, all, peer, strong_add(1, 6)));
  uint64_t before = 1, delta = 1;
  OK(c.wait_follow(co, 1, 6, from, before, delta));
  WANT(before == 0 && delta == 6);
  OK(c.barrier(co, all, 0, fence_none));
  OK(c.signal(co, all, peer, strong_add(1, 4)));
  OK(c.wait_follow(co, 1, 1, from, before, delta));
  WANT(before == 6 && delta == 4 && c.shadow(1) == 10);

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
    OK(bytes == 8 ? c.wait_signal(co, 3, 8, from) : c.wait_lsa_signal(co, 3, 108, from));
    WANT(is_sent(recv + 2048, peer, 77, bytes));
    OK(c.lsa_barrier(co, 1));
  }
  WANT(lsa_pointer(a.recv, a.dc.LSARank, 5) == recv + 5);
  OK(c.reset_signal(co, 3));
  WANT(c.read_signal(3) == 0 && c.read_lsa_signal(3) == 108 && c.read_lsa_signal(1) == 0 && c.read_lsa_signal(signals) == 0);
  OK(c.wait_lsa_signal(co, 3, 620, from, 8));  // 108, as 620 is in 8 bits

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
  WANT(c.wait_lsa_signal(co, 3, 1, from, 65) == invalid && c.wait_lsa_signal(co, signals, 0, from) == invalid);
  WANT(c.wait(co, foreign) == invalid && c.lsa_put(co, 2, a.recv, 0, a.send.Base, 8) == invalid);
  WANT(c.barrier(co, all, 9, fence_none) == invalid && nobody.flush(co) == invalid);
  WANT(c.hybrid_barrier(co, 2, fence_put) == invalid && c.fence_contexts(co, all, peer, 1, 2) == invalid);
  WANT(c.wait_follow(co, signals, 0, from, before, delta) == invalid && before == 0 && delta == 0);

  // A wait in vain ends by its deadline, and nothing sticks.
  c.timeout_ns = 2000000;
  WANT(c.wait_signal(co, 4, 1, from) == timeout && c.wait_lsa_signal(co, 4, 1, from) == timeout);
  c.timeout_ns = a.dc.Timeout;
  OK(c.barrier(co, all, 0, fence_none));
  OK(c.signal(co, all, peer, strong_inc(4)));
  OK(c.wait_signal(co, 4, 1, from));
  OK(c.flush(co));
}

template <class T>
DOORBELL_DEVICE bool same(T a, T b) {
  for (size_t i = 0; i < sizeof a; i++)
    if (reinterpret_cast<const uint8_t *>(&a)[i] != reinterpret_cast<const uint8_t *>(&b)[i]) return false;
  return true;
}

// numbers narrows what is exact, ties, and what no number is.
DOORBELL_DEVICE bool numbers_are_right() {
  for (uint32_t i = 0; i < 1 << 16; i++) {
    f16 h = {uint16_t(i)}, back;
    word::round_to(word::float_of(h), back);
    bool nan = (i & 0x7fff) > 0x7c00;
    if (back.bits != (nan ? 0x7fff : i)) return false;
    bf16 b = {uint16_t(i)}, again;
    word::round_to(word::float_of(b), again);
    if (again.bits != ((i & 0x7fff) > 0x7f80 ? 0x7fff : i)) return false;
  }
  struct {
    float f;
    uint16_t half, brain;
  } narrowed[] = {{65519.f, 0x7bff, 0x4780}, {65520.f, 0x7c00, 0x4780}, {0x1p-25f, 0, 0x3300}, {0x1.8p-25f, 1, 0x3340}, {-0x1.8p-24f, 0x8002, 0xb3c0},
                  {1.f + 0x1p-11f, 0x3c00, 0x3f80}, {1.f + 0x3p-11f, 0x3c02, 0x3f80}, {1.f + 0x3p-8f, 0x3c0c, 0x3f82}, {0x1.fffffep127f, 0x7c00, 0x7f80}};
  for (auto &n : narrowed) {
    f16 h;
    bf16 b;
    word::round_to(n.f, h), word::round_to(n.f, b);
    if (h.bits != n.half || b.bits != n.brain) return false;
  }
  return true;
}

// parts: stores to a multimem window reach each part, loads reduce over them.
KERNEL parts(ARGS args a) {
  const coop co = by_block;
  context c(a.dc, 0);
  const bool second = lsa(a.dc).rank == 1;
  multimem m;
  WANT(m.store(0, uint32_t(1)) == invalid);
  if (a.dc.Multimem == 0) {
    WANT(c.multimem(a.recv, m) == invalid);
    return;
  }
  OK(c.multimem(a.recv, m));
  WANT(m.bytes() == window_bytes);
  auto both = [&](uint64_t off, auto mine, auto want, op o) {  // each rank has a number of its own there; what they make
    if (thread_index() == 0) *reinterpret_cast<decltype(mine) *>(a.recv.Base + off) = mine;
    if (c.lsa_barrier(co, 0) != ok) return false;
    decltype(mine) got;
    return m.reduce(off, o, got) == ok && same(got, decltype(mine)(want));
  };
  WANT(both(128, second ? int32_t(-7) : int32_t(5), -2, op_sum) && both(136, second ? int32_t(-7) : int32_t(5), -7, op_min));
  WANT(both(144, second ? uint64_t(6) : uint64_t(3), 2, op_and) && both(152, second ? uint8_t(6) : uint8_t(3), 7, op_or));
  WANT(both(160, second ? -0.0f : 0.0f, -0.0f, op_min) && both(168, second ? 0.0f : -0.0f, 0.0f, op_max) && both(176, second ? word::bits_as<float>(0x7fc00000) : 3.0f, 3.0f, op_max));
  WANT(both(184, second ? bf16{0x3f80} : bf16{0x3b80}, bf16{0x3f80}, op_sum));  // 1 + 2^-8: a tie, to even
  WANT(both(192, second ? f16{0x7bff} : f16{0x4c00}, f16{0x7c00}, op_sum));     // 65504 + 16: a tie, to infinity
  OK(c.lsa_barrier(co, 0));
  struct alignas(16) pair {
    uint64_t first, second;
  };
  if (second && thread_index() == 0) OK(m.store(208, pair{7, 9}));
  if (!second && thread_index() == 0) OK(m.store(224, uint32_t(0x11223344)));
  OK(c.lsa_barrier(co, 0));
  WANT(*reinterpret_cast<const uint32_t *>(a.recv.Base + 224) == 0x11223344 && a.recv.Base[208] == 7 && a.recv.Base[216] == 9);
  float f;
  WANT(m.store(window_bytes - 3, uint32_t(1)) == invalid && m.store(window_bytes, uint32_t(1)) == invalid && m.reduce(0, op_or, f) == invalid);
}

// together is what four ranks of two nodes do: hybrid barriers, LLA2A, teams within teams.
KERNEL together(ARGS args a) {
  const coop co = by_block;
  context c(a.dc, 0);
  const team all = world(a.dc), node = lsa(a.dc), far = rail(a.dc);
  const int32_t me = all.rank;
  const source from = from_team(node);
  auto reaches = [&](int32_t from, int32_t to) { return !a.dc.Railed || from % node.ranks == to % node.ranks; };

  WANT(node.rank_in(a.dc, all, 1) == me / 2 * 2 + 1 && all.rank_in(a.dc, far, me) == far.rank && !node.contains(a.dc, (me + 2) % 4));
  for (team part : {all.inner(2), all.outer(2)}) {
    int32_t others = 0;
    for (int32_t p = 0; p < all.ranks; p++)
      if (all.rank_in(a.dc, part, p) < 0) WANT(rank_in_difference(all, part, others++) == p);
    WANT(others == 2 && rank_in_difference(all, part, others) == -1);
  }

  // Each rank puts to each, and stores to its LSA peers; each looks into the windows of its node.
  for (uint64_t i = 0; i < 20; i++) {
    for (int32_t p = 0; p < all.ranks; p++)
      if (reaches(me, p)) OK(c.put_value(co, all, p, a.recv, 8 * uint64_t(me), 100 * i + uint64_t(me), 8, none()));
    for (int32_t p = 0; p < node.ranks; p++)
      if (thread_index() == 0) *reinterpret_cast<uint64_t *>(lsa_pointer(a.recv, p, 64 + 8 * uint64_t(node.rank))) = i;
    OK(c.hybrid_barrier(co, 0, fence_put));
    for (int32_t p = 0; p < node.ranks; p++) {
      const uint64_t *w = reinterpret_cast<const uint64_t *>(lsa_pointer(a.recv, p, 0));
      for (int32_t k = 0; k < all.ranks; k++) WANT(!reaches(k, p) || w[k] == 100 * i + uint64_t(k));
      for (int32_t k = 0; k < node.ranks; k++) WANT(w[8 + k] == i);
    }
    OK(c.hybrid_barrier(co, 0, fence_none));
  }

  // LLA2A: words, elements and reductions, past the wrap of the epochs' numbers.
  if (thread_index() == 0) a.dc.LLState->Epoch = 0xfffffff0;
  OK(c.lsa_barrier(co, 0));
  const bool second = node.rank == 1;
  lla2a l;
  float f;
  OK(c.lla2a(co, 0, l));
  for (uint64_t i = 0; i < 40; i++) {
    if (thread_index() == 0) {
      for (uint64_t k = 0; k < 20; k++) a.send.Base[k] = pattern(me, i, k);
      for (int32_t p = 0; p < node.ranks; p++) {
        OK(l.send(p, node.rank, 1000 * i + 10 * uint64_t(node.rank) + uint64_t(p)));
        OK(l.send_from(p, 2 + 3 * node.rank, a.send.Base, 20));
      }
      OK(l.bcast(8 + node.rank, second ? uint64_t(-3) : i));
      OK(l.bcast(10 + node.rank, word::bits_as<uint32_t>(0.5f * float(i))));
      for (int32_t p = 0; p < node.ranks; p++) {
        uint64_t v;
        OK(l.recv(p, from_peer(node, p), v));
        WANT(v == 1000 * i + 10 * uint64_t(p) + uint64_t(node.rank));
        OK(l.recv_into(2 + 3 * p, a.recv.Base + 512, 20, from_peer(node, p)));
        WANT(is_sent(a.recv.Base + 512, node.world_rank(a.dc, p), i, 20));
      }
      int64_t least;
      OK(l.recv_reduce(8, 1, 2, op_min, from, least));
      OK(l.recv_reduce(10, 1, 2, op_sum, from, f));
      WANT(least == -3 && f == float(i));
    }
    OK(l.end_epoch());
  }
  WANT(a.dc.LLState->Epoch == 0xfffffff0u + 40 + ll_first_epoch);
  uint64_t v;
  WANT(l.send(node.ranks, 0, 1) == invalid && l.recv(ll_words, from, v) == invalid && l.recv_reduce(0, 8, 3, op_sum, from, v) == invalid);
  WANT(c.lla2a(co, 1, l) == invalid && l.send(0, 0, 1) == invalid && l.end_epoch() == invalid);
  OK(c.hybrid_barrier(co, 0, fence_get));
  if (thread_index() == 0) WANT(numbers_are_right());
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

made make(doorbell_handle comm, const std::string &more = "") {
  made m;
  m.a.send = window_of(comm, window_bytes).window, m.a.recv = window_of(comm, window_bytes).window;
  check(doorbell_register_signals(comm, 4, &m.sigs, &m.a.sigs, sizeof m.a.sigs), "register signals");
  std::string needs = "contexts=2 barriers=2 small_put=64 fence=1 lla2a_blocks=1 lla2a_slots=" + std::to_string(ll_words) +
                      " signals=" + std::to_string(signals) + " counters=" + std::to_string(counters) + more +
                      (word::on_gpu ? "" : " multimem=1");  // which a GPU does not have yet
  check(doorbell_devcomm_create(comm, needs.c_str(), &m.devcomm, &m.a.dc, sizeof m.a.dc), "device communicator");
  doorbell_handle requests;
  void *each, *host;
  check(doorbell_alloc(comm, 8 * sizeof(request), &requests), "alloc");
  check(doorbell_address(requests, &each, &host), "address");
  m.a.each = static_cast<request *>(each);
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

void node_rank(doorbell_handle comm, const doorbell_info &info) {
  made m[] = {make(comm), make(comm, " rail=1")};
  load(together);
  load(parts);
  for (made &x : m) {
    for (auto kernel : {together, parts}) {
      check(doorbell_barrier(comm), "barrier");
      launch(comm, kernel, 64, x.a);
      judge(x.out, x.devcomm, info.rank);
    }
  }
  printf("rank %d of 4, two nodes, %s over %s: all calls right\n", info.rank, info.device, info.net);
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
  run(4, options + " ranks_per_node=2", node_rank);
  lose(std::string(device_options) + " " + options);
}
