#include "attention_simd.hpp"

#include "base/dtype.hpp"
#include "simd_exp.hpp"

#if defined(OFFSTAGE_SIMD_avx512) || defined(OFFSTAGE_SIMD_avx2)
#include <immintrin.h>
#endif

namespace offstage::kernels::OFFSTAGE_SIMD {

namespace {

constexpr std::int64_t tile = attention_tile;

// A vector register, and how many rows of two of them the product keeps in registers.
#if defined(OFFSTAGE_SIMD_avx512)
using Vector = __m512;
constexpr std::int64_t lanes = 16;
constexpr std::int64_t block_rows = 8;
Vector load(float const* from) { return _mm512_loadu_ps(from); }
void save(float* to, Vector value) { _mm512_storeu_ps(to, value); }
Vector broadcast(float value) { return _mm512_set1_ps(value); }
Vector fused(Vector a, Vector b, Vector c) { return _mm512_fmadd_ps(a, b, c); }
#elif defined(OFFSTAGE_SIMD_avx2)
using Vector = __m256;
constexpr std::int64_t lanes = 8;
constexpr std::int64_t block_rows = 4;
Vector load(float const* from) { return _mm256_loadu_ps(from); }
void save(float* to, Vector value) { _mm256_storeu_ps(to, value); }
Vector broadcast(float value) { return _mm256_set1_ps(value); }
Vector fused(Vector a, Vector b, Vector c) { return _mm256_fmadd_ps(a, b, c); }
#else
struct Vector {
  float lane[4];
};
constexpr std::int64_t lanes = 4;
constexpr std::int64_t block_rows = 4;
Vector load(float const* from) { return {{from[0], from[1], from[2], from[3]}}; }
void save(float* to, Vector const& value) {
  for (int i = 0; i < 4; ++i) { to[i] = value.lane[i]; }
}
Vector broadcast(float value) { return {{value, value, value, value}}; }
Vector fused(Vector const& a, Vector const& b, Vector c) {
  for (int i = 0; i < 4; ++i) { c.lane[i] += a.lane[i] * b.lane[i]; }
  return c;
}
#endif
static_assert(tile % block_rows == 0 && tile % (2 * lanes) == 0);
static_assert(attention_padding % (2 * lanes) == 0);

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
    sum[i][0] = add ? load(c + i * c_stride) : broadcast(0.0F);
    sum[i][1] = add ? load(c + i * c_stride + lanes) : broadcast(0.0F);
  }
  for (std::int64_t p = 0; p < depth; ++p) {
    auto const b0 = load(b + p * b_stride);
    auto const b1 = load(b + p * b_stride + lanes);
#pragma GCC unroll 8
    for (std::int64_t i = 0; i < block_rows; ++i) {
      auto const x = broadcast(a.data[i * a.row + p * a.column]);
      sum[i][0] = fused(x, b0, sum[i][0]);
      sum[i][1] = fused(x, b1, sum[i][1]);
    }
  }
#pragma GCC unroll 8
  for (std::int64_t i = 0; i < block_rows; ++i) {
    save(c + i * c_stride, sum[i][0]);
    save(c + i * c_stride + lanes, sum[i][1]);
  }
}

/// c (tile, columns) = or += a (tile, depth) b (depth, columns); b and c are dense.
template <bool add>
void product(Left a, float const* b, float* c, std::int64_t columns, std::int64_t depth) {
  for (std::int64_t j = 0; j < columns; j += 2 * lanes) {
    for (std::int64_t i = 0; i < tile; i += block_rows) {
      product_block<add>({a.data + i * a.row, a.row, a.column}, b + j, columns,
                         c + i * columns + j, columns, depth);
    }
  }
}

/// The rows of one tile of a tensor that lie inside the sequence.
template <class T>
struct Source {
  T const* data;
  std::int64_t stride, rows, width;
};

/// target (tile, padded) = factor * source, zeros outside.
template <class T>
void widen(Source<T> const& source, float factor, float* target, std::int64_t padded) {
  for (std::int64_t r = 0; r < tile; ++r) {
    T const* const from = source.data + r * source.stride;
    float* const to = target + r * padded;
    std::int64_t const used = r < source.rows ? source.width : 0;
    for (std::int64_t c = 0; c < used; ++c) { to[c] = factor * offstage::load(from[c]); }
    for (std::int64_t c = used; c < padded; ++c) { to[c] = 0; }
  }
}

/// target (width, tile) = source transposed, zeros outside.
template <class T>
void widen_transposed(Source<T> const& source, float* target) {
  for (std::int64_t r = 0; r < tile; ++r) {
    T const* const from = source.data + r * source.stride;
    for (std::int64_t c = 0; c < source.width; ++c) {
      target[c * tile + r] = r < source.rows ? offstage::load(from[c]) : 0.0F;
    }
  }
}

