#pragma once

#include <cstdint>

#include "base/simd.hpp"
#include "kernels/attention/attention.hpp"

namespace offstage::kernels {

/// Edge of the square tiles of scores.
constexpr std::int64_t attention_tile = 64;
/// The first key that each query sees, of a sequence filled up to whole tiles; never less than that
/// of the query before. Null: all queries see position 0.
struct FirstKeys {
  std::int32_t const* of_query;

  /// First keys of queries from position `first` on.
  constexpr std::int32_t const* from(std::int64_t first) const {
    return of_query != nullptr ? of_query + first : nullptr;
  }
  /// First position of the tile with the first key that a query from position `first` on sees.
  constexpr std::int64_t first_tile(std::int64_t first) const {
    return of_query != nullptr ? of_query[first] / attention_tile * attention_tile : 0;
  }
  /// Whether a query of the tile from `first` on does not see a key of the tile from `other` on,
  /// though it comes before.
  constexpr bool hide(std::int64_t first, std::int64_t other) const {
    return of_query != nullptr && other < of_query[first + attention_tile - 1];
  }
};
/// Rows of tiles are padded with zeros to a multiple of this many floats.
constexpr std::int64_t attention_padding = 32;

/// Positions [begin, end) of a sequence, from one tile's begin to another's or the sequence's end.
struct Positions {
  std::int64_t begin, end;
};

/// Gradients that a task of backward makes. Sums have the same order whichever tasks make them.
enum class BackwardPart {
  all,
  queries,  ///< the gradient of queries at the task's positions
  keys      ///< the gradients of keys and values at the task's positions
};

/// One sequence and one key-value head with its `group` query heads (internal to the room).
/// Pointers are to position 0; the next query head is `width` elements further, its log_sum_exp
/// `sequence`.
template <class T>
struct AttentionForwardTask {
  std::int64_t sequence;
  Positions queries;  ///< whose outputs the task makes
  FirstKeys first_keys;
  std::int64_t group, width;
  std::int64_t qkv_stride, out_stride;  ///< elements from one position to the next
  float scale;
  T const* query;
  T const* key;
  T const* value;
  T* out;
  float* log_sum_exp;
  float* scratch;  ///< aligned to 64 bytes
};

template <class T>
struct AttentionBackwardTask {
  std::int64_t sequence;
  BackwardPart part;
  Positions positions;  ///< all of the sequence for BackwardPart::all
  FirstKeys first_keys;
  std::int64_t group, width;
  std::int64_t qkv_stride, out_stride;
  float scale;
  T const* query;
  T const* key;
  T const* value;
  T const* out;
  T const* d_out;
  float const* log_sum_exp;
  T* d_query;
  T* d_key;
  T* d_value;
  float* scratch;

  [[gnu::always_inline]] constexpr bool makes_queries() const { return part != BackwardPart::keys; }
  [[gnu::always_inline]] constexpr bool makes_keys() const { return part != BackwardPart::queries; }
  /// Queries that the task goes through. Those of `keys` see its first key, or come after.
  [[gnu::always_inline]] constexpr Positions queries() const {
    return makes_queries() ? positions : Positions{positions.begin, sequence};
  }
  /// Keys that these see and the task goes through.
  [[gnu::always_inline]] constexpr Positions keys() const {
    return makes_keys() ? positions
                        : Positions{first_keys.first_tile(positions.begin), positions.end};
  }
};

/// Functions that host::attention_* call with best_simd(); tests try every one that the CPU runs.
template <class T>
void attention_forward_by(Simd simd, AttentionForward<T> const& in);
template <class T>
void attention_backward_by(Simd simd, AttentionBackward<T> const& in);

namespace baseline {
template <class T>
void attention_forward(AttentionForwardTask<T> const& task);
template <class T>
void attention_backward(AttentionBackwardTask<T> const& task);
}  // namespace baseline
namespace avx2 {
template <class T>
void attention_forward(AttentionForwardTask<T> const& task);
template <class T>
void attention_backward(AttentionBackwardTask<T> const& task);
}  // namespace avx2
namespace avx512 {
template <class T>
void attention_forward(AttentionForwardTask<T> const& task);
template <class T>
void attention_backward(AttentionBackwardTask<T> const& task);
}  // namespace avx512

}  // namespace offstage::kernels
