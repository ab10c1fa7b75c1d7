// SPDX-License-Identifier: Apache-2.0
//
// CUDA C++ twins of the high-throughput kernels of package moe, of the variants for one node: same entries, same argument, same
// steps, for at most 32 ranks, none of which is missing, without numbers that are counted and what gin checks of a put. TestHTTwins
// runs them in turn with ours, in one process.
//   nvcc -O3 -std=c++17 -arch=sm_90 -ptx bench/gpu/ht.cu -o ht.ptx
#include "moe.cuh"

using moe::ht;

DB int32_t ilane() { return int32_t(lane()); }
DB int32_t iwarp() { return int32_t(block() * warps() + warp()); }
DB int32_t iwarps() { return int32_t(blocks() * warps()); }

DB uint32_t row_bytes(const ht &a) { return 2 * uint32_t(a.Hidden); }
DB uint64_t row_at(const ht &a, int32_t row) { return a.RowsAt + uint64_t(uint32_t(row)) * uint32_t(a.Payload); }
DB uint64_t info_at(const ht &a, int32_t row) { return a.InfosAt + uint64_t(uint32_t(row)) * uint32_t(a.InfoBytes); }
DB uint64_t out_at(const ht &a, int32_t row) { return a.OutsAt + uint64_t(uint32_t(row)) * row_bytes(a); }
DB uint64_t out_weights_at(const ht &a, int32_t row) { return a.OutWeightAt + uint64_t(uint32_t(row)) * uint32_t(4 * a.TopK); }

// counts_at is where what another rank tells of its layout lies.
DB uint64_t counts_at(const ht &a, uint64_t op, int32_t rank) {
  return a.InAt + (op % 2 * uint64_t(uint32_t(a.DC.Ranks)) + uint64_t(uint32_t(rank))) * uint32_t(a.CountBytes);
}

// Signals of a rank: it has told its layout; its rows are there, a channel each; its outputs are; it has read those of this rank.
enum what : int32_t { has_told, has_sent, is_ready, has_read };
DB int32_t signal_id(const ht &a, what w, int32_t rank) { return w * a.DC.Ranks + rank; }

DB int32_t tokens(const ht &a) {
  uint32_t most = uint32_t(a.Tokens), n = a.Count ? *a.Count : most;
  return int32_t(n < most ? n : most);
}

struct range {
  int32_t first, end;
  DB bool has(int32_t i) const { return i >= first && i < end; }
};
DB range experts_of(const ht &a, int32_t rank) {
  spread s(a.Experts, a.DC.Ranks);
  return {s.first(rank), s.first(rank + 1)};
}
DB range part(const ht &a, int32_t channel, int32_t all) {
  int32_t per = (all + a.Channels - 1) / a.Channels, first = channel * per, end = first + per;
  return {first < all ? first : all, end < all ? end : all};
}

// goes says whether a token selects one of some experts. All selections are looked at, so that all loads are on their way at once.
DB bool goes(const ht &a, int32_t token, range of) {
  const int32_t *e = a.Idx + token * a.TopK;
  bool any = false;
  UNROLL_8 for (int32_t k = 0; k < a.TopK; k++) any |= of.has(e[k]);
  return any;
}

DB bool over_warp(const ht &a) { return vote(failed(a.Faults)) != 0; }

// await waits for a signal that a rank raises. A thread calls it.
DB bool await(const ht &a, what w, uint64_t least, int32_t rank) {
  context c(a.DC, 0);
  if (failed(a.Faults)) c.timeout_ns = 0;
  uint32_t s = c.wait_lsa_signal(by_thread, signal_id(a, w, rank), least, from_team(world(a.DC)));
  if (s != ok) fail(a.Faults, a.State->Dispatches - uint64_t(a.Combine), s, moe::fault_wait, rank, 0, 0);
  return s == ok;
}

