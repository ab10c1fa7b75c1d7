// SPDX-License-Identifier: Apache-2.0
//
// What kernels call to reach their peers, in CUDA C++: package gin's calls under the same names, by the same steps and the
// same ordered instructions, on the structures that doorbell_register and doorbell_devcomm_create (../doorbell.h) fill in.
// Headers alone: nothing is linked. C++17.
//
//   __global__ void kernel(const __grid_constant__ doorbell::dev_comm dc, doorbell::window send, doorbell::window recv) {
//     using namespace doorbell;
//     context c(dc, 0);
//     team all = world(dc);
//     c.put(by_block, all, peer, recv, 0, send, 0, bytes, strong_inc(0));
//     if (c.wait_signal(by_block, 0, 1, from_peer(all, peer)) != ok) ...
//   }
//
// Every call names the threads that take part (coop): each of them makes it with the same arguments, one issues, all get
// the status. Every wait ends by the deadline, and says whom it waits for (source): it ends with peer_lost when one of those
// is lost; in a team, ranks that were out when the device communicator was made do not count. timeout and invalid do not
// stick, the call may be repeated; the others do, and doorbell_cause tells the first.
//
// Order: operations are unordered. A strong signal becomes visible at its target after every earlier put of the same
// context to the same peer, a weak one after the put that it came with. Nothing orders two contexts.
//
// Compiled by something other than nvcc, the same code runs on the CPU against the software device: each group of threads
// is one thread of the host, and the communicator is opened with progress=thread, since nothing here moves data.
//
// multimem.cuh and lla2a.cuh have the calls of those names. Not here: injected faults.
#pragma once
#include "abi.cuh"
#include "desc.h"
#include "impl/words.cuh"

namespace doorbell {

// team is a regular set of ranks of the world: `ranks` of them, `stride` apart, this rank being number `rank`. Each peer
// that a call names is a rank of the team given to it.
struct team {
  int32_t ranks, rank, stride;
  DOORBELL_DEVICE bool has(int32_t peer) const { return peer >= 0 && peer < ranks; }
  DOORBELL_DEVICE int32_t world_rank(const dev_comm &dc, int32_t peer) const { return dc.Rank + (peer - rank) * stride; }
  DOORBELL_DEVICE team inner(int32_t n) const { return {n, rank % n, stride}; }               // n consecutive ranks, a divisor
  DOORBELL_DEVICE team outer(int32_t n) const { return {ranks / n, rank / n, stride * n}; }  // the same place in parts of n
  // team_rank is the rank in the team of a rank of the world, rank_in that in another team of a rank of this one: -1 for none.
  DOORBELL_DEVICE int32_t team_rank(const dev_comm &dc, int32_t world_rank) const {
    int32_t away = world_rank - dc.Rank;
    if (stride == 0 || away % stride != 0) return -1;
    int32_t r = rank + away / stride;
    return has(r) ? r : -1;
  }
  DOORBELL_DEVICE bool contains(const dev_comm &dc, int32_t world_rank) const { return team_rank(dc, world_rank) >= 0; }
  DOORBELL_DEVICE int32_t rank_in(const dev_comm &dc, team other, int32_t peer) const {
    return has(peer) ? other.team_rank(dc, world_rank(dc, peer)) : -1;
  }
};
DOORBELL_DEVICE team world(const dev_comm &dc) { return {dc.Ranks, dc.Rank, 1}; }
DOORBELL_DEVICE team lsa(const dev_comm &dc) { return {dc.LSASize, dc.LSARank, 1}; }  // load and store each other's windows
DOORBELL_DEVICE team rail(const dev_comm &dc) { return {dc.Ranks / dc.LSASize, dc.Rank / dc.LSASize, dc.LSASize}; }

// lsa_rank is the rank in the LSA team of a rank of the world, or -1 when it is not in it.
DOORBELL_DEVICE int32_t lsa_rank(const dev_comm &dc, int32_t world_rank) {
  int32_t r = world_rank - (dc.Rank - dc.LSARank);
  return r < 0 || r >= dc.LSASize ? -1 : r;
}

// rank_in_difference is the rank in parent of number index, from 0, of parent's ranks that are not in subset. It is -1 when
// there are not so many, or subset is no part of parent as inner and outer make them.
DOORBELL_DEVICE int32_t rank_in_difference(team parent, team subset, int32_t index) {
  if (parent.stride < 1 || subset.stride < 1 || subset.stride % parent.stride != 0) return -1;
  int32_t step = subset.stride / parent.stride, first = parent.rank - subset.rank * step, last = first + (subset.ranks - 1) * step;
  if (first < 0 || last < first || last >= parent.ranks || index < 0 || index >= parent.ranks - subset.ranks) return -1;
  if (index < first) return index;
  index -= first;
  int32_t inside = last - first + 1 - subset.ranks;
  if (index >= inside) return last + 1 + index - inside;
  return first + index / (step - 1) * step + 1 + index % (step - 1);  // between two ranks of subset there are step-1 others
}

// source is whom a wait waits for.
struct source {
  team of;
  int32_t from, to;  // ranks of the team; none for anybody
};
DOORBELL_DEVICE source from_peer(team t, int32_t peer) { return {t, peer, peer + 1}; }
DOORBELL_DEVICE source from_team(team t) { return {t, 0, t.ranks}; }
DOORBELL_DEVICE source from_any() { return {{0, 0, 0}, 0, 0}; }  // only the deadline, abort and revoke end the wait

// action is what a put does besides: raise a signal of the target, raise a counter of this rank, and how it is posted.
struct action {
  uint64_t value, at;       // what the signal adds; offset of one at an address
  const window_info *info;  // of its window
  uint32_t window, gen;
  int32_t signal_plus1, counter_plus1;  // less than 0 for an id that cannot be
  uint8_t flags;
  bool skip;

