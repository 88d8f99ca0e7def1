#include "kernels/attention/attention_bf16.hpp"

#include <immintrin.h>

#include <cstdint>

#include "base/dtype.hpp"
#include "kernels/host/bf16_product.hpp"

namespace offstage::kernels::OFFSTAGE_SIMD {

namespace {

// Tiles of scores are (keys, queries): what belongs to a query lies in a lane of vectors, so that
// nothing is summed across one, and two rows of weights are pairs as the next product wants them.

constexpr std::int64_t tile = attention_tile;
constexpr std::int64_t lanes = 16;
static_assert(tile % bf16_edge == 0 && attention_padding % bf16_edge == 0);

constexpr float log2_e = 1.44269504F;
constexpr float ln_2 = 0.693147181F;

/// The rows of one tile of a tensor that lie inside the sequence.
struct Source {
  bfloat16 const* data;
  std::int64_t stride, rows, width;
};

/// target (tile, padded) = source, zeros outside.
void copy(Source const& source, bfloat16* target, std::int64_t padded) {
  for (std::int64_t r = 0; r < tile; ++r) {
    bfloat16* const to = target + r * padded;
    std::int64_t const used = r < source.rows ? source.width : 0;
    __builtin_memcpy(to, source.data + r * source.stride, static_cast<std::size_t>(2 * used));
    for (std::int64_t c = used; c < padded; ++c) {
      to[c].bits = 0;
    }
  }
}

/// In words of 32 bits.
void transpose(__m512i (&rows)[lanes]) {
  __m512i half[lanes];
  for (int i = 0; i < 16; i += 2) {
    half[i] = _mm512_maskz_unpacklo_epi32(0xFFFF, rows[i], rows[i + 1]);
    half[i + 1] = _mm512_maskz_unpackhi_epi32(0xFFFF, rows[i], rows[i + 1]);
  }
  for (int i = 0; i < 16; i += 4) {
    rows[i] = _mm512_maskz_unpacklo_epi64(0xFF, half[i], half[i + 2]);
    rows[i + 1] = _mm512_maskz_unpackhi_epi64(0xFF, half[i], half[i + 2]);
    rows[i + 2] = _mm512_maskz_unpacklo_epi64(0xFF, half[i + 1], half[i + 3]);
    rows[i + 3] = _mm512_maskz_unpackhi_epi64(0xFF, half[i + 1], half[i + 3]);
  }
  // Now rows[4 q + r] holds, in its four parts, columns r, 4 + r, 8 + r and 12 + r of four rows,
  // from 4 q on.
  for (int r = 0; r < 4; ++r) {
    auto const a = _mm512_maskz_shuffle_i32x4(0xFFFF, rows[r], rows[4 + r], 0x88);
    auto const b = _mm512_maskz_shuffle_i32x4(0xFFFF, rows[8 + r], rows[12 + r], 0x88);
    auto const c = _mm512_maskz_shuffle_i32x4(0xFFFF, rows[r], rows[4 + r], 0xDD);
    auto const d = _mm512_maskz_shuffle_i32x4(0xFFFF, rows[8 + r], rows[12 + r], 0xDD);
    half[r] = _mm512_maskz_shuffle_i32x4(0xFFFF, a, b, 0x88);
    half[4 + r] = _mm512_maskz_shuffle_i32x4(0xFFFF, c, d, 0x88);
    half[8 + r] = _mm512_maskz_shuffle_i32x4(0xFFFF, a, b, 0xDD);
    half[12 + r] = _mm512_maskz_shuffle_i32x4(0xFFFF, c, d, 0xDD);
  }
  for (int i = 0; i < 16; ++i) {
    rows[i] = half[i];
  }
}

/// visit(column, row, words) for each 16 words of the transpose of `source` (rows, columns), in
/// words of 32 bits.
template <class Visit>
[[gnu::always_inline]] inline void for_each_transposed(void const* source, std::int64_t rows,
                                                       std::int64_t columns, Visit const& visit) {
  auto const* const words = static_cast<Pair const*>(source);
  for (std::int64_t c = 0; c < columns; c += lanes) {
    for (std::int64_t r = 0; r < rows; r += lanes) {
      __m512i block[lanes];
      for (std::int64_t i = 0; i < lanes; ++i) {
        block[i] = _mm512_loadu_si512(words + (r + i) * columns + c);
      }
      transpose(block);
      for (std::int64_t i = 0; i < lanes; ++i) {
        visit(c + i, r, block[i]);
      }
    }
  }
}

/// target (padded / 2, tile): `source` (tile, padded) transposed, in pairs.
void transpose_to_pairs(bfloat16 const* source, std::int64_t padded, Pair* target) {
  for_each_transposed(source, tile, padded / 2,
                      [&](std::int64_t column, std::int64_t row, __m512i words) {
                        _mm512_storeu_si512(target + column * tile + row, words);
                      });
}

/// target (padded, tile): `source` (tile, padded) transposed.
void transpose_to_rows(bfloat16 const* source, std::int64_t padded, bfloat16* target) {
  for_each_transposed(
      source, tile, padded / 2, [&](std::int64_t column, std::int64_t row, __m512i words) {
        auto* const upper = reinterpret_cast<__m256i*>(target + 2 * column * tile + row);
        auto* const lower = reinterpret_cast<__m256i*>(target + (2 * column + 1) * tile + row);
        _mm256_storeu_si256(upper, _mm512_maskz_cvtepi32_epi16(0xFFFF, words));
        auto const high = _mm512_maskz_srli_epi32(0xFFFF, words, 16);
        _mm256_storeu_si256(lower, _mm512_maskz_cvtepi32_epi16(0xFFFF, high));
      });
}

/// target (tile, padded): `source` (padded, tile) transposed.
void transpose_floats(float const* source, std::int64_t padded, float* target) {
  for_each_transposed(source, padded, tile,
                      [&](std::int64_t column, std::int64_t row, __m512i words) {
                        _mm512_storeu_si512(target + column * padded + row, words);
                      });
}

/// target (tile / 2, padded): `source` (tile, padded) in pairs.
void to_pairs(bfloat16 const* source, std::int64_t padded, Pair* target) {
  auto const widened = [](bfloat16 const* from) {
    auto const values = _mm256_loadu_si256(reinterpret_cast<__m256i const*>(from));
    return _mm512_maskz_cvtepu16_epi32(0xFFFF, values);
  };
  for (std::int64_t r = 0; r < tile; r += 2) {
    for (std::int64_t c = 0; c < padded; c += lanes) {
      bfloat16 const* const from = source + r * padded + c;
      auto const below = _mm512_maskz_slli_epi32(0xFFFF, widened(from + padded), 16);
      _mm512_storeu_si512(target + r / 2 * padded + c, _mm512_or_si512(widened(from), below));
    }
  }
}

/// target = factor * (rows, width) of source (rows, padded).
void narrow(float const* source, std::int64_t padded, float factor, bfloat16* target,
            std::int64_t stride, std::int64_t rows, std::int64_t width) {
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t c = 0; c < width; ++c) {
      target[r * stride + c] = store<bfloat16>(factor * source[r * padded + c]);
    }
  }
}

