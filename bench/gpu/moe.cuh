// SPDX-License-Identifier: Apache-2.0
//
// What twins of both forms of package moe have in common: faults, whose an expert is, rows as FP8 and sums of rows, as
// moe/fault_kernels.go, spread_kernels.go, quant_kernels.go and sum_kernels.go have them.
#pragma once
#include "lanes.cuh"
#include "moe_args.cuh"

using namespace doorbell;

DB bool failed(const moe::faults &f) { return load_gpu(f.Failed) != 0; }

DB void tell(const moe::faults &f, int i, moe::result r) {
  if (!word::cas_gpu(f.Told + i, uint32_t(0), uint32_t(1))) return;
  f.Results[i] = r;
  word::release_sys(&f.Results[i].Filled, uint32_t(1));
}
DB void refuse(const moe::faults &f, uint64_t op, moe::fault what, int32_t rank, int64_t x, int64_t y) {
  tell(f, 0, {0, invalid, what, rank, x, y, op, {}});
}
DB void fail(const moe::faults &f, uint64_t op, uint32_t s, moe::fault what, int32_t rank, int64_t x, int64_t y) {
  *reinterpret_cast<volatile uint32_t *>(f.Failed) = 1;
  tell(f, 1, {0, s, what, rank, x, y, op, {}});
}

// over_block says whether operations have failed, the same to all threads of a block.
DB bool over_block(const moe::faults &f) { return any_of_block(failed(f)); }

// spread is experts over ranks, as package moe's.
struct spread {
  int32_t each, more;
  DB spread(int32_t experts, int32_t ranks) : each(experts / ranks), more(experts % ranks) {}
  DB int32_t first(int32_t rank) const { return rank * each + min_of(rank, more); }
  DB int32_t owner(int32_t e) const {
    int32_t large = more * (each + 1);
    return e < large ? e / (each + 1) : more + (e - large) / each;
  }

 private:
  DB static int32_t min_of(int32_t a, int32_t b) { return a < b ? a : b; }
};

// row_format is how rows are sent.
struct row_format {
  int32_t format, hidden, values, payload;
};

constexpr uint32_t group = 128;  // elements that share a scale

// above_infinity takes the bits of the magnitude of an infinity or a NaN, and of nothing less, over their 15 bits.
constexpr uint32_t above_infinity = 0x80;

// top_of is above_infinity more than the largest of the magnitudes of eight BF16; infinities and NaN come to less than a zero does.
DB uint32_t top_of(const uint4 &v) {
  const uint32_t in[4] = {v.x, v.y, v.z, v.w};
  uint32_t lo = 0, hi = 0;
  UNROLL for (int j = 0; j < 4; j++) {
    const uint32_t w = ((in[j] & 0x7fff7fff) + (above_infinity << 16 | above_infinity)) & 0x7fff7fff;
    lo = larger(lo, w << 16), hi = larger(hi, w);
  }
  return larger(lo, hi) >> 16;
}

// top_of_group is the largest magnitude of a group, of four that a half of the warp has: lanes 0 to 3 of the half get the first's,
// and so on.
DB uint32_t top_of_group(const uint4 (&v)[4], uint32_t at) {
  uint32_t a = top_of(v[0]), b = top_of(v[1]), c = top_of(v[2]), d = top_of(v[3]);
  const bool last_two = at & 8, odd = at & 4;
  const uint32_t keep_a = last_two ? c : a, keep_b = last_two ? d : b;
  a = larger(keep_a, shfl_xor(last_two ? a : c, 8)), b = larger(keep_b, shfl_xor(last_two ? b : d, 8));
  a = larger(odd ? b : a, shfl_xor(odd ? a : b, 4));
  a = larger(a, shfl_xor(a, 2));
  a = larger(a, shfl_xor(a, 1));
  return larger(a, above_infinity) - above_infinity;
}

DB uint32_t e4m3x4(uint32_t lo, uint32_t hi, float by) {
  return e4m3x2(mul(bf16_lo(lo), by), mul(bf16_hi(lo), by)) | e4m3x2(mul(bf16_lo(hi), by), mul(bf16_hi(hi), by)) << 16;
}

// quantise writes a row of BF16 as e4m3 and its scales, by so many warps that share the row: half a warp has a group, 8 elements
// a lane, and at_once groups are on their way.
DB void quantise(const row_format &f, uint8_t *row, const uint8_t *from, uint32_t warp_number, uint32_t all_warps) {
  constexpr int at_once = 4;
  const uint32_t eights = uint32_t(f.hidden) / 8, groups = (uint32_t(f.hidden) + group - 1) / group;
  const uint32_t half = warp_number * 2 + lane() / 16, halves = all_warps * 2, at = lane() % 16;
  const uint4 *x = reinterpret_cast<const uint4 *>(from);
  uint2 *q = reinterpret_cast<uint2 *>(row);
  uint8_t *scales = row + f.values;
  for (uint32_t base = warp_number * 2; base < groups; base += at_once * halves) {  // the same to all lanes
    uint4 v[at_once];
    UNROLL for (int k = 0; k < at_once; k++) {
      uint32_t i = (base + lane() / 16 + k * halves) * 16 + at;
      v[k] = i < eights ? x[i] : uint4{};
    }
    const uint32_t g = base + lane() / 16 + at / 4 * halves;  // whose scale this lane has
    float top = as_float(top_of_group(v, at) << 16);
    if (top < 1e-4f) top = 1e-4f;
    float scale = top / 448, by = 448 / top;
    uint32_t e = 0;
    if (f.format != moe::fp8) {
      e = (as_bits(scale) + 0x7fffff) >> 23;  // raised to a power of two
      scale = as_float(e << 23), by = as_float((254 - e) << 23);
    }
    if (at % 4 == 0 && g < groups) {
      if (f.format == moe::fp8_ue8m0)
        scales[g] = uint8_t(e);
      else
        reinterpret_cast<float *>(scales)[g] = scale;
    }
    UNROLL for (int k = 0; k < at_once; k++) {
      const uint32_t i = (base + lane() / 16 + k * halves) * 16 + at;
      const float with = as_float(shfl(as_bits(by), lane() - at + 4 * k));
      if (i < eights) q[i] = {e4m3x4(v[k].x, v[k].y, with), e4m3x4(v[k].z, v[k].w, with)};
    }
  }
  const uint32_t me = half * 16 + at, all = halves * 16;
  if (me == 0 && eights % 2 != 0) q[eights] = {};
  uint32_t used = uint32_t(f.values) + (f.format == moe::fp8_ue8m0 ? groups : 4 * groups);
  for (uint32_t i = used + me; i < uint32_t(f.payload); i += all) row[i] = 0;
}

// sum is of 8 elements: round(w*v), then round(acc+p).
struct sum {
  float lo[4] = {}, hi[4] = {};

  DB void add_to(int i, uint32_t v, float w) {
    lo[i] = add(lo[i], mul(w, bf16_lo(v)));
    hi[i] = add(hi[i], mul(w, bf16_hi(v)));
  }
  DB void plus(const uint4 &v, float w) { add_to(0, v.x, w), add_to(1, v.y, w), add_to(2, v.z, w), add_to(3, v.w, w); }
  DB uint4 rounded() const { return {bf16x2(lo[0], hi[0]), bf16x2(lo[1], hi[1]), bf16x2(lo[2], hi[2]), bf16x2(lo[3], hi[3])}; }
};
