// SPDX-License-Identifier: Apache-2.0
// Written by go test ./bench/gpu -update. DO NOT EDIT.
// The arguments of the kernels in moe, as Go lays them out.
#pragma once
#include "../../include/doorbell/abi.cuh"

namespace doorbell::moe {

enum format : int32_t { bf16 = 0, fp8 = 1, fp8_pow2 = 2, fp8_ue8m0 = 3 };
enum fault : uint32_t {
  fault_wait = 2, fault_answer = 3, fault_selection = 4, fault_copies = 5, fault_tokens = 6,
  fault_count = 7, fault_header = 8, fault_rows = 9, fault_layout = 10
};

struct result {
  uint32_t Filled;
  uint32_t Status;
  uint32_t What;
  int32_t Rank;
  int64_t A;
  int64_t B;
  uint64_t Op;
  uint8_t reserved7[24];
};
static_assert(sizeof(result) == 64 && alignof(result) == 8);
static_assert(offsetof(result, Filled) == 0);
static_assert(offsetof(result, Status) == 4);
static_assert(offsetof(result, What) == 8);
static_assert(offsetof(result, Rank) == 12);
static_assert(offsetof(result, A) == 16);
static_assert(offsetof(result, B) == 24);
static_assert(offsetof(result, Op) == 32);
static_assert(offsetof(result, reserved7) == 40);

struct faults {
  uint32_t * Failed;
  uint32_t * Told;
  result * Results;
};
static_assert(sizeof(faults) == 24 && alignof(faults) == 8);
static_assert(offsetof(faults, Failed) == 0);
static_assert(offsetof(faults, Told) == 8);
static_assert(offsetof(faults, Results) == 16);

struct missing {
  uint32_t * Ranks;
};
static_assert(sizeof(missing) == 8 && alignof(missing) == 8);
static_assert(offsetof(missing, Ranks) == 0);

struct traffic {
  uint64_t Messages;
  uint64_t Bytes;
  uint64_t Signals;
  uint64_t reserved3;
};
static_assert(sizeof(traffic) == 32 && alignof(traffic) == 8);
static_assert(offsetof(traffic, Messages) == 0);
static_assert(offsetof(traffic, Bytes) == 8);
static_assert(offsetof(traffic, Signals) == 16);
static_assert(offsetof(traffic, reserved3) == 24);

struct meter {
  uint64_t * Waited;
  uint64_t * Taken;
  traffic * Traffic;
};
static_assert(sizeof(meter) == 24 && alignof(meter) == 8);
static_assert(offsetof(meter, Waited) == 0);
static_assert(offsetof(meter, Taken) == 8);
static_assert(offsetof(meter, Traffic) == 16);

struct header {
  uint32_t Token;
  uint32_t Op;
  uint8_t reserved2[8];
};
static_assert(sizeof(header) == 16 && alignof(header) == 4);
static_assert(offsetof(header, Token) == 0);
static_assert(offsetof(header, Op) == 4);
static_assert(offsetof(header, reserved2) == 8);

struct row_info {
  int32_t Rank;
  int32_t Token;
  int32_t K;
  int32_t Expert;
};
static_assert(sizeof(row_info) == 16 && alignof(row_info) == 4);
static_assert(offsetof(row_info, Rank) == 0);
static_assert(offsetof(row_info, Token) == 4);
static_assert(offsetof(row_info, K) == 8);
static_assert(offsetof(row_info, Expert) == 12);

struct block {
  uint32_t Begin;
  uint32_t Rows;
};
static_assert(sizeof(block) == 8 && alignof(block) == 4);
static_assert(offsetof(block, Begin) == 0);
static_assert(offsetof(block, Rows) == 4);

struct llturn {
  uint64_t Op;
  uint64_t Answers;
  int32_t Set;
  int32_t Half;
  int32_t Tokens;
  uint8_t reserved5[36];
};
static_assert(sizeof(llturn) == 64 && alignof(llturn) == 8);
static_assert(offsetof(llturn, Op) == 0);
static_assert(offsetof(llturn, Answers) == 8);
static_assert(offsetof(llturn, Set) == 16);
static_assert(offsetof(llturn, Half) == 20);
static_assert(offsetof(llturn, Tokens) == 24);
static_assert(offsetof(llturn, reserved5) == 28);

struct llnext {
  uint64_t Op;
  int32_t Place;
  uint32_t reserved2;
  uint32_t Looked;
  uint8_t reserved4[44];
};
static_assert(sizeof(llnext) == 64 && alignof(llnext) == 8);
static_assert(offsetof(llnext, Op) == 0);
static_assert(offsetof(llnext, Place) == 8);
static_assert(offsetof(llnext, reserved2) == 12);
static_assert(offsetof(llnext, Looked) == 16);
static_assert(offsetof(llnext, reserved4) == 20);

struct box {
  uint64_t Gone;
  uint32_t Taken;
  uint32_t reserved2;
};
static_assert(sizeof(box) == 16 && alignof(box) == 8);
static_assert(offsetof(box, Gone) == 0);
static_assert(offsetof(box, Taken) == 8);
static_assert(offsetof(box, reserved2) == 12);

struct ll {
  dev_comm DC;
  window Recv;
  window Stage;
  window Out;
  uint8_t * X;
  int32_t * Idx;
  float * Weights;
  uint8_t * Y;
  uint32_t * Count;
  uint8_t * Rows;
  row_info * Infos;
  uint32_t * Counts;
  block * Blocks;
  uint32_t * Own;
  llnext * Next;
  llturn * Now;
  uint64_t * Answers;
  uint64_t * Ends;
  box * Far;
  uint64_t * Packed;
  faults Faults;
  missing Missing;
  meter Meter;
  int32_t Tokens;
  int32_t MaxTokens;
  int32_t Cap;
  int32_t Hidden;
  int32_t TopK;
  int32_t Experts;
  int32_t Locals;
  int32_t Each;
  int32_t More;
  int32_t NoLSA;
  int32_t Deterministic;
  int32_t Near;
  int32_t PerRank;
  int32_t Boxes;
  int32_t BoxCap;
  int32_t Head;
  int32_t Sets;
  int32_t Turn;
  int32_t Parts;
  int32_t Format;
  int32_t Values;
  int32_t Payload;
};
static_assert(sizeof(ll) == 728 && alignof(ll) == 8);
static_assert(offsetof(ll, DC) == 0);
static_assert(offsetof(ll, Recv) == 336);
static_assert(offsetof(ll, Stage) == 376);
static_assert(offsetof(ll, Out) == 416);
static_assert(offsetof(ll, X) == 456);
static_assert(offsetof(ll, Idx) == 464);
static_assert(offsetof(ll, Weights) == 472);
static_assert(offsetof(ll, Y) == 480);
static_assert(offsetof(ll, Count) == 488);
static_assert(offsetof(ll, Rows) == 496);
static_assert(offsetof(ll, Infos) == 504);
static_assert(offsetof(ll, Counts) == 512);
static_assert(offsetof(ll, Blocks) == 520);
static_assert(offsetof(ll, Own) == 528);
static_assert(offsetof(ll, Next) == 536);
static_assert(offsetof(ll, Now) == 544);
static_assert(offsetof(ll, Answers) == 552);
static_assert(offsetof(ll, Ends) == 560);
static_assert(offsetof(ll, Far) == 568);
static_assert(offsetof(ll, Packed) == 576);
static_assert(offsetof(ll, Faults) == 584);
static_assert(offsetof(ll, Missing) == 608);
static_assert(offsetof(ll, Meter) == 616);
static_assert(offsetof(ll, Tokens) == 640);
static_assert(offsetof(ll, MaxTokens) == 644);
static_assert(offsetof(ll, Cap) == 648);
static_assert(offsetof(ll, Hidden) == 652);
static_assert(offsetof(ll, TopK) == 656);
static_assert(offsetof(ll, Experts) == 660);
static_assert(offsetof(ll, Locals) == 664);
static_assert(offsetof(ll, Each) == 668);
static_assert(offsetof(ll, More) == 672);
static_assert(offsetof(ll, NoLSA) == 676);
static_assert(offsetof(ll, Deterministic) == 680);
static_assert(offsetof(ll, Near) == 684);
static_assert(offsetof(ll, PerRank) == 688);
static_assert(offsetof(ll, Boxes) == 692);
static_assert(offsetof(ll, BoxCap) == 696);
static_assert(offsetof(ll, Head) == 700);
static_assert(offsetof(ll, Sets) == 704);
static_assert(offsetof(ll, Turn) == 708);
static_assert(offsetof(ll, Parts) == 712);
static_assert(offsetof(ll, Format) == 716);
static_assert(offsetof(ll, Values) == 720);
static_assert(offsetof(ll, Payload) == 724);

struct htinfo {
  int32_t Rank;
  int32_t Token;
  uint8_t reserved2[8];
};
static_assert(sizeof(htinfo) == 16 && alignof(htinfo) == 4);
static_assert(offsetof(htinfo, Rank) == 0);
static_assert(offsetof(htinfo, Token) == 4);
static_assert(offsetof(htinfo, reserved2) == 8);

struct htplan {
  uint32_t Rows;
  uint32_t Refused;
  int32_t Tokens;
  uint8_t reserved3[52];
};
static_assert(sizeof(htplan) == 64 && alignof(htplan) == 4);
static_assert(offsetof(htplan, Rows) == 0);
static_assert(offsetof(htplan, Refused) == 4);
static_assert(offsetof(htplan, Tokens) == 8);
static_assert(offsetof(htplan, reserved3) == 12);

struct htstate {
  uint64_t Dispatches;
  uint64_t Combines;
  uint64_t Begin;
  uint64_t Known;
  uint64_t Sent;
  uint64_t Done;
  uint8_t reserved6[16];
};
static_assert(sizeof(htstate) == 64 && alignof(htstate) == 8);
static_assert(offsetof(htstate, Dispatches) == 0);
static_assert(offsetof(htstate, Combines) == 8);
static_assert(offsetof(htstate, Begin) == 16);
static_assert(offsetof(htstate, Known) == 24);
static_assert(offsetof(htstate, Sent) == 32);
static_assert(offsetof(htstate, Done) == 40);
static_assert(offsetof(htstate, reserved6) == 48);

struct htway {
  uint64_t Staged;
  uint64_t Put;
  uint64_t Taken;
  uint64_t Freed;
  uint64_t Left;
  uint8_t reserved5[24];
};
static_assert(sizeof(htway) == 64 && alignof(htway) == 8);
static_assert(offsetof(htway, Staged) == 0);
static_assert(offsetof(htway, Put) == 8);
static_assert(offsetof(htway, Taken) == 16);
static_assert(offsetof(htway, Freed) == 24);
static_assert(offsetof(htway, Left) == 32);
static_assert(offsetof(htway, reserved5) == 40);

struct ht {
  dev_comm DC;
  window Win;
  uint8_t * X;
  uint8_t * Y;
  int32_t * Idx;
  float * Weights;
  uint32_t * Count;
  float * YWeights;
  uint8_t * Bias[2];
  htplan * Plan;
  int32_t * Place;
  int32_t * Base;
  int32_t * Routes;
  int32_t * Routed;
  int32_t * Selections;
  int32_t * ExpertRows;
  htstate * State;
  htway * Ways;
  int32_t * Before;
  int32_t * Mine;
  int32_t * Chosen;
  uint8_t * Scratch;
  faults Faults;
  missing Missing;
  meter Meter;
  uint64_t RowsAt;
  uint64_t InfosAt;
  uint64_t OutsAt;
  uint64_t OutWeightAt;
  uint64_t RingsAt;
  uint64_t StageAt;
  uint64_t InAt;
  uint64_t OutAt;
  uint64_t RingBytes;
  int32_t Tokens;
  int32_t MaxTokens;
  int32_t MaxRows;
  int32_t Hidden;
  int32_t TopK;
  int32_t Experts;
  int32_t Align;
  int32_t Node;
  int32_t Channels;
  int32_t ChannelRows;
  int32_t Ring;
  int32_t Chunk;
  int32_t CountBytes;
  int32_t InfoBytes;
  int32_t Head;
  int32_t Msg;
  int32_t Answer;
  int32_t Format;
  int32_t Values;
  int32_t Payload;
  int32_t Again;
  int32_t OneNode;
  int32_t Combine;
  uint8_t reserved57[4];
};
static_assert(sizeof(ht) == 768 && alignof(ht) == 8);
static_assert(offsetof(ht, DC) == 0);
static_assert(offsetof(ht, Win) == 336);
static_assert(offsetof(ht, X) == 376);
static_assert(offsetof(ht, Y) == 384);
static_assert(offsetof(ht, Idx) == 392);
static_assert(offsetof(ht, Weights) == 400);
static_assert(offsetof(ht, Count) == 408);
static_assert(offsetof(ht, YWeights) == 416);
static_assert(offsetof(ht, Bias) == 424);
static_assert(offsetof(ht, Plan) == 440);
static_assert(offsetof(ht, Place) == 448);
static_assert(offsetof(ht, Base) == 456);
static_assert(offsetof(ht, Routes) == 464);
static_assert(offsetof(ht, Routed) == 472);
static_assert(offsetof(ht, Selections) == 480);
static_assert(offsetof(ht, ExpertRows) == 488);
static_assert(offsetof(ht, State) == 496);
static_assert(offsetof(ht, Ways) == 504);
static_assert(offsetof(ht, Before) == 512);
static_assert(offsetof(ht, Mine) == 520);
static_assert(offsetof(ht, Chosen) == 528);
static_assert(offsetof(ht, Scratch) == 536);
static_assert(offsetof(ht, Faults) == 544);
static_assert(offsetof(ht, Missing) == 568);
static_assert(offsetof(ht, Meter) == 576);
static_assert(offsetof(ht, RowsAt) == 600);
static_assert(offsetof(ht, InfosAt) == 608);
static_assert(offsetof(ht, OutsAt) == 616);
static_assert(offsetof(ht, OutWeightAt) == 624);
static_assert(offsetof(ht, RingsAt) == 632);
static_assert(offsetof(ht, StageAt) == 640);
static_assert(offsetof(ht, InAt) == 648);
static_assert(offsetof(ht, OutAt) == 656);
static_assert(offsetof(ht, RingBytes) == 664);
static_assert(offsetof(ht, Tokens) == 672);
static_assert(offsetof(ht, MaxTokens) == 676);
static_assert(offsetof(ht, MaxRows) == 680);
static_assert(offsetof(ht, Hidden) == 684);
static_assert(offsetof(ht, TopK) == 688);
static_assert(offsetof(ht, Experts) == 692);
static_assert(offsetof(ht, Align) == 696);
static_assert(offsetof(ht, Node) == 700);
static_assert(offsetof(ht, Channels) == 704);
static_assert(offsetof(ht, ChannelRows) == 708);
static_assert(offsetof(ht, Ring) == 712);
static_assert(offsetof(ht, Chunk) == 716);
static_assert(offsetof(ht, CountBytes) == 720);
static_assert(offsetof(ht, InfoBytes) == 724);
static_assert(offsetof(ht, Head) == 728);
static_assert(offsetof(ht, Msg) == 732);
static_assert(offsetof(ht, Answer) == 736);
static_assert(offsetof(ht, Format) == 740);
static_assert(offsetof(ht, Values) == 744);
static_assert(offsetof(ht, Payload) == 748);
static_assert(offsetof(ht, Again) == 752);
static_assert(offsetof(ht, OneNode) == 756);
static_assert(offsetof(ht, Combine) == 760);
static_assert(offsetof(ht, reserved57) == 764);

}  // namespace doorbell::moe
