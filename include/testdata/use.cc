// SPDX-License-Identifier: Apache-2.0
//
// Uses each call of gin.cuh once, as C++ and as CUDA C++, and holds the encoder against the words that Go's gives.
#include <doorbell/lla2a.cuh>
#include <doorbell/multimem.cuh>

using namespace doorbell;

#ifdef __CUDACC__
#define KERNEL extern "C" __global__ void
#else
#define KERNEL extern "C" void
#endif

KERNEL use(const dev_comm dc, window a, window b, signal_window w, uint32_t *out) {
  context c(dc, 0);
  team all = world(dc);
  source any = from_any();
  request r;
  bool done;
  uint32_t s = c.put(by_block, all, 1, a, 0, b, 0, 100, strong_inc(0).counter(0).aggregate());
  s |= c.put(by_thread, all.inner(2), 1, a, 0, b, 0, 8, weak_add(0, 3).skip_credit());
  s |= c.put_value(by_warp, all.outer(2), 1, a, 0, 3, 8, weak_add_at(w, 8, 2));
  s |= c.get(by_block, rail(dc), 1, a, 0, b, 0, 100, none().counter(1));
  s |= c.signal(by_thread, all, 1, strong_add(0, 2)) | c.signal(by_thread, all, 1, weak_inc(0));
  s |= c.signal(by_thread, all, 1, strong_inc_at(w, 0)) | c.signal(by_thread, all, 1, strong_add_at(w, 0, 1)) | c.signal(by_thread, all, 1, weak_inc_at(w, 0));
  s |= c.wait_signal(by_block, 0, 1, from_team(all)) | c.reset_signal(by_block, 0);
  s |= c.wait_lsa_signal(by_block, 0, 1, any);
  s |= c.wait_signal_at(by_block, w, 8, 1, any, 32) | c.reset_signal_at(by_block, w, 8);
  s |= c.add_shadow(0, 1) | c.wait_meet(by_block, 0, any);
  s |= c.wait_counter(by_block, 0, 1, from_peer(all, lsa_rank(dc, 1))) | c.reset_counter(by_block, 0);
  s |= c.flush(by_block) | c.flush_peer(by_block, lsa(dc), 1);
  s |= c.flush_async(by_block, all, 1, r) | c.test(r, done) | c.wait(by_block, r);
  request each[4];
  uint64_t before, delta, v;
  s |= c.flush_all_async(by_block, each) | c.test_all(each, done) | c.wait_all(by_block, each) | uint32_t(c.requests());
  s |= c.fence_contexts(by_block, all, 1, 0, 2) | c.wait_follow(by_block, 0, 1, any, before, delta) | c.hybrid_barrier(by_block, 0, fence_put);
  multimem m;
  lla2a l;
  float f;
  s |= c.multimem(a, m) | m.store(0, f16{1}) | m.reduce(m.bytes() - 8, op_sum, v) | m.reduce(0, op_max, f);
  s |= c.lla2a(by_block, 0, l) | l.send(1, 0, v) | l.bcast(1, v) | l.send_from(1, 2, b.Base, 20) | l.bcast_from(5, b.Base, 9);
  s |= l.recv(0, any, v) | l.recv_into(1, a.Base, 20, any) | l.recv_reduce(0, 1, 2, op_min, any, v) | l.recv_reduce(0, 1, 2, op_sum, any, f) | l.end_epoch();
  s |= uint32_t(all.rank_in(dc, lsa(dc), 1) + all.contains(dc, 1) + rank_in_difference(all, lsa(dc), 0));
  s |= c.lsa_put(by_block, 1, a, 0, b.Base, 100) | c.lsa_signal(by_block, 1, 0, 1) | c.lsa_signal_at(by_block, 1, w, 8, 1);
  s |= c.lsa_barrier(by_block, 0) | c.barrier(by_block, all, 0, fence_put) | c.barrier(by_warp, all, 0, fence_get);
  *lsa_pointer(a, 1, 0) = uint8_t(c.read_signal(0) + c.read_lsa_signal(0) + c.read_signal_at(w, 0) + c.read_counter(0) + c.shadow(0) + done);
  *out = s;
}

// The golden vector of internal/abi's TestDescGolden.
struct words {
  uint64_t w[desc_words];
};
constexpr words golden() {
  desc d = {};
  d.Op = op_put, d.Flags = flag_signal_add | flag_strong | flag_counter, d.Size = 0x0000123456789abc;
  d.DstOff = 0x1122334455667788, d.Src = 0x8070605040302010, d.SigVal = 0xfedcba9876543210, d.SigOff = 0x0102030405060708;
  d.DstGen = 0x1234567, d.DstWin = 0x89abcdef, d.Version = desc_version, d.SrcWin = 0xdeadbeef, d.SigGen = 0x5a5a5a5, d.Counter = 0x7654321, d.SigID = 0xcafef00d;
  words out = {};
  encode(d, out.w, phase_bit);
  return out;
}
constexpr words got = golden();
static_assert(got.w[0] == 0x845b123456789abc && got.w[1] == 0x9122334455667788 && got.w[2] == 0x8070605040302010 && got.w[3] == 0xfedcba9876543210);
static_assert(got.w[4] == 0x8102030405060708 && got.w[5] == 0xc4d5e6f781234567 && got.w[6] == 0xef56df7795a5a5a5 && got.w[7] == 0xe57f780687654321);
