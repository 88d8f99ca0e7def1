#include "kernels/attention/attention_simd.hpp"

#include "base/dtype.hpp"
#include "base/instantiate.hpp"
#include "kernels/host/simd_exp.hpp"
#include "kernels/host/simd_product.hpp"

namespace offstage::kernels::OFFSTAGE_SIMD {

namespace {

constexpr std::int64_t tile = attention_tile;
static_assert(tile == product_tile && attention_padding % (2 * lanes) == 0);

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
    for (std::int64_t c = 0; c < used; ++c) {
      to[c] = factor * load(from[c]);
    }
    for (std::int64_t c = used; c < padded; ++c) {
      to[c] = 0;
    }
  }
}

/// target (width, tile) = source transposed, zeros outside.
template <class T>
void widen_transposed(Source<T> const& source, float* target) {
  for (std::int64_t r = 0; r < tile; ++r) {
    T const* const from = source.data + r * source.stride;
    for (std::int64_t c = 0; c < source.width; ++c) {
      target[c * tile + r] = r < source.rows ? load(from[c]) : 0.0F;
    }
  }
}

/// target = factor * (rows, width) of source (tile, padded).
template <class T>
void narrow(float const* source, std::int64_t padded, float factor, T* target, std::int64_t stride,
            std::int64_t rows, std::int64_t width) {
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t c = 0; c < width; ++c) {
      target[r * stride + c] = store<T>(factor * source[r * padded + c]);
    }
  }
}

/// Hides the positions after each row's own in a tile on the diagonal.
void mask(float* scores, float value) {
  for (std::int64_t r = 0; r < tile; ++r) {
    for (std::int64_t c = r + 1; c < tile; ++c) {
      scores[r * tile + c] = value;
    }
  }
}

/// Hides the positions before the first that a row sees, `first_keys` of each, in the tile of keys
/// from position `other` on.
void mask_before(float* scores, std::int32_t const* first_keys, std::int64_t other, float value) {
  for (std::int64_t r = 0; r < tile; ++r) {
    for (std::int64_t c = 0; c < tile && other + c < first_keys[r]; ++c) {
      scores[r * tile + c] = value;
    }
  }
}

float largest_of(float const* row) {
  auto best = read(row);
  for (std::int64_t c = lanes; c < tile; c += lanes) {
    best = larger(best, read(row + c));
  }
  float lane[lanes];
  write(lane, best);
#pragma GCC unroll 4
  for (std::int64_t half = lanes / 2; half > 0; half /= 2) {
#pragma GCC unroll 8
    for (std::int64_t i = 0; i < half; ++i) {
      lane[i] = lane[i] > lane[i + half] ? lane[i] : lane[i + half];
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
      for (std::int64_t i = 0; i < lanes; ++i) {
        total[i] *= factor;
      }
      for (std::int64_t c = 0; c < padded; ++c) {
        out[r * padded + c] *= factor;
      }
    }
    // A row that has seen no key yet has weights of zero.
    float const largest = state.largest[r] > -__builtin_inff() ? state.largest[r] : 0.0F;
    for (std::int64_t c = 0; c < tile; ++c) {
      row[c] = simd_exp(row[c] - largest);
    }
    for (std::int64_t c = 0; c < tile; c += lanes) {
      for (std::int64_t i = 0; i < lanes; ++i) {
        total[i] += row[c + i];
      }
    }
  }
}

float total_of(float const* parts) {
  float sum = 0;
  for (std::int64_t i = 0; i < lanes; ++i) {
    sum += parts[i];
  }
  return sum;
}

void clear(float* values, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) {
    values[i] = 0;
  }
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

std::int64_t rounded(std::int64_t sequence) {
  return (sequence + tile - 1) / tile * tile;
}

std::int64_t rows_of_tile(std::int64_t sequence, std::int64_t first) {
  return sequence - first < tile ? sequence - first : tile;
}

/// What all tiles of a forward task share. Scratch: two copies of the sequence, less than eight
/// tiles.
struct ForwardBuffers {
  ForwardBuffers(Scratch pool, std::int64_t sequence, std::int64_t width)
      : padded{padded_width(width)},
        keys{pool.take(rounded(sequence) * padded)},
        values{pool.take(rounded(sequence) * padded)},
        queries{pool.take(tile * padded)},
        scores{pool.take(tile * tile)},
        sums{pool.take(tile * padded)} {}
  std::int64_t padded;
  float* keys;    ///< (width, tile) for each tile
  float* values;  ///< (sequence, padded)
  float* queries;
  float* scores;
  float* sums;
};

