// SPDX-License-Identifier: Apache-2.0
//
// The windows of all LSA peers at once (gin/multimem.go): what is stored reaches each of them, what is loaded is reduced over
// them, in the order of their LSA ranks 0, 1, 2, ... It is emulated by a loop over the peers, here as in Go: a device whose
// hardware does it reduces in an order of its own.
//
// Stores and loads are plain: a barrier stands between them and those of other ranks. To be used while the window is
// registered.
#pragma once
#include "gin.cuh"
#include "impl/number.cuh"

namespace doorbell {

// multimem is filled in by context::multimem; each call of another one is invalid.
class multimem {
 public:
  // size is how many bytes each peer's part has: that of the smallest.
  DOORBELL_DEVICE uint64_t bytes() const { return size; }

  // store stores v, of 1, 2, 4, 8 or 16 bytes, at byte off of each LSA peer's part. invalid, and nothing is written: an offset
  // past the end of the smallest one, or no multiple of v's size.
  template <class T>
  DOORBELL_DEVICE status store(uint64_t off, T v) const {
    static_assert(sizeof(T) <= 16 && (sizeof(T) & (sizeof(T) - 1)) == 0 && std::is_trivially_copyable<T>::value);
    if (!holds<T>(off)) return invalid;
    for (int32_t p = 0; p < ranks; p++) *at<T>(p, off) = v;
    return ok;
  }

  // reduce loads the integer, float, f16 or bf16 at byte off of each LSA peer's part and makes one of them. Floats have op_sum,
  // op_min and op_max; they are reduced as float and rounded once. invalid: as store, and an operation that is none.
  template <class T>
  DOORBELL_DEVICE status reduce(uint64_t off, op o, T &out) const {
    if (!word::reduces<T>(o) || !holds<T>(off)) return invalid;
    return status(word::reduce(o, ranks, out, [&](int32_t p, T &v) {
      v = *at<T>(p, off);
      return uint32_t(ok);
    }));
  }

 private:
  friend class context;

  window w = {};
  uint64_t size = 0;  // 0 of what was refused
  int32_t ranks = 0;

  template <class T>
  DOORBELL_DEVICE bool holds(uint64_t off) const {
    return off % sizeof(T) == 0 && word::in_bounds(off, sizeof(T), size);
  }
  template <class T>
  DOORBELL_DEVICE T *at(int32_t p, uint64_t off) const {
    return reinterpret_cast<T *>(lsa_pointer(w, p, off));
  }
};

DOORBELL_DEVICE status context::multimem(const window &w, doorbell::multimem &m) const {
  m = {};
  if (id < 0 || dc.Multimem == 0 || !w.Info || w.Gen == 0 || word::generation(w.Info) != w.Gen) return invalid;
  uint64_t size = w.Size;
  for (int32_t p = 0; p < dc.LSASize; p++) {
    if (reinterpret_cast<uint64_t>(word::base_of(w, w.LSA0 + p)) & 15) return invalid;
    uint64_t has = word::size_of(w.Info, w.LSA0 + p);
    if (has < size) size = has;
  }
  m.w = w, m.size = size, m.ranks = dc.LSASize;
  return ok;
}

}  // namespace doorbell