  // counter also adds 1 to counter id of this rank when the source of this put may be reused.
  DOORBELL_DEVICE action counter(int32_t id) const {
    action a = *this;
    a.counter_plus1 = id < 0 ? id : id + 1;
    if (id >= 0) a.flags |= flag_counter;
    return a;
  }
  // aggregate says that more follows on this context to this peer: the proxy is told of it with the next that does not.
  DOORBELL_DEVICE action aggregate() const {
    action a = *this;
    a.flags |= flag_aggregate;
    return a;
  }
  // skip_credit says that the caller knows of room in the queue. One that is wrong overwrites what was not taken yet.
  DOORBELL_DEVICE action skip_credit() const {
    action a = *this;
    a.skip = true;
    return a;
  }
};
DOORBELL_DEVICE action by_id(int32_t id, uint64_t v, int flags) {
  return {v, 0, nullptr, 0, 0, id < 0 ? id : id + 1, 0, uint8_t(flags), false};
}
DOORBELL_DEVICE action by_address(const signal_window &w, uint64_t off, uint64_t v, int flags) {
  return {v, off, w.Info, w.ID, w.Gen, 0, 0, uint8_t(flags | flag_at_address), false};
}
DOORBELL_DEVICE action none() { return {}; }
DOORBELL_DEVICE action strong_inc(int32_t id) { return by_id(id, 1, flag_strong | flag_signal_inc); }
DOORBELL_DEVICE action strong_add(int32_t id, uint64_t v) { return by_id(id, v, flag_strong | flag_signal_add); }
DOORBELL_DEVICE action weak_inc(int32_t id) { return by_id(id, 1, flag_signal_inc); }
DOORBELL_DEVICE action weak_add(int32_t id, uint64_t v) { return by_id(id, v, flag_signal_add); }
// Signals at offset off, a multiple of 8, of the target's part of a signal window.
DOORBELL_DEVICE action strong_inc_at(const signal_window &w, uint64_t off) { return by_address(w, off, 1, flag_strong | flag_signal_inc); }
DOORBELL_DEVICE action strong_add_at(const signal_window &w, uint64_t off, uint64_t v) { return by_address(w, off, v, flag_strong | flag_signal_add); }
DOORBELL_DEVICE action weak_inc_at(const signal_window &w, uint64_t off) { return by_address(w, off, 1, flag_signal_inc); }
DOORBELL_DEVICE action weak_add_at(const signal_window &w, uint64_t off, uint64_t v) { return by_address(w, off, v, flag_signal_add); }

// request stands for the operations of a context to one peer until some moment; {} for none. Any thread may wait for it.
struct request {
  uint64_t until;
  int32_t queue, world, context_plus1;
};

// fence says what a barrier promises besides that all have arrived. Its values are bits.
enum fence : uint32_t {
  fence_none = 0,
  fence_put = 1,  // the earlier puts of this context among the team are visible
  fence_get = 2,  // each rank flushes before it arrives: after it, what was got from may be written
};

class multimem;
class lla2a;

// lsa_pointer is the address of byte off of an LSA peer's part of a window. It is not checked.
DOORBELL_DEVICE uint8_t *lsa_pointer(const window &w, int32_t lsa_peer, uint64_t off);

// context is an independent lane between this rank and each peer: a queue per peer, signals and counters of its own. Any
// thread may make one of the same number (see sharing= of doorbell_devcomm_create); the object belongs to one thread, and dc
// outlives it. A number that does not exist answers each call with invalid.
class context {
 public:
  DOORBELL_DEVICE context(const dev_comm &dc, int32_t id);

