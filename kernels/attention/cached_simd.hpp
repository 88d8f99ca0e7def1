#pragma once

#include <cstdint>

#include "base/simd.hpp"

namespace offstage::kernels {

/// One row of one head of a CachedAttention (internal to the room).
template <class T>
struct CachedRow {
  std::int64_t count;  ///< keys that it sees; 1 at least
  std::int64_t width;
  std::int64_t pitch;  ///< elements from one key to the next
  T const* query;
  T const* keys;    ///< the first that it sees, and those behind it
  T const* values;  ///< the values of these keys
  T* out;
};

/// Scratch: count + width floats. Defined in cached_simd.cpp, once for each `simd`.
template <Simd simd, class T>
void attend_row(CachedRow<T> const& row, float* scratch);

}  // namespace offstage::kernels
