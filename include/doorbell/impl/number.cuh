// SPDX-License-Identifier: Apache-2.0
//
// Numbers that are reduced (gin/element.go, internal/num): the same bits on a CPU and on a GPU, and as Go gives them.
#pragma once
#include <cstring>
#include <type_traits>

#include "words.cuh"

namespace doorbell {

// op is how several numbers become one.
enum op : int32_t {
  op_sum,  // integers wrap; floats are added as float, one after another, and rounded to their type once
  op_min,  // of floats: one that is no NaN if there is one, and -0 is below 0
  op_max,
  op_and,  // bits, of integers alone
  op_or,
};

struct f16 {
  uint16_t bits;  // of an IEEE half-precision number
};
struct bf16 {
  uint16_t bits;  // of a bfloat16
};

namespace word {

template <class To, class From>
DOORBELL_DEVICE To bits_as(From v) {
  static_assert(sizeof(To) == sizeof(From));
  To t;
  memcpy(&t, &v, sizeof t);
  return t;
}

constexpr uint32_t float_inf = 0x7f800000;

// float_of is exact.
DOORBELL_DEVICE float float_of(float f) { return f; }
DOORBELL_DEVICE float float_of(bf16 h) { return bits_as<float>(uint32_t(h.bits) << 16); }
DOORBELL_DEVICE float float_of(f16 h) {
  uint32_t sign = uint32_t(h.bits & 0x8000) << 16, code = h.bits & 0x7fff, e = code >> 10, b = code << 13;
  if (e == 0)
    b = bits_as<uint32_t>(float(code) * 0x1p-24f);  // subnormal or zero: an exact product
  else
    b = e == 31 ? b | float_inf : b + (112u << 23);
  return bits_as<float>(sign | b);
}

// shift_round is v / 2^s to the nearest, ties to even, for s in 1..25.
DOORBELL_DEVICE uint32_t shift_round(uint32_t v, uint32_t s) { return (v + ((1u << (s - 1)) - 1) + (v >> s & 1)) >> s; }

// round_to is the nearest number of the type, ties to even; any NaN becomes 0x7fff.
DOORBELL_DEVICE void round_to(float f, float &out) { out = f; }
DOORBELL_DEVICE void round_to(float f, bf16 &out) {
  uint32_t b = bits_as<uint32_t>(f);
  out.bits = (b & 0x7fffffff) > float_inf ? 0x7fff : uint16_t(shift_round(b, 16));
}
DOORBELL_DEVICE void round_to(float f, f16 &out) {
  uint32_t b = bits_as<uint32_t>(f), abs = b & 0x7fffffff, e = abs >> 23, code = 0;
  if (abs > float_inf) {
    out.bits = 0x7fff;
    return;
  }
  if (e >= 113)
    code = shift_round(abs - (112u << 23), 13);
  else if (e > 101)  // subnormal there: units of 2^-24
    code = shift_round((abs & 0x7fffff) | 0x800000, 126 - e);
  out.bits = uint16_t((b >> 16 & 0x8000) | (code < 0x7c00 ? code : 0x7c00));
}

// from_bits is a number of what an lla2a slot holds.
DOORBELL_DEVICE void from_bits(uint64_t v, float &out) { out = bits_as<float>(uint32_t(v)); }
DOORBELL_DEVICE void from_bits(uint64_t v, f16 &out) { out.bits = uint16_t(v); }
DOORBELL_DEVICE void from_bits(uint64_t v, bf16 &out) { out.bits = uint16_t(v); }

template <class T>
DOORBELL_DEVICE T combine(op o, T a, T b) {
  if constexpr (std::is_integral<T>::value) {
    switch (o) {
      case op_sum: return T(std::make_unsigned_t<T>(a) + std::make_unsigned_t<T>(b));
      case op_min: return a < b ? a : b;
      case op_max: return a > b ? a : b;
      case op_and: return a & b;
      default: return a | b;
    }
  } else {
    static_assert(std::is_same<T, float>::value);
    if (o == op_sum) return a + b;
    if (a != a) return b;
    if (b != b) return a;
    bool below = a < b || (a == b && bits_as<uint32_t>(a) >> 31);  // of two zeros that with the sign
    return (o == op_min) == below ? a : b;
  }
}

// reduces says whether numbers of type T are reduced so.
template <class T>
DOORBELL_DEVICE bool reduces(op o) {
  return o >= op_sum && o <= (std::is_integral<T>::value ? op_or : op_max);
}

// reduce makes one number of n, where next(i, v) fetches number i and says whether it is there.
template <class T, class Next>
DOORBELL_DEVICE uint32_t reduce(op o, int32_t n, T &out, Next next) {
  T v;
  if (uint32_t s = next(0, v)) return s;
  if constexpr (std::is_integral<T>::value) {
    T sum = v;
    for (int32_t i = 1; i < n; i++) {
      if (uint32_t s = next(i, v)) return s;
      sum = combine(o, sum, v);
    }
    out = sum;
  } else {
    float sum = float_of(v);
    for (int32_t i = 1; i < n; i++) {
      if (uint32_t s = next(i, v)) return s;
      sum = combine(o, sum, float_of(v));
    }
    round_to(sum, out);
  }
  return 0;
}

}  // namespace word
}  // namespace doorbell