  uint64_t timeout_ns;    // deadline of later waits, from their start; at first the communicator's
  bool released = false;  // the caller has released to the system what later puts send: they add no fence

  // put copies bytes from (src, src_off) of this rank to (dst, dst_off) of a peer, and then does the action. 0 bytes are
  // legal. It returns when the put is queued, and waits for room until the deadline: one that timed out left nothing behind.
  // src is not written until a flush or the counter says so. invalid: bounds of either window, a window that is not
  // registered any more, a peer or an id that is not there; nothing was written.
  DOORBELL_DEVICE status put(coop co, team t, int32_t peer, const window &dst, uint64_t dst_off, const window &src, uint64_t src_off, uint64_t bytes, action act);
  // put_value stores the low bytes (1 to 8) of value. It needs no source.
  DOORBELL_DEVICE status put_value(coop co, team t, int32_t peer, const window &dst, uint64_t dst_off, uint64_t value, uint64_t bytes, action act);
  // get copies bytes from (far, far_off) of a peer to (near, near_off) of this rank: there after a flush, a wait of a request
  // or the counter of act, which has no signal.
  DOORBELL_DEVICE status get(coop co, team t, int32_t peer, const window &far, uint64_t far_off, const window &near, uint64_t near_off, uint64_t bytes, action act);
  // signal does the action without a payload.
  DOORBELL_DEVICE status signal(coop co, team t, int32_t peer, action act);

  // A signal's value is what was added to it since its last reset; the payload that it covers is visible. wait_signal waits
  // until it is at least `least`; compares are rolling in so many bits, 1 to 64. reset_signal is called while no thread of
  // this rank waits for the signal or reads it; arrivals may race. An id that is not there reads 0.
  DOORBELL_DEVICE uint64_t read_signal(int32_t id) const;
  DOORBELL_DEVICE status wait_signal(coop co, int32_t id, uint64_t least, source src, int32_t bits = 64);
  DOORBELL_DEVICE status reset_signal(coop co, int32_t id);
  // The same of what LSA peers have ever added by lsa_signal, which resets do not touch. Its word lies near, where one that the
  // network adds to may be across PCIe: who knows that only LSA peers raise a signal looks for it faster so.
  DOORBELL_DEVICE uint64_t read_lsa_signal(int32_t id) const;
  DOORBELL_DEVICE status wait_lsa_signal(coop co, int32_t id, uint64_t least, source src, int32_t bits = 64);
  DOORBELL_DEVICE uint64_t read_signal_at(const signal_window &w, uint64_t off) const;
  DOORBELL_DEVICE status wait_signal_at(coop co, const signal_window &w, uint64_t off, uint64_t least, source src, int32_t bits = 64);
  DOORBELL_DEVICE status reset_signal_at(coop co, const signal_window &w, uint64_t off);
  // A shadow is a number of this rank alone for each signal, 0 at first and after reset_signal: what it expects of it.
  DOORBELL_DEVICE uint64_t shadow(int32_t id) const;
  DOORBELL_DEVICE status add_shadow(int32_t id, uint64_t delta);
  DOORBELL_DEVICE status wait_meet(coop co, int32_t id, source src);  // until the signal has come to its shadow
  // wait_follow waits until the signal is at least `least` above its shadow, and sets the shadow to what the signal is then.
  // before is the shadow as it was, delta by how much it was raised; if the status is not ok both are 0 and the shadow stays.
  // One group of threads at a time follows a signal.
  DOORBELL_DEVICE status wait_follow(coop co, int32_t id, uint64_t least, source src, uint64_t &before, uint64_t &delta);
  // Counters are this rank's. src names the peers that the counted puts went to.
  DOORBELL_DEVICE uint64_t read_counter(int32_t id) const;
  DOORBELL_DEVICE status wait_counter(coop co, int32_t id, uint64_t least, source src, int32_t bits = 64);
  DOORBELL_DEVICE status reset_counter(coop co, int32_t id);

