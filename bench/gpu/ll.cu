// SPDX-License-Identifier: Apache-2.0
//
// CUDA C++ twins of the low-latency kernels of package moe, of the variants for ranks that are all stored to: same entries, same
// argument, same steps. What they leave out is what they are not run with: a box for a rank (PerRank), ranks that are missing,
// numbers that are counted, and what gin checks of a put. TestLLTwins runs them in turn with ours, in one process.
//   nvcc -O3 -std=c++17 -arch=sm_90 -ptx bench/gpu/ll.cu -o ll.ptx
#include "moe.cuh"

using moe::ll;
using moe::llturn;

DB uint32_t row_bytes(const ll &a) { return 2 * uint32_t(a.Hidden); }
DB uint32_t msg_bytes(const ll &a) { return uint32_t(a.Head + a.Payload); }

DB uint64_t slot(const ll &a, const llturn &now, int32_t local, int32_t src, uint32_t n) {
  uint32_t row = uint32_t((now.Set * a.Boxes + local) * a.DC.Ranks + src);
  return (uint64_t(row) * uint32_t(a.BoxCap) + n) * msg_bytes(a);
}
DB uint64_t back(const ll &a, const llturn &now, int32_t token, int32_t k) {
  uint64_t slots = uint64_t(uint32_t(a.Sets * a.Boxes * a.DC.Ranks)) * uint32_t(a.BoxCap) * msg_bytes(a);
  return slots + (uint64_t(uint32_t(now.Set * a.MaxTokens + token)) * uint32_t(a.TopK) + uint32_t(k)) * row_bytes(a);
}
DB int32_t dispatch_signal(const ll &a, const llturn &now, int32_t local, int32_t src) { return (now.Set * a.Boxes + local) * a.DC.Ranks + src; }
DB int32_t combine_signal(const ll &a, const llturn &now, int32_t e) { return a.Sets * a.Boxes * a.DC.Ranks + now.Set * a.Experts + e; }

DB int32_t expert(const ll &a, int32_t token, int32_t k) {
  int32_t e = a.Idx[token * a.TopK + k];
  return e >= 0 && e < a.Experts ? e : -1;
}

// raise adds to a signal of a rank, in the context of a local expert. What the calling thread has seen is seen before it.
DB void raise(const ll &a, int32_t rank, int32_t local, int32_t id, uint64_t v) {
  word::add_release_sys(a.DC.PeerLSA[lsa_rank(a.DC, rank)] + (local % a.DC.Contexts * int32_t(a.DC.SignalStride) + id), v);
}

// What a launch does of an operation, and what is added to box.Gone besides 1 for each message.
constexpr int32_t sends = 1, receives = 2;
constexpr uint64_t one_counted = uint64_t(1) << 32, all_counted = uint64_t(1) << 63;

// opening is what the first thread of a block reads for all.
struct opening {
  llturn now;
  bool over;
};
SHARED opening opened;

// pair is a local expert and a rank, number i of all pairs.
struct pair {
  int32_t local, rank;
};
DB pair from_pair(const ll &a, int32_t i) { return {i / a.DC.Ranks, a.Deterministic ? i % a.DC.Ranks : (a.DC.Rank + i) % a.DC.Ranks}; }
DB pair to_pair(const ll &a, int32_t i) { return {i / a.DC.Ranks, (a.DC.Rank + i) % a.DC.Ranks}; }

DB uint64_t row_number(const ll &a, int32_t local, uint32_t n) { return uint64_t(uint32_t(local * a.DC.Ranks)) * uint32_t(a.Cap) + n; }