/// 2^x within 2e-7 of its value; 0 and infinity where it is too small or large, NaN for NaN and
/// infinities.
[[gnu::always_inline]] inline __m512 exp2(__m512 x) {
  // A minimax fit of 2^r for |r| <= 1/2.
  auto const n = _mm512_maskz_roundscale_ps(0xFFFF, x, _MM_FROUND_TO_NEAREST_INT);
  auto const r = _mm512_sub_ps(x, n);
  auto p = _mm512_set1_ps(0.00132764725F);
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0.00967554096F));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0.0555071309F));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0.240221202F));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0.693146944F));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.00000012F));
  return _mm512_maskz_scalef_ps(0xFFFF, p, n);
}

/// Which pairs of keys and queries a tile of scores hides.
struct TileKind {
  bool diagonal;  ///< its keys' positions are its queries'
  bool edge;      ///< some queries do not see some keys before them
};

/// A tile of keys, from position `first` on, as its queries see it.
struct SeenKeys {
  std::int32_t const* first_keys;  ///< the first that each query sees, if the kind is `edge`
  std::int64_t first;

  /// The queries of 16, from query `query` on, that see a key of the tile; on the diagonal one that
  /// is before query + 16.
  template <TileKind kind>
  [[gnu::always_inline]] __mmask16 by_queries(std::int64_t key, std::int64_t query) const {
    auto seen = static_cast<__mmask16>(0xFFFF);
    if (kind.diagonal && key > query) {
      seen = static_cast<__mmask16>(0xFFFFU << (key - query));
    }
    if constexpr (kind.edge) {
      auto const from = _mm512_loadu_si512(first_keys + query);
      auto const position = _mm512_set1_epi32(static_cast<std::int32_t>(first + key));
      seen = _mm512_mask_cmple_epi32_mask(seen, from, position);
    }
    return seen;
  }
};

