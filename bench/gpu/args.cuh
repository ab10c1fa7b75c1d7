// SPDX-License-Identifier: Apache-2.0
// Written by go test ./bench/gpu -update. DO NOT EDIT.
// The arguments of the kernels in bench, as Go lays them out.
#pragma once
#include "../../include/doorbell/abi.cuh"

namespace doorbell {

struct result {
  uint32_t Status;
  uint32_t Done;
  uint64_t At;
  uint64_t Ns;
  uint64_t Count;
  uint64_t Wrong;
  uint8_t reserved6[24];
};
static_assert(sizeof(result) == 64 && alignof(result) == 8);
static_assert(offsetof(result, Status) == 0);
static_assert(offsetof(result, Done) == 4);
static_assert(offsetof(result, At) == 8);
static_assert(offsetof(result, Ns) == 16);
static_assert(offsetof(result, Count) == 24);
static_assert(offsetof(result, Wrong) == 32);
static_assert(offsetof(result, reserved6) == 40);

struct exchange {
  dev_comm DC;
  window Send;
  window Recv;
  uint64_t SendOff;
  uint64_t RecvOff;
  uint64_t Bytes;
  uint64_t Iters;
  uint64_t Base;
  uint32_t * Samples;
  uint64_t Every;
  result * Result;
  int32_t Peer;
  int32_t LSA;
};
static_assert(sizeof(exchange) == 488 && alignof(exchange) == 8);
static_assert(offsetof(exchange, DC) == 0);
static_assert(offsetof(exchange, Send) == 336);
static_assert(offsetof(exchange, Recv) == 376);
static_assert(offsetof(exchange, SendOff) == 416);
static_assert(offsetof(exchange, RecvOff) == 424);
static_assert(offsetof(exchange, Bytes) == 432);
static_assert(offsetof(exchange, Iters) == 440);
static_assert(offsetof(exchange, Base) == 448);
static_assert(offsetof(exchange, Samples) == 456);
static_assert(offsetof(exchange, Every) == 464);
static_assert(offsetof(exchange, Result) == 472);
static_assert(offsetof(exchange, Peer) == 480);
static_assert(offsetof(exchange, LSA) == 484);

struct rate_args {
  exchange X;
  uint64_t Ns;
  uint64_t Seed;
  uint64_t Iter;
};
static_assert(sizeof(rate_args) == 512 && alignof(rate_args) == 8);
static_assert(offsetof(rate_args, X) == 0);
static_assert(offsetof(rate_args, Ns) == 488);
static_assert(offsetof(rate_args, Seed) == 496);
static_assert(offsetof(rate_args, Iter) == 504);

struct all_to_all_args {
  exchange X;
  uint64_t Step;
};
static_assert(sizeof(all_to_all_args) == 496 && alignof(all_to_all_args) == 8);
static_assert(offsetof(all_to_all_args, X) == 0);
static_assert(offsetof(all_to_all_args, Step) == 488);

struct post_args {
  exchange X;
  uint64_t Span;
  uint64_t Step;
  int32_t Signal;
  int32_t reserved4;
};
static_assert(sizeof(post_args) == 512 && alignof(post_args) == 8);
static_assert(offsetof(post_args, X) == 0);
static_assert(offsetof(post_args, Span) == 488);
static_assert(offsetof(post_args, Step) == 496);
static_assert(offsetof(post_args, Signal) == 504);
static_assert(offsetof(post_args, reserved4) == 508);

struct wqes_args {
  exchange X;
  int32_t Value;
  int32_t Signal;
  int32_t Lanes;
  int32_t reserved4;
};
static_assert(sizeof(wqes_args) == 504 && alignof(wqes_args) == 8);
static_assert(offsetof(wqes_args, X) == 0);
static_assert(offsetof(wqes_args, Value) == 488);
static_assert(offsetof(wqes_args, Signal) == 492);
static_assert(offsetof(wqes_args, Lanes) == 496);
static_assert(offsetof(wqes_args, reserved4) == 500);

struct copy_args {
  dev_comm DC;
  window Send;
  window Recv;
  uint64_t Bytes;
  uint32_t * Refused;
  int32_t Peer;
};
static_assert(sizeof(copy_args) == 440 && alignof(copy_args) == 8);
static_assert(offsetof(copy_args, DC) == 0);
static_assert(offsetof(copy_args, Send) == 336);
static_assert(offsetof(copy_args, Recv) == 376);
static_assert(offsetof(copy_args, Bytes) == 416);
static_assert(offsetof(copy_args, Refused) == 424);
static_assert(offsetof(copy_args, Peer) == 432);

struct bulk_copy_args {
  window Send;
  window Recv;
  uint64_t Bytes;
  uint64_t Timeout;
  uint32_t * Failed;
  int32_t Peer;
  int32_t reserved6;
};
static_assert(sizeof(bulk_copy_args) == 112 && alignof(bulk_copy_args) == 8);
static_assert(offsetof(bulk_copy_args, Send) == 0);
static_assert(offsetof(bulk_copy_args, Recv) == 40);
static_assert(offsetof(bulk_copy_args, Bytes) == 80);
static_assert(offsetof(bulk_copy_args, Timeout) == 88);
static_assert(offsetof(bulk_copy_args, Failed) == 96);
static_assert(offsetof(bulk_copy_args, Peer) == 104);
static_assert(offsetof(bulk_copy_args, reserved6) == 108);

}  // namespace doorbell