/// target = factor * (rows, width) of source (tile, padded).
template <class T>
void narrow(float const* source, std::int64_t padded, float factor, T* target, std::int64_t stride,
            std::int64_t rows, std::int64_t width) {
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t c = 0; c < width; ++c) {
      target[r * stride + c] = offstage::store<T>(factor * source[r * padded + c]);
    }
  }
}

/// Hides the positions after each row's own in a tile on the diagonal.
void mask(float* scores, float value) {
  for (std::int64_t r = 0; r < tile; ++r) {
    for (std::int64_t c = r + 1; c < tile; ++c) { scores[r * tile + c] = value; }
  }
}

float largest_of(float const* row) {
  float lane[lanes];
  for (std::int64_t i = 0; i < lanes; ++i) { lane[i] = row[i]; }
  for (std::int64_t c = lanes; c < tile; c += lanes) {
    for (std::int64_t i = 0; i < lanes; ++i) {
      lane[i] = lane[i] < row[c + i] ? row[c + i] : lane[i];
    }
  }
  for (std::int64_t half = lanes / 2; half > 0; half /= 2) {
    for (std::int64_t i = 0; i < half; ++i) {
      lane[i] = lane[i] < lane[i + half] ? lane[i + half] : lane[i];
    }
  }
  return lane[0];
}

/// Running softmax of the rows of one tile of queries.
struct Softmax {
  float largest[tile];
  float total[tile][lanes];  ///< in parts, summed by finish()
};

/// scores <- exp(scores - largest so far), with the totals and `out` (tile, padded) rescaled where
/// a row has a new largest.
void softmax_tile(Softmax& state, float* scores, float* out, std::int64_t padded) {
  for (std::int64_t r = 0; r < tile; ++r) {
    float* const row = scores + r * tile;
    float* const total = state.total[r];
    float const here = largest_of(row);
    if (state.largest[r] < here) {
      float const factor = simd_exp(state.largest[r] - here);
      state.largest[r] = here;
      for (std::int64_t i = 0; i < lanes; ++i) { total[i] *= factor; }
      for (std::int64_t c = 0; c < padded; ++c) { out[r * padded + c] *= factor; }
    }
    float const largest = state.largest[r];
    for (std::int64_t c = 0; c < tile; ++c) { row[c] = simd_exp(row[c] - largest); }
    for (std::int64_t c = 0; c < tile; c += lanes) {
      for (std::int64_t i = 0; i < lanes; ++i) { total[i] += row[c + i]; }
    }
  }
}

float total_of(float const* parts) {
  float sum = 0;
  for (std::int64_t i = 0; i < lanes; ++i) { sum += parts[i]; }
  return sum;
}

/// Hands out pieces of a task's scratch memory.
struct Scratch {
  float* next;
  float* take(std::int64_t count) {
    float* const piece = next;
    next += count;
    return piece;
  }
};

std::int64_t padded_width(std::int64_t width) {
  return (width + attention_padding - 1) / attention_padding * attention_padding;
}

std::int64_t rows_of_tile(std::int64_t sequence, std::int64_t first) {
  return sequence - first < tile ? sequence - first : tile;
}

}  // namespace

template <class T>
void attention_forward(AttentionForwardTask<T> const& task) {
  auto const [sequence, group, width, qkv_stride, out_stride, scale, query, key, value, out,
              log_sum_exp, scratch] = task;
  auto const padded = padded_width(width);
  auto const rounded = (sequence + tile - 1) / tile * tile;
  Scratch pool{scratch};
  float* const keys = pool.take(rounded * padded);    // per tile (width, tile)
  float* const values = pool.take(rounded * padded);  // (sequence, padded)
  float* const queries = pool.take(tile * padded);
  float* const scores = pool.take(tile * tile);
  float* const sums = pool.take(tile * padded);
  for (std::int64_t first = 0; first < sequence; first += tile) {
    auto const rows = rows_of_tile(sequence, first);
    widen_transposed<T>({key + first * qkv_stride, qkv_stride, rows, width}, keys + first * padded);
    widen<T>({value + first * qkv_stride, qkv_stride, rows, width}, 1, values + first * padded,
             padded);
  }
  for (std::int64_t g = 0; g < group; ++g) {
    for (std::int64_t first = 0; first < sequence; first += tile) {
      auto const rows = rows_of_tile(sequence, first);
      widen<T>({query + g * width + first * qkv_stride, qkv_stride, rows, width}, scale, queries,
               padded);
      Softmax state;
      for (std::int64_t r = 0; r < tile; ++r) {
        state.largest[r] = -__builtin_inff();
        for (std::int64_t i = 0; i < lanes; ++i) { state.total[r][i] = 0; }
      }
      for (std::int64_t c = 0; c < tile * padded; ++c) { sums[c] = 0; }
      for (std::int64_t other = 0; other <= first; other += tile) {
        product<false>({queries, padded, 1}, keys + other * padded, scores, tile, width);
        if (other == first) { mask(scores, -__builtin_inff()); }
        softmax_tile(state, scores, sums, padded);
        product<true>({scores, tile, 1}, values + other * padded, sums, padded, tile);
      }
      for (std::int64_t r = 0; r < rows; ++r) {
        float const total = total_of(state.total[r]);
        narrow<T>(sums + r * padded, padded, 1 / total, out + g * width + (first + r) * out_stride,
                  out_stride, 1, width);
        log_sum_exp[g * sequence + first + r] = state.largest[r] + __builtin_logf(total);
      }
    }
  }
}