  // flush waits until every earlier operation of this context (flush_peer: to that peer) is locally complete: sources may be
  // reused, gets are there. It says nothing of the target. flush_async names that moment, test looks (done, else why it never
  // will be), wait waits.
  DOORBELL_DEVICE status flush(coop co);
  DOORBELL_DEVICE status flush_peer(coop co, team t, int32_t peer);
  DOORBELL_DEVICE status flush_async(coop co, team t, int32_t peer, request &r);
  DOORBELL_DEVICE status test(const request &r, bool &done) const;
  DOORBELL_DEVICE status wait(coop co, const request &r);
  // The same for each peer: flush_all_async fills in requests() of them.
  DOORBELL_DEVICE int32_t requests() const { return dc.Peers; }
  DOORBELL_DEVICE status flush_all_async(coop co, request *into);
  DOORBELL_DEVICE status test_all(const request *from, bool &done) const;
  DOORBELL_DEVICE status wait_all(coop co, const request *from);
  // fence_contexts waits until all that contexts first to first+n-1 posted to a peer before is visible there: a signal that is
  // posted after it, in any context, covers that. invalid also where fence=1 was not asked for.
  DOORBELL_DEVICE status fence_contexts(coop co, team t, int32_t peer, int32_t first, int32_t n);

  // lsa_put copies by stores of the threads that take part and returns when they are issued; lsa_signal adds v to a signal of
  // an LSA peer: who sees it sees what those threads stored before.
  DOORBELL_DEVICE status lsa_put(coop co, int32_t lsa_peer, const window &dst, uint64_t dst_off, const uint8_t *src, uint64_t bytes);
  DOORBELL_DEVICE status lsa_signal(coop co, int32_t lsa_peer, int32_t id, uint64_t v);
  DOORBELL_DEVICE status lsa_signal_at(coop co, int32_t lsa_peer, const signal_window &w, uint64_t off, uint64_t v);

  // Barriers wait until each rank of the team has called with the same id (and fence). One that timed out is repeated with
  // the same arguments and goes on where it was. lsa_barrier: what LSA peers stored before is visible after. barrier: by the
  // network, among a team that this context has queues to. hybrid_barrier: the world, by stores where it can; with fence_put
  // what any rank put or stored before is visible to all after. It is made of the two others of that id. One thread at a time
  // uses an id. invalid also: fence_put where strong signals were not asked for.
  DOORBELL_DEVICE status lsa_barrier(coop co, int32_t id);
  DOORBELL_DEVICE status barrier(coop co, team t, int32_t id, fence f);
  DOORBELL_DEVICE status hybrid_barrier(coop co, int32_t id, fence f);

  // multimem is the windows of all LSA peers at once. invalid: a communicator without it, a window that is not registered or
  // does not begin at a multiple of 16 bytes on each peer.
  DOORBELL_DEVICE status multimem(const window &w, doorbell::multimem &m) const;
  // lla2a opens the session of a block, where the one before has ended. invalid: a block that is not there.
  DOORBELL_DEVICE status lla2a(coop co, int32_t block, doorbell::lla2a &session);

 private:
  struct look_t {
    uint32_t stuck, ended;
    uint64_t credit, ticket;
  };
  struct waiter {
    uint64_t start, waited;  // ns; at the last pause
    uint32_t polls;
    bool far, noted;  // far: it looks at memory of the host
    record note;      // what it waits for

    // rest is between two looks. Where threads of many multiprocessors look at memory of the host all the time, the copies and stores
    // that they wait for take a hundred times as long. So a far wait looks the less often the longer it lasts.
    DOORBELL_DEVICE void rest() const;
  };

  friend class doorbell::lla2a;

