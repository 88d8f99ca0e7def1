#pragma once

#include <cstdint>
#include <span>

#include "base/dtype.hpp"
#include "base/simd.hpp"
#include "device/device.hpp"

namespace offstage::kernels {

/// Attention of new rows of one sequence to all rows before them and to themselves, whose keys and
/// values are kept: causal, scale 1 / sqrt(head_dim). Row i of `qkv` is row `past` + i of the
/// sequence.
template <class T>
struct CachedAttention {
  std::int64_t rows, past, heads, kv_heads, head_dim;
  /// (rows, (heads + 2 kv_heads) * head_dim), after RoPE; its queries are read.
  std::span<T const> qkv;
  std::span<T const> keys;    ///< (past + rows, kv_heads * head_dim)
  std::span<T const> values;  ///< (past + rows, kv_heads * head_dim)
  std::span<T> out;           ///< (rows, heads * head_dim)
  std::int64_t window = 0;    ///< keys that a row sees, its own the last; 0: all before it
};

/// The types of a CachedAttention (base/instantiate.hpp).
#define OFFSTAGE_DECODER_TYPES(INSTANTIATE, ...) \
  INSTANTIATE(__VA_ARGS__, float)                \
  INSTANTIATE(__VA_ARGS__, bfloat16)

/// Types:  float, bfloat16; sums in FP32, in a fixed order for each row, head and `simd`: the
///         bits do not depend on the number of threads.
/// Errors: PreconditionError for spans of other sizes, heads that are no multiple of kv_heads, or a
///         `simd` beyond best_simd().
namespace host {
template <class T>
void cached_attention(CachedAttention<T> const&, Simd simd = best_simd());
}
/// Queues it on a host stream. Errors: also PreconditionError for a stream of another kind.
template <class T>
void cached_attention(device::Stream&, CachedAttention<T> const&);

}  // namespace offstage::kernels