// fetch_peers, fetch_dispatch and fetch_combine have on their way what a block reads first.
DB void fetch_peers(const ll &a) {
  for (int32_t i = int32_t(thread()); i < a.DC.LSASize; i += int32_t(threads())) prefetch(word::peer_of(a.Recv.Info, a.Recv.LSA0 + i)), prefetch(a.DC.PeerLSA + i);
}
DB void fetch_dispatch(const ll &a) {
  const int32_t token = int32_t(block()), i = int32_t(block() + warp() * blocks());
  if (a.Parts & sends) {
    fetch_peers(a);
    constexpr uint32_t line = 128;
    for (uint32_t at = thread() * line; token < a.Tokens && at < row_bytes(a); at += threads() * line) prefetch(a.X + uint64_t(uint32_t(token)) * row_bytes(a) + at);
    if (token < a.Tokens && thread() == threads() - 1) prefetch(a.Idx + token * a.TopK);
  }
  if ((a.Parts & receives) && i < a.Locals * a.DC.Ranks) {
    const pair p = from_pair(a, i);
    if (lane() == 0) prefetch(a.Packed + p.local);
    for (int32_t set = int32_t(lane()); set < 2 * a.Sets; set += 32) prefetch(a.Ends + (set * a.Boxes + p.local) * a.DC.Ranks + p.rank);
  }
}
DB void fetch_combine(const ll &a) {
  const int32_t token = int32_t(block()), i = int32_t(block() + warp() * blocks());
  if (a.Parts & sends) fetch_peers(a);
  if (lane() != 0) return;
  if ((a.Parts & sends) && i < a.Locals * a.DC.Ranks) {
    const pair p = to_pair(a, i);
    prefetch(a.Blocks + p.local * a.DC.Ranks + p.rank), prefetch(a.Infos + row_number(a, p.local, 0));
  }
  if ((a.Parts & receives) && warp() == warps() - 1 && token < a.Tokens) prefetch(a.Idx + token * a.TopK), prefetch(a.Weights + token * a.TopK);
}

// begin gives each thread its operation: the next dispatch, or the turn's. It is false if operations have failed.
DB bool begin(const ll &a, bool next, llturn &now) {
  if (thread() == 0) {
    opened.over = failed(a.Faults);
    if (next) {
      const uint32_t most = uint32_t(a.Tokens), tokens = a.Count ? *a.Count : most;
      const int32_t place = a.Next->Place, half = place >= a.Sets;
      opened.now = {a.Next->Op, 0, place - half * a.Sets, half, int32_t(tokens < most ? tokens : most), {}};
    } else {
      opened.now = *a.Now;
    }
  }
  sync_block();
  now = opened.now;
  return !opened.over;
}

// looked is called by a thread of each block of a dispatch that sends: the last one makes the one after it the next.
DB void looked(const ll &a, llturn now) {
  if (add_acq_rel_gpu(&a.Next->Looked, uint32_t(1)) + 1 != blocks()) return;
  now.Answers = a.Answers[now.Set] + 1;
  *a.Now = now;
  a.Next->Looked = 0;
  a.Next->Op++;
  if (++a.Next->Place == 2 * a.Sets) a.Next->Place = 0;
  if (a.Count && *a.Count > uint32_t(a.Tokens)) refuse(a.Faults, now.Op, moe::fault_tokens, a.DC.Rank, *a.Count, a.Tokens);
}

// earlier is how many selections before number i are of expert e. A warp calls it.
DB uint32_t earlier(const ll &a, int32_t e, int32_t i) {
  uint32_t n = 0;
  for (int32_t j = int32_t(lane()); j < i; j += 32) n += a.Idx[j] == e;
  UNROLL for (uint32_t mask = 16; mask > 0; mask /= 2) n += shfl_xor(n, mask);
  return n;
}

// send_count tells an expert's rank that n messages came. A thread calls it.
DB void send_count(const ll &a, const llturn &now, const spread &of, int32_t e, uint32_t n) {
  int32_t rank = of.owner(e), local = e - of.first(rank);
  raise(a, rank, local, dispatch_signal(a, now, local, a.DC.Rank), uint64_t(n) + 1);
}

// parts_of is how many warps send a message, a part each, where a block has several for each of a token's.
DB int32_t parts_of(const ll &a) { return int32_t(warps()) > a.TopK ? int32_t(warps()) / a.TopK : 1; }

// copy_part is a warp's part of a copy that so many share.
DB void copy_part(uint32_t i, uint32_t parts, uint8_t *to, const uint8_t *from, uint32_t bytes) {
  uint32_t share = ((bytes + parts - 1) / parts + 15) & ~15u, at = i * share < bytes ? i * share : bytes, left = bytes - at;
  copy_warp(to + at, from + at, left < share ? left : share);
}