// await_all waits for each rank, a lane each.
DB bool await_all(const ht &a, what w, uint64_t least) {
  bool good = ilane() >= a.DC.Ranks || await(a, w, least, ilane());
  return vote(!good) == 0;
}

// signal_all raises a signal by n at each rank, a lane each. The lanes' stores are seen before it.
DB void signal_all(const ht &a, what w, uint64_t n) {
  if (over_warp(a)) return;
  sync_warp();
  if (ilane() < a.DC.Ranks) word::add_release_sys(a.DC.PeerLSA[ilane()] + signal_id(a, w, a.DC.Rank), n);
}

constexpr int32_t part_tokens = 32;  // that a warp numbers at once

DB int32_t parts_of(int32_t all) { return (all + part_tokens - 1) / part_tokens; }

// before is how many rows a part has for a rank and, once HTTell has added up, the parts before it.
DB int32_t &before(const ht &a, int32_t rank, int32_t part, int32_t all) { return a.Before[rank * parts_of(all) + part]; }

// place_rows numbers those of some tokens that go to a rank, from 0, and says how many they are. A warp calls it.
DB uint32_t place_rows(const ht &a, int32_t rank, range mine) {
  range of = experts_of(a, rank);
  uint32_t n = 0;
  for (int32_t from = mine.first; from < mine.end; from += 32) {
    int32_t token = from + ilane();
    bool here = token < mine.end && goes(a, token, of);
    uint32_t set = vote(here);
    if (token < mine.end) a.Place[token * a.DC.Ranks + rank] = here ? int32_t(n + bits(set & ((1u << lane()) - 1))) : -1;
    n += bits(set);
  }
  return n;
}

KERNEL(HTLayout, ht, 32) {
  int32_t all = tokens(a);
  for (int32_t p = iwarp(); p * part_tokens < all; p += iwarps()) {
    int32_t first = p * part_tokens, end = first + part_tokens < all ? first + part_tokens : all;
    for (int32_t rank = 0; rank < a.DC.Ranks; rank++) {
      uint32_t n = place_rows(a, rank, {first, end});
      if (lane() == 0) before(a, rank, p, all) = int32_t(n);
    }
    for (int32_t i = first * a.TopK + ilane(); i < end * a.TopK; i += 32) {
      int32_t e = a.Idx[i];
      if (e < -1 || e >= a.Experts)
        refuse(a.Faults, a.State->Dispatches, moe::fault_selection, a.DC.Rank, i, e);
      else if (e >= 0)
        add_gpu(reinterpret_cast<uint32_t *>(a.Chosen + e), 1);
    }
  }
}

// add_parts finds how many rows for each rank are of the parts before each, and how many of all, a warp for each rank.
DB void add_parts(const ht &a) {
  const int32_t all = tokens(a), parts = parts_of(all), per = (parts + 31) / 32;
  const int32_t from = ilane() * per < parts ? ilane() * per : parts, to = from + per < parts ? from + per : parts;
  for (int32_t rank = int32_t(warp()); rank < a.DC.Ranks; rank += int32_t(warps())) {
    int32_t mine = 0;
    UNROLL_4 for (int32_t p = from; p < to; p++) mine += before(a, rank, p, all);
    int32_t n = mine;
    for (int32_t d = 1; d < 32; d *= 2) {
      int32_t more = int32_t(shfl(uint32_t(n), uint32_t(ilane() < d ? 0 : ilane() - d)));
      if (ilane() >= d) n += more;
    }
    n -= mine;
    UNROLL_4 for (int32_t p = from; p < to; p++) {
      int32_t more = before(a, rank, p, all);
      before(a, rank, p, all) = n;
      n += more;
    }
    if (lane() == 31) a.Mine[rank] = n;
  }
}

