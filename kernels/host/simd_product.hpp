#pragma once

#include <cstdint>

#if defined(__AVX512F__) || defined(__AVX2__)
#include <immintrin.h>
#endif

/// FP32 products of small matrices that lie in the caches.
namespace offstage::kernels {
namespace {  // sources compiled for one instruction set must not share it (base/simd.hpp)

/// Rows of a product.
constexpr std::int64_t product_tile = 64;

// A vector register, and how many rows of two of them the product keeps in registers.
#if defined(__AVX512F__)
using Vector = __m512;
constexpr std::int64_t lanes = 16;
constexpr std::int64_t block_rows = 8;
inline Vector read(float const* from) {
  return _mm512_loadu_ps(from);
}
inline void write(float* to, Vector value) {
  _mm512_storeu_ps(to, value);
}
inline Vector broadcast(float value) {
  return _mm512_set1_ps(value);
}
inline Vector fused(Vector a, Vector b, Vector c) {
  return _mm512_fmadd_ps(a, b, c);
}
// Not _mm512_max_ps: GCC 12 warns about an uninitialised value inside it.
inline Vector larger(Vector a, Vector b) {
  return _mm512_maskz_max_ps(0xFFFF, a, b);
}
#elif defined(__AVX2__) && defined(__FMA__)
using Vector = __m256;
constexpr std::int64_t lanes = 8;
constexpr std::int64_t block_rows = 4;
inline Vector read(float const* from) {
  return _mm256_loadu_ps(from);
}
inline void write(float* to, Vector value) {
  _mm256_storeu_ps(to, value);
}
inline Vector broadcast(float value) {
  return _mm256_set1_ps(value);
}
inline Vector fused(Vector a, Vector b, Vector c) {
  return _mm256_fmadd_ps(a, b, c);
}
inline Vector larger(Vector a, Vector b) {
  return _mm256_max_ps(a, b);
}
#else
struct Vector {
  float lane[4];
};
constexpr std::int64_t lanes = 4;
constexpr std::int64_t block_rows = 4;
inline Vector read(float const* from) {
  return {{from[0], from[1], from[2], from[3]}};
}
inline void write(float* to, Vector const& value) {
  for (int i = 0; i < 4; ++i) {
    to[i] = value.lane[i];
  }
}
inline Vector broadcast(float value) {
  return {{value, value, value, value}};
}
inline Vector fused(Vector const& a, Vector const& b, Vector c) {
  for (int i = 0; i < 4; ++i) {
    c.lane[i] += a.lane[i] * b.lane[i];
  }
  return c;
}
inline Vector larger(Vector a, Vector const& b) {
  for (int i = 0; i < 4; ++i) {
    a.lane[i] = a.lane[i] > b.lane[i] ? a.lane[i] : b.lane[i];
  }
  return a;
}
#endif
static_assert(product_tile % block_rows == 0 && product_tile % (2 * lanes) == 0);

/// A matrix that products read by element: (i, p) is at data[i * row + p * column].
struct Left {
  float const* data;
  std::int64_t row, column;
};

/// c (block_rows, 2 lanes) = or += a (block_rows, depth) b (depth, 2 lanes).
template <bool add>
[[gnu::always_inline]] inline void product_block(Left a, float const* b, std::int64_t b_stride,
                                                 float* c, std::int64_t c_stride,
                                                 std::int64_t depth) {
  Vector sum[block_rows][2];
#pragma GCC unroll 8
  for (std::int64_t i = 0; i < block_rows; ++i) {
    sum[i][0] = add ? read(c + i * c_stride) : broadcast(0.0F);
    sum[i][1] = add ? read(c + i * c_stride + lanes) : broadcast(0.0F);
  }
  for (std::int64_t p = 0; p < depth; ++p) {
    auto const b0 = read(b + p * b_stride);
    auto const b1 = read(b + p * b_stride + lanes);
#pragma GCC unroll 8
    for (std::int64_t i = 0; i < block_rows; ++i) {
      auto const x = broadcast(a.data[i * a.row + p * a.column]);
      sum[i][0] = fused(x, b0, sum[i][0]);
      sum[i][1] = fused(x, b1, sum[i][1]);
    }
  }
#pragma GCC unroll 8
  for (std::int64_t i = 0; i < block_rows; ++i) {
    write(c + i * c_stride, sum[i][0]);
    write(c + i * c_stride + lanes, sum[i][1]);
  }
}

/// Part of a tile on the diagonal that a product needs: rows are queries and columns keys, or a is
/// (queries, keys), or a is (keys, queries). A key counts for its own query and later ones.
enum class Part { whole, scores, weights, transposed_weights };

/// c (product_tile, columns) = or += a (product_tile, depth) b (depth, columns); b and c are dense.
/// Under Part::scores, c above the diagonal is undefined.
template <bool add>
void product(Left a, float const* b, float* c, std::int64_t columns, std::int64_t depth,
             Part part) {
  for (std::int64_t i = 0; i < product_tile; i += block_rows) {
    auto const first = part == Part::transposed_weights ? i : 0;
    auto const last = part == Part::weights ? i + block_rows : depth;
    for (std::int64_t j = 0; j < columns; j += 2 * lanes) {
      if (part == Part::scores && j >= i + block_rows) {
        break;
      }
      product_block<add>({a.data + i * a.row + first * a.column, a.row, a.column},
                         b + first * columns + j, columns, c + i * columns + j, columns,
                         last - first);
    }
  }
}

}  // namespace
}  // namespace offstage::kernels