/// The tile of queries from position `first` on of the g-th query head.
template <class T>
void forward_tile(AttentionForwardTask<T> const& task, ForwardBuffers const& buffers,
                  std::int64_t g, std::int64_t first) {
  auto const width = task.width;
  auto const padded = buffers.padded;
  auto const rows = rows_of_tile(task.sequence, first);
  auto* const scores = buffers.scores;
  auto* const sums = buffers.sums;
  widen<T>({task.query + g * width + first * task.qkv_stride, task.qkv_stride, rows, width},
           task.scale, buffers.queries, padded);
  clear(sums, tile * padded);
  Softmax state;
  clear(state.total[0], tile * lanes);
  for (float& largest : state.largest) {
    largest = -__builtin_inff();
  }
  for (std::int64_t other = task.first_keys.first_tile(first); other <= first; other += tile) {
    bool const diagonal = other == first;
    product<false>({buffers.queries, padded, 1}, buffers.keys + other * padded, scores, tile, width,
                   diagonal ? Part::scores : Part::whole);
    if (diagonal) {
      mask(scores, -__builtin_inff());
    }
    if (task.first_keys.hide(first, other)) {
      mask_before(scores, task.first_keys.from(first), other, -__builtin_inff());
    }
    softmax_tile(state, scores, sums, padded);
    product<true>({scores, tile, 1}, buffers.values + other * padded, sums, padded, tile,
                  diagonal ? Part::weights : Part::whole);
  }
  for (std::int64_t r = 0; r < rows; ++r) {
    float const total = total_of(state.total[r]);
    narrow<T>(sums + r * padded, padded, 1 / total,
              task.out + g * width + (first + r) * task.out_stride, task.out_stride, 1, width);
    task.log_sum_exp[g * task.sequence + first + r] = state.largest[r] + __builtin_logf(total);
  }
}

/// As ForwardBuffers. Scratch: five copies of the sequence, less than eight tiles.
struct BackwardBuffers {
  BackwardBuffers(Scratch pool, std::int64_t sequence, std::int64_t width)
      : padded{padded_width(width)},
        keys{pool.take(rounded(sequence) * padded)},
        keys_transposed{pool.take(rounded(sequence) * padded)},
        values_transposed{pool.take(rounded(sequence) * padded)},
        d_keys{pool.take(rounded(sequence) * padded)},
        d_values{pool.take(rounded(sequence) * padded)},
        queries{pool.take(tile * padded)},
        d_outs{pool.take(tile * padded)},
        d_queries{pool.take(tile * padded)},
        scores{pool.take(tile * tile)},
        d_scores{pool.take(tile * tile)} {}
  std::int64_t padded;
  float* keys;               ///< (sequence, padded)
  float* keys_transposed;    ///< (width, tile) for each tile
  float* values_transposed;  ///< (width, tile) for each tile
  float* d_keys;             ///< (sequence, padded)
  float* d_values;           ///< (sequence, padded)
  float* queries;
  float* d_outs;
  float* d_queries;
  float* scores;
  float* d_scores;
};

float dot(float const* a, float const* b, std::int64_t count) {
  auto sum = broadcast(0);
  for (std::int64_t c = 0; c < count; c += lanes) {
    sum = fused(read(a + c), read(b + c), sum);
  }
  float parts[lanes];
  write(parts, sum);
  return total_of(parts);
}

/// P and dS of one tile, in the places of the scores and of dP; `mean` is dP under P for each row.
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