// tell tells a rank of this one's layout.
DB void tell(const ht &a, uint64_t op, int32_t rank) {
  int32_t *out = reinterpret_cast<int32_t *>(lsa_pointer(a.Win, rank, counts_at(a, op, a.DC.Rank)));
  for (int32_t i = ilane(); i < a.DC.Ranks; i += 32) out[i] = a.Mine[i];
  out += a.DC.Ranks + a.Channels;  // past the channels' messages between nodes, of which there are none
  range of = experts_of(a, rank);
  UNROLL_4 for (int32_t e = of.first + ilane(); e < of.end; e += 32) {
    out[e - of.first] = a.Chosen[e];
    a.Chosen[e] = 0;
  }
  sync_warp();
  if (lane() == 0) word::add_release_sys(a.DC.PeerLSA[rank] + signal_id(a, has_told, a.DC.Rank), 1);
}

// told_of is number i of what a rank told, 0 to most.
DB int32_t told_of(const ht &a, uint64_t op, int32_t rank, int32_t i, int32_t most) {
  int32_t n = reinterpret_cast<const int32_t *>(a.Win.Base + counts_at(a, op, rank))[i];
  if (n >= 0 && n <= most) return n;
  fail(a.Faults, op - 1, remote_error, moe::fault_layout, rank, n, most);
  return 0;
}

DB void plan(const ht &a, uint64_t op) {
  moe::htplan *p = a.Plan;
  const int32_t me = int32_t(thread()), all = int32_t(threads());
  uint32_t rows = 0;
  bool refused = false;
  for (int32_t rank = me; rank < a.DC.Ranks; rank += all) {
    int64_t n = 0;
    for (int32_t src = 0; src < a.DC.Ranks; src++) {
      if (src == a.DC.Rank) a.Base[rank] = int32_t(n);
      n += told_of(a, op, src, rank, a.MaxTokens);
    }
    if (n > a.MaxRows) {
      refuse(a.Faults, op - 1, moe::fault_rows, rank, n, a.MaxRows);
      refused = true;
    }
    if (rank == a.DC.Rank) rows = uint32_t(n);
  }
  refused = any_of_block(refused);
  if (me == a.DC.Rank % all) p->Rows = refused ? 0 : rows;
  if (me == 0) {
    p->Refused = refused, p->Tokens = tokens(a);
    if (a.Count && *a.Count > uint32_t(a.Tokens)) refuse(a.Faults, op - 1, moe::fault_tokens, a.DC.Rank, *a.Count, a.Tokens);
  }
  for (int32_t i = me; i < a.Channels; i += all) a.Routed[i] = 0;
  range of = experts_of(a, a.DC.Rank);
  for (int32_t e = me; e < of.end - of.first; e += all) {
    int32_t n = 0;
    for (int32_t src = 0; src < a.DC.Ranks; src++) n += told_of(a, op, src, a.DC.Ranks + a.Channels + e, a.MaxTokens * a.TopK);
    a.ExpertRows[e] = (n + a.Align - 1) / a.Align * a.Align;
    a.Selections[e] = refused ? 0 : n;
  }
}

KERNEL(HTTell, ht, 16) {
  if (over_warp(a)) return;
  uint64_t op = a.State->Dispatches + 1;
  if (thread() == 0) a.State->Begin = word::clock_ns();
  add_parts(a);
  sync_block();
  for (int32_t i = int32_t(warp()); i < a.DC.Ranks; i += int32_t(warps())) tell(a, op, (a.DC.Rank + i) % a.DC.Ranks);
  for (int32_t i = int32_t(thread()); i < a.DC.Ranks; i += int32_t(threads())) await(a, has_told, op, i);
  if (over_block(a.Faults)) return;
  plan(a, op);
  if (thread() == 0) a.State->Known = word::clock_ns();
}

