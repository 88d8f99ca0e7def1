#pragma once

#include <immintrin.h>

#include <cstdint>

#include "base/dtype.hpp"

/// Products of small bf16 matrices that lie in the caches, with FP32 sums: by AMX in a source that
/// is compiled for it, else by AVX512-BF16. Both take the same operands, and neither keeps
/// subnormals.
namespace offstage::kernels {
namespace {  // sources compiled for one instruction set must not share it (base/simd.hpp)

/// Rows, columns and depth of a product are multiples of this.
constexpr std::int64_t bf16_edge = 32;

/// Two bf16 elements that lie one above the other in a matrix; the upper one is in the lower half.
using Pair [[gnu::may_alias]] = std::uint32_t;

/// A matrix whose rows are `stride` elements apart.
struct Bf16Rows {
  bfloat16 const* data;
  std::int64_t stride;
};

/// Part of a tile on the diagonal that a product needs. A key counts for its own query and later
/// ones.
enum class Bf16Part {
  whole,
  scores,   ///< c is (keys, queries); what lies before a key's own block of queries is undefined
  weights,  ///< a is (keys, queries)
  values    ///< b is (keys, queries)
};

struct Bf16Sizes {
  std::int64_t rows, columns, depth;
};

#ifdef __AMX_BF16__

constexpr std::int64_t bf16_block_rows = 32;

/// Shapes of the eight tile registers, all of 16 rows of 64 bytes, while it lives on a thread.
class Bf16Products {
 public:
  Bf16Products() {
    Shapes shapes;
    for (int i = 0; i < 8; ++i) {
      shapes.row_bytes[i] = 64;
      shapes.rows[i] = 16;
    }
    asm volatile("" ::"r"(&shapes) : "memory");  // GCC 12 does not know that all of them are read
    _tile_loadconfig(&shapes);
  }
  ~Bf16Products() { _tile_release(); }
  Bf16Products(Bf16Products const&) = delete;
  Bf16Products& operator=(Bf16Products const&) = delete;

 private:
  struct alignas(64) Shapes {
    std::uint8_t palette = 1;
    std::uint8_t start_row = 0;
    std::uint8_t reserved[14] = {};
    std::uint16_t row_bytes[16] = {};
    std::uint8_t rows[16] = {};
  };
  static_assert(sizeof(Shapes) == 64);
};

/// c (32, 32) = or += a (32, 2 pairs) b (pairs, 32).
template <bool add>
[[gnu::always_inline]] inline void bf16_block(Bf16Rows a, Pair const* b, float* c,
                                              std::int64_t columns, std::int64_t pairs) {
  auto const a_bytes = a.stride * 2;
  auto const c_bytes = columns * 4;
  float* const below = c + 16 * columns;
  if constexpr (add) {
    _tile_loadd(0, c, c_bytes);
    _tile_loadd(1, c + 16, c_bytes);
    _tile_loadd(2, below, c_bytes);
    _tile_loadd(3, below + 16, c_bytes);
  } else {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  }
  for (std::int64_t p = 0; p < pairs; p += 16) {
    _tile_loadd(4, a.data + 2 * p, a_bytes);
    _tile_loadd(5, a.data + 16 * a.stride + 2 * p, a_bytes);
    _tile_loadd(6, b + p * columns, c_bytes);
    _tile_loadd(7, b + p * columns + 16, c_bytes);
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  _tile_stored(0, c, c_bytes);
  _tile_stored(1, c + 16, c_bytes);
  _tile_stored(2, below, c_bytes);
  _tile_stored(3, below + 16, c_bytes);
}

#else

constexpr std::int64_t bf16_block_rows = 8;

/// AMX needs it.
class Bf16Products {
 public:
  Bf16Products() {}
};

/// c (8, 32) = or += a (8, 2 pairs) b (pairs, 32).
template <bool add>
[[gnu::always_inline]] inline void bf16_block(Bf16Rows a, Pair const* b, float* c,
                                              std::int64_t columns, std::int64_t pairs) {
  __m512 sum[bf16_block_rows][2];
#pragma GCC unroll 8
  for (std::int64_t i = 0; i < bf16_block_rows; ++i) {
    sum[i][0] = add ? _mm512_loadu_ps(c + i * columns) : _mm512_setzero_ps();
    sum[i][1] = add ? _mm512_loadu_ps(c + i * columns + 16) : _mm512_setzero_ps();
  }
  for (std::int64_t p = 0; p < pairs; ++p) {
    auto const b0 = reinterpret_cast<__m512bh>(_mm512_loadu_si512(b + p * columns));
    auto const b1 = reinterpret_cast<__m512bh>(_mm512_loadu_si512(b + p * columns + 16));
#pragma GCC unroll 8
    for (std::int64_t i = 0; i < bf16_block_rows; ++i) {
      auto const pair = *reinterpret_cast<Pair const*>(a.data + i * a.stride + 2 * p);
      auto const x = reinterpret_cast<__m512bh>(_mm512_set1_epi32(static_cast<int>(pair)));
      sum[i][0] = _mm512_dpbf16_ps(sum[i][0], x, b0);
      sum[i][1] = _mm512_dpbf16_ps(sum[i][1], x, b1);
    }
  }
#pragma GCC unroll 8
  for (std::int64_t i = 0; i < bf16_block_rows; ++i) {
    _mm512_storeu_ps(c + i * columns, sum[i][0]);
    _mm512_storeu_ps(c + i * columns + 16, sum[i][1]);
  }
}

#endif

/// c (rows, columns) = or += a (rows, depth) b (depth, columns); c is dense. b is in pairs, half
/// as many rows.
template <bool add>
void product(Bf16Rows a, Pair const* b, float* c, Bf16Sizes sizes, Bf16Part part) {
  auto const [rows, columns, depth] = sizes;
  asm volatile("" ::: "memory");  // GCC 12 does not know that tiles are loaded from memory
  for (std::int64_t j = 0; j < columns; j += bf16_edge) {
    auto const last = part == Bf16Part::values ? j + bf16_edge : depth;
    for (std::int64_t i = 0; i < rows; i += bf16_block_rows) {
      if (part == Bf16Part::scores && j + bf16_edge <= i) {
        break;
      }
      auto const first = part == Bf16Part::weights ? i / bf16_edge * bf16_edge : 0;
      bf16_block<add>({a.data + i * a.stride + first, a.stride}, b + first / 2 * columns + j,
                      c + i * columns + j, columns, (last - first) / 2);
    }
  }
}

}  // namespace
}  // namespace offstage::kernels