/// Adds to dK and dV and writes dQ, as far as the task makes them. The scale is in `queries`, so dK
/// has it and dQ not.
template <class T>
void backward_tile(AttentionBackwardTask<T> const& task, BackwardBuffers const& buffers,
                   std::int64_t g, std::int64_t first) {
  auto const [padded, keys, keys_transposed, values_transposed, d_keys, d_values, queries, d_outs,
              d_queries, scores, d_scores] = buffers;
  auto const width = task.width;
  auto const stride = task.qkv_stride;
  auto const rows = rows_of_tile(task.sequence, first);
  auto const position = g * width + first * stride;
  auto const out_position = g * width + first * task.out_stride;
  widen<T>({task.query + position, stride, rows, width}, task.scale, queries, padded);
  widen<T>({task.d_out + out_position, task.out_stride, rows, width}, 1, d_outs, padded);
  widen<T>({task.out + out_position, task.out_stride, rows, width}, 1, d_queries, padded);
  float log_sum_exp[tile] = {};
  float mean[tile];
  for (std::int64_t r = 0; r < rows; ++r) {
    log_sum_exp[r] = task.log_sum_exp[g * task.sequence + first + r];
  }
  for (std::int64_t r = 0; r < tile; ++r) {
    mean[r] = dot(d_outs + r * padded, d_queries + r * padded, padded);
  }
  clear(d_queries, tile * padded);
  auto const first_tile = task.first_keys.first_tile(first);
  auto const seen = task.keys();
  for (auto other = first_tile < seen.begin ? seen.begin : first_tile;
       other <= first && other < seen.end; other += tile) {
    bool const diagonal = other == first;
    auto const of_scores = diagonal ? Part::scores : Part::whole;
    auto const of_weights = diagonal ? Part::weights : Part::whole;
    auto const of_transposed = diagonal ? Part::transposed_weights : Part::whole;
    auto const at = other * padded;
    product<false>({queries, padded, 1}, keys_transposed + at, scores, tile, width, of_scores);
    product<false>({d_outs, padded, 1}, values_transposed + at, d_scores, tile, width, of_scores);
    if (diagonal) {
      mask(scores, -__builtin_inff());
      mask(d_scores, 0);
    }
    if (task.first_keys.hide(first, other)) {
      mask_before(scores, task.first_keys.from(first), other, -__builtin_inff());
      mask_before(d_scores, task.first_keys.from(first), other, 0);
    }
    probabilities(scores, d_scores, log_sum_exp, mean);
    if (task.makes_keys()) {
      product<true>({scores, 1, tile}, d_outs, d_values + at, padded, tile, of_transposed);
      product<true>({d_scores, 1, tile}, queries, d_keys + at, padded, tile, of_transposed);
    }
    if (task.makes_queries()) {
      product<true>({d_scores, tile, 1}, keys + at, d_queries, padded, tile, of_weights);
    }
  }
  if (task.makes_queries()) {
    narrow<T>(d_queries, padded, task.scale, task.d_query + position, stride, rows, width);
  }
}

}  // namespace

template <class T>
void attention_forward(AttentionForwardTask<T> const& task) {
  auto const stride = task.qkv_stride;
  ForwardBuffers const buffers{{task.scratch}, task.sequence, task.width};
  auto const [begin, end] = task.queries;
  for (auto first = task.first_keys.first_tile(begin); first < end; first += tile) {
    auto const rows = rows_of_tile(task.sequence, first);
    auto const at = first * buffers.padded;
    widen_transposed<T>({task.key + first * stride, stride, rows, task.width}, buffers.keys + at);
    widen<T>({task.value + first * stride, stride, rows, task.width}, 1, buffers.values + at,
             buffers.padded);
  }
  for (std::int64_t g = 0; g < task.group; ++g) {
    for (std::int64_t first = begin; first < end; first += tile) {
      forward_tile(task, buffers, g, first);
    }
  }
}

template <class T>
void attention_backward(AttentionBackwardTask<T> const& task) {
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
    Source<T> const key{task.key + first * stride, stride, rows, width};
    widen(key, 1, buffers.keys + at, padded);
    widen_transposed(key, buffers.keys_transposed + at);
    widen_transposed<T>({task.value + first * stride, stride, rows, width},
                        buffers.values_transposed + at);
  }
  float* const d_keys = buffers.d_keys + keys.begin * padded;
  float* const d_values = buffers.d_values + keys.begin * padded;
  if (task.makes_keys()) {
    clear(d_keys, (rounded(keys.end) - keys.begin) * padded);
    clear(d_values, (rounded(keys.end) - keys.begin) * padded);
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
    narrow(d_keys, padded, 1, task.d_key + at, stride, count, width);
    narrow(d_values, padded, 1, task.d_value + at, stride, count, width);
  }
}

OFFSTAGE_INSTANTIATE(OFFSTAGE_RUN_TYPES, attention_forward)
OFFSTAGE_INSTANTIATE(OFFSTAGE_RUN_TYPES, attention_backward)

}  // namespace offstage::kernels::OFFSTAGE_SIMD