// deliver stores a row at a rank.
DB void deliver(const ht &a, int32_t token, const uint8_t *payload, int32_t rank, int32_t row) {
  uint8_t *info = lsa_pointer(a.Win, rank, info_at(a, row));
  range of = experts_of(a, rank);
  if (lane() == 0) *reinterpret_cast<uint4 *>(info) = {uint32_t(a.DC.Rank), uint32_t(token), 0, 0};
  int32_t *experts = reinterpret_cast<int32_t *>(info + sizeof(moe::htinfo));
  float *weights = reinterpret_cast<float *>(experts + a.TopK);
  if (int32_t k = ilane(); k < a.TopK) {
    int32_t e = a.Idx[token * a.TopK + k];
    bool here = of.has(e);
    experts[k] = here ? e - of.first : -1;
    weights[k] = here && a.Weights ? a.Weights[token * a.TopK + k] : 0;
  }
  copy_warp(lsa_pointer(a.Win, rank, row_at(a, row)), payload, uint32_t(a.Payload));
}

// send sends the tokens of a channel. A warp calls it.
DB void send(const ht &a, int32_t channel) {
  const int32_t all = a.Plan->Tokens;
  range of = a.Plan->Refused ? range{0, 0} : part(a, channel, all);
  for (int32_t token = of.first; token < of.end; token++) {
    int32_t *places = a.Place + token * a.DC.Ranks, place = -1;
    if (ilane() < a.DC.Ranks) {
      place = places[ilane()];
      if (!a.Again) {
        int32_t more = before(a, ilane(), token / part_tokens, all) + a.Base[ilane()];
        if (place >= 0) places[ilane()] = place += more;
      }
    }
    const uint8_t *payload = a.X + uint64_t(uint32_t(token)) * row_bytes(a);
    if (a.Format != moe::bf16) {
      uint8_t *to = a.Scratch + uint64_t(uint32_t(iwarp())) * uint32_t(a.Payload);
      sync_warp();
      quantise({a.Format, a.Hidden, a.Values, a.Payload}, to, payload, 0, 1);
      sync_warp();
      payload = to;
    }
    for (int32_t i = 0; i < a.DC.Ranks; i++) {
      int32_t rank = (a.DC.Rank + channel + i) % a.DC.Ranks, row = int32_t(shfl(uint32_t(place), uint32_t(rank)));
      if (row >= 0) deliver(a, token, payload, rank, row);
    }
  }
}

// meet tells each rank that this one is done with the rows of the operation before, and waits for all. A block calls it.
DB bool meet(const ht &a) {
  uint64_t op = a.State->Dispatches + 1;
  const bool first = block() == 0 && thread() == 0;
  if (over_block(a.Faults)) return false;
  if (first) a.State->Begin = word::clock_ns();
  if (iwarp() == 0) signal_all(a, has_told, 1);
  if (warp() == 0 && ilane() < a.DC.Ranks) await(a, has_told, op, ilane());
  if (over_block(a.Faults)) return false;
  if (first) a.State->Known = word::clock_ns();
  return true;
}

KERNEL(HTDispatch, ht, 8) {
  if (a.Again ? !meet(a) : over_warp(a)) return;
  uint64_t sent = 0;
  for (int32_t channel = iwarp(); channel < a.Channels; channel += iwarps(), sent++) send(a, channel);
  signal_all(a, has_sent, sent);
  if (iwarp() != 0) return;
  if (lane() == 0) a.State->Sent = word::clock_ns();
  uint64_t op = a.State->Dispatches + 1;
  if (!await_all(a, has_sent, op * uint64_t(uint32_t(a.Channels)))) return;
  if (lane() == 0) a.State->Done = word::clock_ns(), a.State->Dispatches = op;
}

KERNEL(HTReady, ht, 1) {
  if (thread() == 0) a.State->Combines++;
  signal_all(a, is_ready, 1);
}

// at_once is how many loads of a lane are on their way; few_ranks how many ranks there are whose tokens are summed several columns
// at once, so that as many loads are on their way there.
constexpr int at_once = 8, few_ranks = 2;

// outputs is where what at_once ranks from number first on made of a token lies, and which of them made something. What it looks up
// hangs on no condition, so that all of it is on its way at once.
struct outputs {
  const uint4 *at[at_once];
  uint32_t have = 0;