// gone adds to what is known of a box, whose messages are so many parts each: who finds that all of them are counted and on their way
// sends the count, and clears it. A thread calls it.
DB void gone(const ll &a, const llturn &now, const spread &of, int32_t e, uint64_t more, int32_t parts) {
  moe::box &b = a.Far[e];
  const uint64_t is = add_acq_rel_gpu(&b.Gone, more) + more;
  const uint32_t all = uint32_t((is & ~all_counted) >> 32), room = uint32_t(a.BoxCap);
  if (is < all_counted || uint32_t(is) != all * uint32_t(parts)) return;
  b = {};
  if (all > room) refuse(a.Faults, now.Op, moe::fault_copies, a.DC.Rank, all, e);
  send_count(a, now, of, e, all < room ? all : room);
}

// count counts the messages to a warp's share of the boxes, for each lane one at least, those of the last blocks first.
DB void count(const ll &a, const llturn &now, const spread &of) {
  constexpr int loads = 8;
  const int32_t n = now.Tokens * a.TopK, all = int32_t(blocks() * warps()), least = (a.Experts + all - 1) / all, share = least > 32 ? least : 32;
  const int32_t from = share * int32_t((blocks() - 1 - block()) * warps() + warps() - 1 - warp());
  const int32_t end = from + share < a.Experts ? from + share : a.Experts;
  if (from >= end) return;
  for (int32_t i = int32_t(lane()); i < n; i += loads * 32) {
    int32_t e[loads];
    UNROLL for (int j = 0; j < loads; j++) e[j] = i + j * 32 < n ? a.Idx[i + j * 32] : -1;
    UNROLL for (int j = 0; j < loads; j++)
      if (e[j] >= from && e[j] < end) add_gpu(&a.Far[e[j]].Gone, one_counted);
  }
  sync_warp();
  for (int32_t e = from + int32_t(lane()); e < end; e += 32) gone(a, now, of, e, all_counted, parts_of(a));
}

// route is where a message goes: to which expert, -1 for none, and as which number.
struct route {
  int32_t expert;
  uint32_t n;
};
SHARED route routes[2][32];

DB void send(const ll &a, const llturn &now, const spread &of) {
  const int32_t parts = parts_of(a), me = int32_t(warp());
  const int32_t unit = parts > 1 ? me % a.TopK : me, part = parts > 1 ? me / a.TopK : 0;  // what this warp sends first
  const uint32_t makers = warps() > 1 ? warps() - 1 : 1;  // of the payload, while the last warp finds out where it goes
  int turn = 0;
  for (int32_t token = int32_t(block()); token < now.Tokens; token += int32_t(blocks()), turn ^= 1) {
    uint8_t *msg = a.Stage.Base + uint64_t(uint32_t(now.Set * a.MaxTokens + token)) * msg_bytes(a);
    const uint8_t *x = a.X + uint64_t(uint32_t(token)) * row_bytes(a);
    if (thread() == 0) *reinterpret_cast<uint4 *>(msg) = {uint32_t(token), uint32_t(now.Op), 0, 0};
    for (int32_t k = int32_t(threads() - 1 - thread()); k < a.TopK; k += int32_t(threads())) {
      const int32_t i = token * a.TopK + k, named = a.Idx[i], e = expert(a, token, k);
      if (named < -1 || named >= a.Experts) refuse(a.Faults, now.Op, moe::fault_selection, a.DC.Rank, i, named);
      reinterpret_cast<uint16_t *>(msg + sizeof(moe::header))[k] = uint16_t(e);
      routes[turn][k] = {e, e >= 0 && !a.Deterministic ? add_gpu(&a.Far[e].Taken, uint32_t(1)) : 0};
    }
    if (a.Format != moe::bf16 && warp() < makers) quantise({a.Format, a.Hidden, a.Values, a.Payload}, msg + a.Head, x, warp(), makers);
    sync_block();
    for (int32_t k = unit; k < a.TopK && part < parts; k += int32_t(warps())) {
      route r = routes[turn][k];
      if (r.expert < 0) continue;
      if (a.Deterministic) r.n = earlier(a, r.expert, token * a.TopK + k);
      if (r.n < uint32_t(a.BoxCap)) {
        int32_t rank = of.owner(r.expert), local = r.expert - of.first(rank);
        uint8_t *to = lsa_pointer(a.Recv, lsa_rank(a.DC, rank), slot(a, now, local, a.DC.Rank, r.n));
        if (a.Format == moe::bf16) {  // the row as it is
          copy_part(part, parts, to + a.Head, x, row_bytes(a));
          if (part == 0) copy_warp(to, msg, uint32_t(a.Head));
        } else {
          copy_part(part, parts, to, msg, msg_bytes(a));
        }
        sync_warp();
      }
      if (lane() == 0) gone(a, now, of, r.expert, 1, parts);
    }
  }
  count(a, now, of);
  if (thread() == threads() - 1) looked(a, now);
}