namespace {

/// P and dS of one tile, in the places of the scores and of dP.
void probabilities(float* scores, float* d_scores, float const* log_sum_exp, float const* mean) {
  for (std::int64_t r = 0; r < tile; ++r) {
    float* const p = scores + r * tile;
    float* const d = d_scores + r * tile;
    float const shift = log_sum_exp[r];
    float const offset = mean[r];
    for (std::int64_t c = 0; c < tile; ++c) {
      p[c] = simd_exp(p[c] - shift);
      d[c] = p[c] * (d[c] - offset);
    }
  }
}

}  // namespace

template <class T>
void attention_backward(AttentionBackwardTask<T> const& task) {
  auto const [sequence, group, width, qkv_stride, out_stride, scale, query, key, value, out, d_out,
              log_sum_exp, d_query, d_key, d_value, scratch] = task;
  auto const padded = padded_width(width);
  auto const rounded = (sequence + tile - 1) / tile * tile;
  Scratch pool{scratch};
  float* const keys = pool.take(rounded * padded);               // (sequence, padded)
  float* const keys_transposed = pool.take(rounded * padded);    // per tile (width, tile)
  float* const values_transposed = pool.take(rounded * padded);  // per tile (width, tile)
  float* const d_keys = pool.take(rounded * padded);
  float* const d_values = pool.take(rounded * padded);
  float* const queries = pool.take(tile * padded);
  float* const d_outs = pool.take(tile * padded);
  float* const d_queries = pool.take(tile * padded);
  float* const scores = pool.take(tile * tile);
  float* const d_scores = pool.take(tile * tile);
  for (std::int64_t first = 0; first < sequence; first += tile) {
    auto const rows = rows_of_tile(sequence, first);
    Source<T> const source{key + first * qkv_stride, qkv_stride, rows, width};
    widen<T>(source, 1, keys + first * padded, padded);
    widen_transposed<T>(source, keys_transposed + first * padded);
    widen_transposed<T>({value + first * qkv_stride, qkv_stride, rows, width},
                        values_transposed + first * padded);
  }
  for (std::int64_t c = 0; c < rounded * padded; ++c) { d_keys[c] = d_values[c] = 0; }

  for (std::int64_t g = 0; g < group; ++g) {
    for (std::int64_t first = 0; first < sequence; first += tile) {
      auto const rows = rows_of_tile(sequence, first);
      widen<T>({query + g * width + first * qkv_stride, qkv_stride, rows, width}, scale, queries,
               padded);
      auto const at = g * width + first * out_stride;
      widen<T>({d_out + at, out_stride, rows, width}, 1, d_outs, padded);
      float shift[tile] = {};
      float mean[tile] = {};  // of dP under P: the sum of dO * O
      for (std::int64_t r = 0; r < rows; ++r) {
        shift[r] = log_sum_exp[g * sequence + first + r];
        for (std::int64_t c = 0; c < width; ++c) {
          mean[r] += d_outs[r * padded + c] * offstage::load(out[at + r * out_stride + c]);
        }
      }
      for (std::int64_t c = 0; c < tile * padded; ++c) { d_queries[c] = 0; }
      for (std::int64_t other = 0; other <= first; other += tile) {
        auto const there = other * padded;
        product<false>({queries, padded, 1}, keys_transposed + there, scores, tile, width);
        if (other == first) { mask(scores, -__builtin_inff()); }
        product<false>({d_outs, padded, 1}, values_transposed + there, d_scores, tile, width);
        probabilities(scores, d_scores, shift, mean);
        product<true>({scores, 1, tile}, d_outs, d_values + there, padded, tile);
        product<true>({d_scores, 1, tile}, queries, d_keys + there, padded, tile);
        product<true>({d_scores, tile, 1}, keys + there, d_queries, padded, tile);
      }
      narrow<T>(d_queries, padded, scale, d_query + g * width + first * qkv_stride, qkv_stride,
                rows, width);
    }
  }
  narrow<T>(d_keys, padded, 1, d_key, qkv_stride, sequence, width);
  narrow<T>(d_values, padded, 1, d_value, qkv_stride, sequence, width);
}

template void attention_forward(AttentionForwardTask<float> const&);
template void attention_forward(AttentionForwardTask<bfloat16> const&);
template void attention_backward(AttentionBackwardTask<float> const&);
template void attention_backward(AttentionBackwardTask<bfloat16> const&);

}  // namespace offstage::kernels::OFFSTAGE_SIMD