/// A kind as a type.
template <bool diagonal, bool edge>
struct KindOf {
  constexpr operator TileKind() const { return {diagonal, edge}; }
};
/// work(KindOf<diagonal, edge>{})
template <class Work>
void with_kind(bool diagonal, bool edge, Work const& work) {
  if (diagonal) {
    edge ? work(KindOf<true, true>{}) : work(KindOf<true, false>{});
  } else {
    edge ? work(KindOf<false, true>{}) : work(KindOf<false, false>{});
  }
}

/// On the diagonal: keys that one of 16 queries sees, from query `first` on, and those that
/// products want zeros of.
constexpr std::int64_t keys_seen(std::int64_t first) {
  return first + lanes;
}
constexpr std::int64_t keys_read(std::int64_t first) {
  return (first / bf16_edge + 1) * bf16_edge;
}

/// Two rows of 16 numbers rounded to bf16, one behind the other.
[[gnu::always_inline]] inline __m512i rounded(__m512 upper, __m512 lower) {
  return reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(lower, upper));
}

/// Pairs of two rows that are one behind the other.
[[gnu::always_inline]] inline __m512i paired(__m512i rows) {
  alignas(64) static constexpr std::uint16_t order[32] = {
      0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
      8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
  return _mm512_maskz_permutexvar_epi16(0xFFFFFFFF, _mm512_load_si512(order), rows);
}

/// Running softmax of the queries of one tile.
struct alignas(64) Softmax {
  float shift[tile];  ///< of scores, in powers of two: the largest one, or not much less
  float total[tile];
};

/// weights (tile / 2, tile) in pairs = 2^(factor scores - shift); totals are added to. Where a
/// score exceeds the shift by a factor of 2^8, the shift, the totals and `sums` (padded, tile)
/// follow; `begin`: all are undefined yet.
template <TileKind kind>
void softmax_tile(Softmax& state, float factor, float const* scores, SeenKeys const& seen_keys,
                  Pair* weights, float* sums, std::int64_t padded, bool begin) {
  constexpr bool masked = kind.diagonal || kind.edge;
  constexpr float most_above = 8;
  constexpr float none_seen = -1e30F;  // finite, so that its distance to a score is a number
  auto const factors = _mm512_set1_ps(factor);
  for (std::int64_t first = 0; first < tile; first += lanes) {
    std::int64_t const keys = kind.diagonal ? keys_seen(first) : tile;
    auto largest = kind.edge ? _mm512_set1_ps(none_seen) : _mm512_loadu_ps(scores + first);
    for (std::int64_t key = kind.edge ? 0 : 1; key < keys; ++key) {
      auto const seen = seen_keys.by_queries<kind>(key, first);
      auto const row = _mm512_loadu_ps(scores + key * tile + first);
      largest = _mm512_mask_max_ps(largest, seen, largest, row);
    }
    largest = _mm512_mul_ps(largest, factors);
    auto shift = _mm512_load_ps(state.shift + first);
    auto total = _mm512_load_ps(state.total + first);
    if (begin) {
      shift = largest;
      total = _mm512_setzero_ps();
    } else {
      auto const limit = _mm512_add_ps(shift, _mm512_set1_ps(most_above));
      auto const above = _mm512_cmp_ps_mask(largest, limit, _CMP_GT_OQ);
      if (above != 0) {
        auto const next = _mm512_mask_mov_ps(shift, above, largest);
        auto const scale = exp2(_mm512_sub_ps(shift, next));
        shift = next;
        total = _mm512_mul_ps(total, scale);
        for (std::int64_t c = 0; c < padded; ++c) {
          float* const sum = sums + c * tile + first;
          _mm512_storeu_ps(sum, _mm512_mul_ps(_mm512_loadu_ps(sum), scale));
        }
      }
    }
    auto total_below = _mm512_setzero_ps();
    for (std::int64_t key = 0; key < keys; key += 2) {
      float const* const from = scores + key * tile + first;
      auto upper = exp2(_mm512_fmsub_ps(_mm512_loadu_ps(from), factors, shift));
      auto lower = exp2(_mm512_fmsub_ps(_mm512_loadu_ps(from + tile), factors, shift));
      if constexpr (masked) {
        upper = _mm512_maskz_mov_ps(seen_keys.by_queries<kind>(key, first), upper);
        lower = _mm512_maskz_mov_ps(seen_keys.by_queries<kind>(key + 1, first), lower);
      }
      total = _mm512_add_ps(total, upper);
      total_below = _mm512_add_ps(total_below, lower);
      _mm512_storeu_si512(weights + key / 2 * tile + first, paired(rounded(upper, lower)));
    }
    for (std::int64_t key = keys; key < keys_read(first); key += 2) {
      _mm512_storeu_si512(weights + key / 2 * tile + first, _mm512_setzero_si512());
    }
    _mm512_store_ps(state.shift + first, shift);
    _mm512_store_ps(state.total + first, _mm512_add_ps(total, total_below));
  }
}

/// Hands out pieces of a task's scratch memory.
struct Scratch {
  float* next;
  float* floats(std::int64_t count) {
    float* const piece = next;
    next += count;
    return piece;
  }
  Pair* pairs(std::int64_t count) { return reinterpret_cast<Pair*>(floats(count)); }
  bfloat16* halves(std::int64_t count) { return reinterpret_cast<bfloat16*>(floats(count / 2)); }
};

std::int64_t padded_width(std::int64_t width) {
  return (width + attention_padding - 1) / attention_padding * attention_padding;
}

std::int64_t rounded_up(std::int64_t sequence) {
  return (sequence + tile - 1) / tile * tile;
}

std::int64_t rows_of_tile(std::int64_t sequence, std::int64_t first) {
  return sequence - first < tile ? sequence - first : tile;
}

/// What all tiles of a forward task share. Scratch, as floats: one copy of the sequence, less than
/// eight tiles.
struct ForwardBuffers {
  ForwardBuffers(Scratch pool, std::int64_t sequence, std::int64_t width)
      : padded{padded_width(width)},
        keys{pool.halves(rounded_up(sequence) * padded)},
        values{pool.halves(rounded_up(sequence) * padded)},
        rows{pool.halves(tile * padded)},
        queries{pool.pairs(tile * padded / 2)},
        scores{pool.floats(tile * tile)},
        weights{pool.pairs(tile * tile / 2)},
        sums{pool.floats(tile * padded)},
        out{pool.floats(tile * padded)} {}
  std::int64_t padded;
  bfloat16* keys;    ///< (sequence, padded)
  bfloat16* values;  ///< (padded, tile) for each tile
  bfloat16* rows;    ///< (tile, padded)
  Pair* queries;     ///< (padded / 2, tile)
  float* scores;     ///< (tile, tile)
  Pair* weights;     ///< (tile / 2, tile)
  float* sums;       ///< (padded, tile)
  float* out;        ///< (tile, padded)
};

/// The tile of queries from position `first` on of the g-th query head.
void forward_tile(AttentionForwardTask<bfloat16> const& task, ForwardBuffers const& buffers,
                  std::int64_t g, std::int64_t first) {
  auto const width = task.width;
  auto const padded = buffers.padded;
  auto const rows = rows_of_tile(task.sequence, first);
  auto const factor = task.scale * log2_e;
  copy({task.query + g * width + first * task.qkv_stride, task.qkv_stride, rows, width},
       buffers.rows, padded);
  transpose_to_pairs(buffers.rows, padded, buffers.queries);
  Softmax state;
  std::int64_t const first_tile = task.first_keys.first_tile(first);
  for (std::int64_t other = first_tile; other <= first; other += tile) {
    bool const diagonal = other == first;
    bool const begin = other == first_tile;
    product<false>({buffers.keys + other * padded, padded}, buffers.queries, buffers.scores,
                   {tile, tile, padded}, diagonal ? Bf16Part::scores : Bf16Part::whole);
    with_kind(diagonal, task.first_keys.hide(first, other), [&](auto kind) {
      softmax_tile<kind>(state, factor, buffers.scores, {task.first_keys.from(first), other},
                         buffers.weights, buffers.sums, padded, begin);
    });
    auto const add = begin ? product<false> : product<true>;
    add({buffers.values + other * padded, tile}, buffers.weights, buffers.sums,
        {padded, tile, tile}, diagonal ? Bf16Part::values : Bf16Part::whole);
  }
  transpose_floats(buffers.sums, padded, buffers.out);
  for (std::int64_t r = 0; r < rows; ++r) {
    narrow(buffers.out + r * padded, padded, 1 / state.total[r],
           task.out + g * width + (first + r) * task.out_stride, task.out_stride, 1, width);
    task.log_sum_exp[g * task.sequence + first + r] =
        state.shift[r] * ln_2 + __builtin_logf(state.total[r]);
  }
}

/// As ForwardBuffers. Scratch, as floats: less than four copies of the sequence, no more than eight
/// tiles.
struct BackwardBuffers {
  BackwardBuffers(Scratch pool, std::int64_t sequence, std::int64_t width)
      : padded{padded_width(width)},
        keys{pool.halves(rounded_up(sequence) * padded)},
        keys_transposed{pool.halves(rounded_up(sequence) * padded)},
        values{pool.halves(rounded_up(sequence) * padded)},
        d_keys{pool.floats(rounded_up(sequence) * padded)},
        d_values{pool.floats(rounded_up(sequence) * padded)},
        rows{pool.halves(tile * padded)},
        queries{pool.pairs(tile * padded / 2)},
        queries_transposed{pool.pairs(tile * padded / 2)},
        d_outs{pool.pairs(tile * padded / 2)},
        d_outs_transposed{pool.pairs(tile * padded / 2)},
        d_queries{pool.floats(tile * padded)},
        d_query_rows{pool.floats(tile * padded)},
        scores{pool.floats(tile * tile)},
        d_weights{pool.floats(tile * tile)},
        weights{pool.halves(tile * tile)},
        d_scores{pool.halves(tile * tile)},
        d_score_pairs{pool.pairs(tile * tile / 2)} {}
  std::int64_t padded;
  bfloat16* keys;             ///< (sequence, padded)
  bfloat16* keys_transposed;  ///< (padded, tile) for each tile
  bfloat16* values;           ///< (sequence, padded)
  float* d_keys;              ///< (sequence, padded)
  float* d_values;            ///< (sequence, padded)
  bfloat16* rows;             ///< (tile, padded)
  Pair* queries;              ///< (tile / 2, padded)
  Pair* queries_transposed;   ///< (padded / 2, tile)
  Pair* d_outs;               ///< (tile / 2, padded)
  Pair* d_outs_transposed;    ///< (padded / 2, tile)
  float* d_queries;           ///< (padded, tile)
  float* d_query_rows;        ///< (tile, padded)
  float* scores;              ///< (tile, tile), as all that follow
  float* d_weights;
  bfloat16* weights;
  bfloat16* d_scores;
  Pair* d_score_pairs;  ///< (tile / 2, tile)
};

/// What each query of a tile brings to backward.
struct alignas(64) QueryRows {
  float shift[tile] = {};  ///< of scores, in powers of two
  float mean[tile] = {};   ///< of the weights' gradients under the weights
};

float dot(bfloat16 const* a, bfloat16 const* b, std::int64_t count) {
  float parts[lanes] = {};
  std::int64_t c = 0;
  for (; c + lanes <= count; c += lanes) {
    for (std::int64_t i = 0; i < lanes; ++i) {
      parts[i] += load(a[c + i]) * load(b[c + i]);
    }
  }
  for (std::int64_t i = 0; c < count; ++c, ++i) {
    parts[i] += load(a[c]) * load(b[c]);
  }
  float sum = 0;
  for (float const part : parts) {
    sum += part;
  }
  return sum;
}

/// Weights from the scores, and the scores' gradients from the weights', without the scale.
template <TileKind kind>
void probabilities(BackwardBuffers const& buffers, float factor, QueryRows const& queries,
                   SeenKeys const& seen_keys) {
  auto const factors = _mm512_set1_ps(factor);
  for (std::int64_t first = 0; first < tile; first += lanes) {
    auto const shift = _mm512_load_ps(queries.shift + first);
    auto const mean = _mm512_load_ps(queries.mean + first);
    auto const write = [&](bfloat16* to, std::int64_t at, __m512i rows) {
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + at),
                          _mm512_maskz_extracti64x4_epi64(0xFF, rows, 0));
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + at + tile),
                          _mm512_maskz_extracti64x4_epi64(0xFF, rows, 1));
    };
    std::int64_t const keys = kind.diagonal ? keys_seen(first) : tile;
    for (std::int64_t key = 0; key < keys; key += 2) {
      auto const at = key * tile + first;
      __m512 weight[2];
      __m512 d_score[2];
      for (std::int64_t i = 0; i < 2; ++i) {
        auto const score = _mm512_loadu_ps(buffers.scores + at + i * tile);
        auto const d_weight = _mm512_loadu_ps(buffers.d_weights + at + i * tile);
        auto const seen = seen_keys.by_queries<kind>(key + i, first);
        weight[i] = exp2(_mm512_fmsub_ps(score, factors, shift));
        d_score[i] = _mm512_maskz_mul_ps(seen, weight[i], _mm512_sub_ps(d_weight, mean));
        weight[i] = _mm512_maskz_mov_ps(seen, weight[i]);
      }
      write(buffers.weights, at, rounded(weight[0], weight[1]));
      auto const d_scores = rounded(d_score[0], d_score[1]);
      write(buffers.d_scores, at, d_scores);
      _mm512_storeu_si512(buffers.d_score_pairs + key / 2 * tile + first, paired(d_scores));
    }
    for (std::int64_t key = keys; key < keys_read(first); key += 2) {
      write(buffers.weights, key * tile + first, _mm512_setzero_si512());
      write(buffers.d_scores, key * tile + first, _mm512_setzero_si512());
      _mm512_storeu_si512(buffers.d_score_pairs + key / 2 * tile + first, _mm512_setzero_si512());
    }
  }
}