// await_count is how many messages a rank sent to a local expert. One thread calls it.
DB uint32_t await_count(const ll &a, const llturn &now, int32_t local, int32_t src, int32_t e) {
  context c(a.DC, local % a.DC.Contexts);
  int32_t id = dispatch_signal(a, now, local, src), ends = a.Sets * a.Boxes * a.DC.Ranks;
  uint64_t from = a.Ends[now.Half * ends + id];
  uint64_t value = c.read_lsa_signal(id);
  if (value == from) {
    if (failed(a.Faults)) c.timeout_ns = 0;
    uint32_t s = c.wait_lsa_signal(by_thread, id, from + 1, from_team(world(a.DC)));
    if (s != ok) {
      fail(a.Faults, now.Op, s, moe::fault_wait, src, e, 0);
      return 0;
    }
    value = c.read_lsa_signal(id);
  }
  uint64_t n = value - from - 1;
  a.Ends[(now.Half ^ 1) * ends + id] = value;
  if (n > uint64_t(a.BoxCap)) {
    fail(a.Faults, now.Op, remote_error, moe::fault_count, src, int64_t(n), e);
    return 0;
  }
  return uint32_t(n);
}

// selects is the lanes whose number of selection of a message's token is of expert e. A warp calls it.
DB uint32_t selects(const ll &a, const uint8_t *msg, int32_t e) {
  return vote(int32_t(lane()) < a.TopK && reinterpret_cast<const uint16_t *>(msg + sizeof(moe::header))[lane()] == uint16_t(e));
}

// info is which selection message j serves. A warp calls it.
DB moe::row_info info(const ll &a, const llturn &now, const uint8_t *first, uint32_t j, int32_t src, int32_t e) {
  const uint8_t *msg = first + uint64_t(j) * msg_bytes(a);
  uint4 h = *reinterpret_cast<const uint4 *>(msg);
  uint32_t of = selects(a, msg, e);
  if (bits(of) > 1) {  // one message for each: earlier ones serve earlier selections
    for (uint32_t from = 0; from < j; from += 32) {
      uint32_t i = from + lane();
      uint32_t same = vote(i < j && reinterpret_cast<const uint4 *>(first + uint64_t(i) * msg_bytes(a))->x == h.x);
      for (uint32_t n = bits(same); n > 0; n--) of &= of - 1;
    }
  }
  if (of == 0 || h.x >= uint32_t(a.MaxTokens) || h.y != uint32_t(now.Op)) {
    if (lane() == 0) fail(a.Faults, now.Op, remote_error, moe::fault_header, src, j, e);
    return {src, -1, -1, e};
  }
  return {src, int32_t(h.x), int32_t(first_bit(of)), e};
}

// arrival is what came of a rank for a local expert, and where its rows begin among the expert's.
struct arrival {
  uint32_t rows, begin;
};

// found is what a block's warps have found.
SHARED arrival found[32];

// found_rows is the rows of the first n of them.
DB uint32_t found_rows(int32_t n) {
  uint32_t rows = 0;
  for (int32_t w = 0; w < n; w++) rows += found[w].rows;
  return rows;
}

// shares deals parts of rows out to a block's warps in turn: where there are few rows, several warps share each.
struct shares {
  uint32_t next = 0;
  const uint32_t parts;