  const dev_comm &dc;
  int32_t id;
  int32_t far_word = 0, near = 0;  // far: what NET word number far_word was last; near: LSA peer + 1 that near_lsa is of
  bool by_lsa = false;             // the last wait ended by a signal of an LSA peer
  uint64_t *near_lsa = nullptr;
  uint64_t far = 0, near_was = 0, per_node;  // near_was: what the LSA word beside far's was then, acquired

  DOORBELL_DEVICE bool queue(team t, int32_t peer, int32_t &index, int32_t &world_rank) const;
  DOORBELL_DEVICE bool valid(const action &a, int32_t world_rank) const;
  DOORBELL_DEVICE look_t look(int32_t q) const;
  DOORBELL_DEVICE uint32_t post(int32_t q, int32_t world_rank, desc &d, const action &a, const uint8_t *from, const look_t &l);
  DOORBELL_DEVICE uint32_t reserve(int32_t q, int32_t world_rank, const desc &d, const look_t &l, uint64_t &ticket);
  DOORBELL_DEVICE bool claim(uint64_t *next, uint64_t ticket) const;
  DOORBELL_DEVICE uint64_t reserve_blindly(uint64_t *next, uint64_t ticket) const;
  DOORBELL_DEVICE uint32_t put_one(team t, int32_t peer, const window &dst, uint64_t dst_off, const window &src, uint64_t src_off, uint64_t bytes, const action &act);
  DOORBELL_DEVICE uint32_t put_value_one(team t, int32_t peer, const window &dst, uint64_t dst_off, uint64_t value, uint64_t bytes, const action &act);
  DOORBELL_DEVICE uint32_t get_one(team t, int32_t peer, const window &far, uint64_t far_off, const window &near, uint64_t near_off, uint64_t bytes, const action &act);

  DOORBELL_DEVICE bool has_signal(int32_t i) const { return id >= 0 && i >= 0 && i < dc.Signals; }
  DOORBELL_DEVICE bool has_counter(int32_t i) const { return id >= 0 && i >= 0 && i < dc.Counters; }
  DOORBELL_DEVICE int32_t signal_word(int32_t i) const { return id * int32_t(dc.SignalStride) + i; }
  DOORBELL_DEVICE uint32_t trouble(source src, record &note) const;
  DOORBELL_DEVICE uint32_t pause(waiter &w, source src) const;
  DOORBELL_DEVICE uint32_t step(waiter &w, source src) const;
  DOORBELL_DEVICE int32_t source_peer(source src) const;
  DOORBELL_DEVICE uint32_t wait_word(int32_t i, int32_t sig, uint64_t least, int32_t bits, source src);
  DOORBELL_DEVICE uint32_t wait_near(int32_t sig, uint64_t least, int32_t bits, source src) const;
  DOORBELL_DEVICE uint32_t wait_pair(const uint64_t *net, const uint64_t *lsa, uint64_t off, waiter &w, int32_t bits, source src);
  DOORBELL_DEVICE request pending(int32_t q, int32_t world_rank) const;
  DOORBELL_DEVICE request pending_of(int32_t p) const;
  DOORBELL_DEVICE bool mine(const request &r) const;
  DOORBELL_DEVICE bool complete(const request &r) const;
  DOORBELL_DEVICE uint32_t wait_ticket(const request &r) const;
  DOORBELL_DEVICE bool barrier_valid(int32_t i, uint32_t f) const;
  DOORBELL_DEVICE barrier_state *gin_barrier(int32_t i) const { return dc.Barrier + ((1 + id) * dc.Barriers + i); }  // those of LSA barriers stand before all contexts'
  DOORBELL_DEVICE uint32_t lsa_barrier_part(coop co, int32_t id);
  DOORBELL_DEVICE uint32_t barrier_one(team t, int32_t id, fence f);
  DOORBELL_DEVICE uint32_t hybrid_barrier_one(int32_t id, fence f);
  DOORBELL_DEVICE uint32_t announce(team t, int32_t peer, int32_t first, bool strong);
  DOORBELL_DEVICE uint32_t arrived(const uint64_t *at, uint64_t want, waiter &w, team t) const;
};

}  // namespace doorbell

#include "impl/post.cuh"
#include "impl/wait.cuh"
#include "impl/team.cuh"