/// Adds to dK and dV, without the scale, and writes dQ, as far as the task makes them.
void backward_tile(AttentionBackwardTask<bfloat16> const& task, BackwardBuffers const& buffers,
                   std::int64_t g, std::int64_t first) {
  auto const& b = buffers;
  auto const width = task.width;
  auto const padded = b.padded;
  auto const rows = rows_of_tile(task.sequence, first);
  auto const position = g * width + first * task.qkv_stride;
  auto const out_position = g * width + first * task.out_stride;
  copy({task.query + position, task.qkv_stride, rows, width}, b.rows, padded);
  to_pairs(b.rows, padded, b.queries);
  transpose_to_pairs(b.rows, padded, b.queries_transposed);
  copy({task.d_out + out_position, task.out_stride, rows, width}, b.rows, padded);
  to_pairs(b.rows, padded, b.d_outs);
  transpose_to_pairs(b.rows, padded, b.d_outs_transposed);
  QueryRows queries;
  for (std::int64_t r = 0; r < rows; ++r) {
    queries.shift[r] = log2_e * task.log_sum_exp[g * task.sequence + first + r];
    auto const at = out_position + r * task.out_stride;
    queries.mean[r] = dot(task.d_out + at, task.out + at, width);
  }
  std::int64_t const first_tile = task.first_keys.first_tile(first);
  auto const seen = task.keys();
  for (auto other = first_tile < seen.begin ? seen.begin : first_tile;
       other <= first && other < seen.end; other += tile) {
    bool const diagonal = other == first;
    auto const at = other * padded;
    auto const of_scores = diagonal ? Bf16Part::scores : Bf16Part::whole;
    auto const of_weights = diagonal ? Bf16Part::weights : Bf16Part::whole;
    product<false>({b.keys + at, padded}, b.queries_transposed, b.scores, {tile, tile, padded},
                   of_scores);
    product<false>({b.values + at, padded}, b.d_outs_transposed, b.d_weights, {tile, tile, padded},
                   of_scores);
    with_kind(diagonal, task.first_keys.hide(first, other), [&](auto kind) {
      probabilities<kind>(b, task.scale * log2_e, queries, {task.first_keys.from(first), other});
    });
    if (task.makes_keys()) {
      product<true>({b.weights, tile}, b.d_outs, b.d_values + at, {tile, padded, tile}, of_weights);
      product<true>({b.d_scores, tile}, b.queries, b.d_keys + at, {tile, padded, tile}, of_weights);
    }
    if (task.makes_queries()) {
      auto const add = other == first_tile ? product<false> : product<true>;
      add({b.keys_transposed + at, tile}, b.d_score_pairs, b.d_queries, {padded, tile, tile},
          diagonal ? Bf16Part::values : Bf16Part::whole);
    }
  }
  if (task.makes_queries()) {
    transpose_floats(b.d_queries, padded, b.d_query_rows);
    narrow(b.d_query_rows, padded, task.scale, task.d_query + position, task.qkv_stride, rows,
           width);
  }
}

}  // namespace