  DB explicit shares(uint32_t rows) : parts(rows == 0 || rows > warps() ? 1 : warps() / rows) {}
  DB bool take() {
    bool mine = next == warp();
    if (++next == warps()) next = 0;
    return mine;
  }
};

// room is where the next so many rows of a local expert begin. Who takes the last leaves word of how many they are in all.
DB uint32_t room(const ll &a, int32_t local, uint32_t rows) {
  const uint64_t was = add_gpu(a.Packed + local, one_counted | rows);
  if (was >> 32 == uint64_t(uint32_t(a.DC.Ranks - 1))) {
    a.Counts[local] = uint32_t(was) + rows;
    a.Packed[local] = 0;
  }
  return uint32_t(was);
}

// receive_pairs packs what came of n pairs, blocks() apart, behind what is there of their experts'. All threads of a block call it.
DB void receive_pairs(const ll &a, const llturn &now, int32_t first_expert, int32_t i, int32_t n) {
  const int32_t step = int32_t(blocks());
  if (int32_t w = int32_t(warp()); w < n && lane() == 0) {
    pair p = from_pair(a, i + w * step);
    uint32_t rows = await_count(a, now, p.local, p.rank, first_expert + p.local), begin = room(a, p.local, rows);
    a.Blocks[p.local * a.DC.Ranks + p.rank] = {begin, rows};
    found[w] = {rows, begin};
  }
  sync_block();
  shares s(found_rows(n));
  for (int32_t w = 0; w < n; w++) {
    const pair p = from_pair(a, i + w * step);
    const arrival came = found[w];
    const int32_t e = first_expert + p.local;
    const uint64_t to = row_number(a, p.local, came.begin);
    const uint8_t *first = a.Recv.Base + slot(a, now, p.local, p.rank, 0);
    for (uint32_t j = 0; j < came.rows; j++)
      for (uint32_t part = 0; part < s.parts; part++) {
        if (!s.take()) continue;
        if (part == 0) {
          moe::row_info f = info(a, now, first, j, p.rank, e);
          if (lane() == 0) a.Infos[to + j] = f;
        }
        copy_part(part, s.parts, a.Rows + (to + j) * uint32_t(a.Payload), first + uint64_t(j) * msg_bytes(a) + a.Head, uint32_t(a.Payload));
      }
  }
  sync_block();  // before there are others
}

// at_once is how many pairs a block has from number i on: as many as it has warps, blocks() apart.
DB int32_t at_once(int32_t i, int32_t end) {
  int32_t left = (end - i + int32_t(blocks()) - 1) / int32_t(blocks());
  return left < int32_t(warps()) ? left : int32_t(warps());
}

DB void receive(const ll &a, const llturn &now, const spread &of) {
  const int32_t expert0 = of.first(a.DC.Rank), end = (of.first(a.DC.Rank + 1) - expert0) * a.DC.Ranks, step = int32_t(blocks());
  for (int32_t i = int32_t(block()) * (a.Deterministic ? a.DC.Ranks : 1); i < end;) {
    receive_pairs(a, now, expert0, i, a.Deterministic ? 1 : at_once(i, end));
    if (!a.Deterministic)
      i += step * int32_t(warps());
    else if (++i % a.DC.Ranks == 0)
      i += (step - 1) * a.DC.Ranks;
  }
}

KERNEL(LLDispatch, ll, 16) {
  fetch_dispatch(a);
  llturn now;
  if (!begin(a, a.Parts & sends, now)) return;
  const spread of(a.Experts, a.DC.Ranks);
  if (a.Parts & sends) send(a, now, of);
  if (a.Parts & receives) receive(a, now, of);
}