  DB outputs(const ht &a, const int32_t *rows, int32_t first) {
    UNROLL for (int j = 0; j < at_once; j++) {
      const int32_t last = a.DC.Ranks - 1, rank = first + j < last ? first + j : last, row = rows[rank];
      at[j] = reinterpret_cast<const uint4 *>(lsa_pointer(a.Win, rank, out_at(a, row < 0 ? 0 : row)));
      if (rank == first + j && row >= 0) have |= 1u << j;
    }
  }
  DB bool has(int j) const { return have >> j & 1; }
  DB void add_to(sum &s, uint32_t i) const {
    uint4 v[at_once];
    UNROLL for (int j = 0; j < at_once; j++)
      if (has(j)) v[j] = at[j][i];
    UNROLL for (int j = 0; j < at_once; j++)
      if (has(j)) s.plus(v[j], 1);
  }
};

DB void add_bias(const ht &a, sum &s, int32_t token, uint32_t i) {
  for (const uint8_t *b : a.Bias)
    if (b) s.plus(reinterpret_cast<const uint4 *>(b + uint64_t(uint32_t(token)) * row_bytes(a))[i], 1);
}

// sum_few sums a token of few_ranks ranks at most.
DB void sum_few(const ht &a, uint4 *out, int32_t token, const outputs &o, uint32_t vecs) {
  constexpr int columns = at_once / few_ranks;
  for (uint32_t first = lane(); first < vecs; first += 32 * columns) {
    uint4 v[at_once];
    UNROLL for (int j = 0; j < at_once; j++)
      if (uint32_t i = first + uint32_t(j / few_ranks) * 32; o.has(j % few_ranks) && i < vecs) v[j] = o.at[j % few_ranks][i];
    UNROLL for (int c = 0; c < columns; c++) {
      uint32_t i = first + uint32_t(c) * 32;
      if (i >= vecs) break;
      sum s;
      UNROLL for (int j = 0; j < few_ranks; j++)
        if (o.has(j)) s.plus(v[c * few_ranks + j], 1);
      add_bias(a, s, token, i);
      out[i] = s.rounded();
    }
  }
}

// gather adds up what the ranks made of a token.
DB void gather(const ht &a, int32_t token) {
  const int32_t *rows = a.Place + token * a.DC.Ranks;
  const outputs here(a, rows, 0);
  const uint32_t vecs = row_bytes(a) / 16;
  uint4 *out = reinterpret_cast<uint4 *>(a.Y + uint64_t(uint32_t(token)) * row_bytes(a));
  if (a.DC.Ranks <= few_ranks) {
    sum_few(a, out, token, here, vecs);
  } else {
    for (uint32_t i = lane(); i < vecs; i += 32) {
      sum s;
      here.add_to(s, i);
      for (int32_t first = at_once; first < a.DC.Ranks; first += at_once) outputs(a, rows, first).add_to(s, i);
      add_bias(a, s, token, i);
      out[i] = s.rounded();
    }
  }
  if (!a.YWeights || ilane() >= a.TopK) return;
  float x = 0;
  for (int32_t rank = 0; rank < a.DC.Ranks; rank++)
    if (int32_t row = rows[rank]; row >= 0) x = add(x, reinterpret_cast<const float *>(lsa_pointer(a.Win, rank, out_weights_at(a, row)))[ilane()]);
  a.YWeights[token * a.TopK + ilane()] = x;
}

KERNEL(HTCombine, ht, 16) {
  if (over_warp(a)) return;
  const uint64_t op = a.State->Combines;
  if (!await_all(a, is_ready, op)) return;
  const int32_t channel = iwarp();
  range of = a.Plan->Refused ? range{0, 0} : part(a, channel, a.Plan->Tokens);
  for (int32_t token = of.first; token < of.end; token++) gather(a, token);
  signal_all(a, has_read, 1);
  if (channel == 0) await_all(a, has_read, op * uint64_t(uint32_t(a.Channels)));
}