void attention_forward(AttentionForwardTask<bfloat16> const& task) {
  Bf16Products const products;
  auto const stride = task.qkv_stride;
  ForwardBuffers const buffers{{task.scratch}, task.sequence, task.width};
  auto const padded = buffers.padded;
  auto const [begin, end] = task.queries;
  for (auto first = task.first_keys.first_tile(begin); first < end; first += tile) {
    auto const rows = rows_of_tile(task.sequence, first);
    copy({task.key + first * stride, stride, rows, task.width}, buffers.keys + first * padded,
         padded);
    copy({task.value + first * stride, stride, rows, task.width}, buffers.rows, padded);
    transpose_to_rows(buffers.rows, padded, buffers.values + first * padded);
  }
  for (std::int64_t g = 0; g < task.group; ++g) {
    for (std::int64_t first = begin; first < end; first += tile) {
      forward_tile(task, buffers, g, first);
    }
  }
}

void attention_backward(AttentionBackwardTask<bfloat16> const& task) {
  Bf16Products const products;
  auto const sequence = task.sequence;
  auto const width = task.width;
  auto const stride = task.qkv_stride;
  BackwardBuffers const buffers{{task.scratch}, sequence, width};
  auto const padded = buffers.padded;
  auto const queries = task.queries();
  auto const keys = task.keys();
  for (std::int64_t first = keys.begin; first < keys.end; first += tile) {
    auto const rows = rows_of_tile(sequence, first);
    auto const at = first * padded;
    copy({task.key + first * stride, stride, rows, width}, buffers.keys + at, padded);
    transpose_to_rows(buffers.keys + at, padded, buffers.keys_transposed + at);
    copy({task.value + first * stride, stride, rows, width}, buffers.values + at, padded);
  }
  float* const d_keys = buffers.d_keys + keys.begin * padded;
  float* const d_values = buffers.d_values + keys.begin * padded;
  if (task.makes_keys()) {
    auto const floats = (rounded_up(keys.end) - keys.begin) * padded;
    auto const bytes = sizeof(float) * static_cast<std::size_t>(floats);
    __builtin_memset(d_keys, 0, bytes);
    __builtin_memset(d_values, 0, bytes);
  }
  for (std::int64_t g = 0; g < task.group; ++g) {
    for (std::int64_t first = queries.begin; first < queries.end; first += tile) {
      if (task.first_keys.first_tile(first) >= keys.end) {
        break;  // nor do later queries see these keys
      }
      backward_tile(task, buffers, g, first);
    }
  }
  if (task.makes_keys()) {
    auto const at = keys.begin * stride;
    auto const count = keys.end - keys.begin;
    narrow(d_keys, padded, task.scale, task.d_key + at, stride, count, width);
    narrow(d_values, padded, 1, task.d_value + at, stride, count, width);
  }
}

}  // namespace offstage::kernels::OFFSTAGE_SIMD