// give_back sends the experts' outputs, and says behind them that the experts have answered. Nothing that it does here can fail.
DB void give_back(const ll &a, const llturn &now, const spread &of) {
  const int32_t first = of.first(a.DC.Rank), end = (of.first(a.DC.Rank + 1) - first) * a.DC.Ranks, step = int32_t(blocks()), me = int32_t(warp());
  if (block() == 0 && thread() == 0) a.Answers[now.Set] = now.Answers;
  const uint64_t rows_before = uint64_t(uint32_t(a.Turn * a.Locals * a.DC.Ranks)) * uint32_t(a.Cap);
  for (int32_t i = int32_t(block()); i < end; i += step * int32_t(warps())) {
    const int32_t n = at_once(i, end);
    const pair mine = to_pair(a, i + me * step);
    if (me < n && lane() == 0) {
      const moe::block b = a.Blocks[mine.local * a.DC.Ranks + mine.rank];
      found[me] = {b.Rows, b.Begin};
    }
    sync_block();
    shares s(found_rows(n));
    for (int32_t w = 0; w < n; w++) {
      const pair p = to_pair(a, i + w * step);
      const arrival b = found[w];
      for (uint32_t j = 0; j < b.rows; j++)
        for (uint32_t part = 0; part < s.parts; part++) {
          if (!s.take()) continue;
          const uint64_t row = row_number(a, p.local, b.begin + j);
          const moe::row_info f = a.Infos[row];
          if (f.Token < 0) continue;
          copy_part(part, s.parts, lsa_pointer(a.Recv, lsa_rank(a.DC, p.rank), back(a, now, f.Token, f.K)), a.Out.Base + (rows_before + row) * row_bytes(a), row_bytes(a));
        }
    }
    sync_block();
    if (me < n && lane() == 0) raise(a, mine.rank, mine.local, combine_signal(a, now, first + mine.local), 1);
    sync_block();  // before there are others
  }
}

// answered is false if an expert's answer does not come.
DB bool answered(const ll &a, const llturn &now, const spread &of, int32_t e) {
  int32_t rank = of.owner(e);
  context c(a.DC, (e - of.first(rank)) % a.DC.Contexts);
  uint32_t s = c.wait_lsa_signal(by_thread, combine_signal(a, now, e), now.Answers, from_team(world(a.DC)));
  if (s != ok) fail(a.Faults, now.Op, s, moe::fault_answer, rank, e, 0);
  return s == ok;
}

// add_up adds up the answers of a block's tokens, eight of them on their way.
DB void add_up(const ll &a, const llturn &now, const spread &of) {
  constexpr int loads = 8;
  if (block() == blocks() - 1)
    for (int32_t rank = int32_t(thread()); rank < a.DC.Ranks; rank += int32_t(threads()))
      if (of.first(rank) < of.first(rank + 1)) answered(a, now, of, of.first(rank));
  const uint32_t vecs = row_bytes(a) / 16;
  for (int32_t token = int32_t(block()); token < now.Tokens; token += int32_t(blocks())) {
    const int32_t k = int32_t(lane()), mine = k < a.TopK ? expert(a, token, k) : -1;
    const uint32_t weight = mine >= 0 ? as_bits(a.Weights[token * a.TopK + k]) : 0, have = vote(mine >= 0);
    if (any_of_block(warp() == 0 && mine >= 0 && !answered(a, now, of, mine))) return;
    uint4 *out = reinterpret_cast<uint4 *>(a.Y + uint64_t(uint32_t(token)) * row_bytes(a));
    const uint4 *in = reinterpret_cast<const uint4 *>(a.Recv.Base + back(a, now, token, 0));
    for (uint32_t base = warp() * 32; base < vecs; base += threads()) {  // the same to all lanes
      uint32_t i = base + lane();
      sum s;
      for (uint32_t k = 0; k < uint32_t(a.TopK); k += loads) {
        uint4 v[loads] = {};
        UNROLL for (uint32_t n = 0; n < loads; n++)
          if (have >> (k + n) & 1 && i < vecs) v[n] = in[(k + n) * vecs + i];
        UNROLL for (uint32_t n = 0; n < loads; n++) s.plus(v[n], as_float(shfl(weight, k + n)));
      }
      if (i < vecs) out[i] = s.rounded();
    }
  }
}

KERNEL(LLCombine, ll, 16) {
  fetch_combine(a);
  llturn now;
  if (!begin(a, false, now)) return;
  const spread of(a.Experts, a.DC.Ranks);
  if (a.Parts & sends) give_back(a, now, of);
  if ((a.Parts & receives) && (!(a.Parts & sends) || !over_block(a.Faults))) add_up(a, now, of);
}
