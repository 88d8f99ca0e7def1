#pragma once

#include <cstddef>
#include <cstdint>

#include "base/dtype.hpp"
#include "kernels/attention/attention.hpp"
#include "kernels/cuda/launch.cuh"

/// Between attention.cu, which checks and chooses, and the kernels.
namespace offstage::kernels::cuda {

/// The shape as kernels use it. A unit is one key-value head of one sequence, in the order of
/// memory; its query heads follow each other.
struct AttentionHeads {
  std::int64_t qkv_stride, out_stride;  ///< elements from a position to the next
  int sequence, heads, kv_heads, group, width;
  int reach;  ///< keys that a query sees at most, its own the last; at most `sequence`
  float scale;
  std::int32_t const* begins;  ///< AttentionDocuments; null: each sequence is one document
  std::int32_t const* ends;

  /// The first key that a query of sequence b sees. It is never less than that of the query before.
  __device__ int first_key(int b, int query) const {
    int const row = min(query, sequence - 1);
    int const document = begins != nullptr ? begins[std::int64_t{b} * sequence + row] : 0;
    return max(document, row + 1 - reach);
  }
  /// The query behind the last that sees a key of sequence b. It is never less than that of the key
  /// before.
  __device__ int end_of_queries(int b, int key) const {
    int const row = min(key, sequence - 1);
    int const document = ends != nullptr ? ends[std::int64_t{b} * sequence + row] : sequence;
    return min(document - reach, row) + reach;
  }
  __device__ bool sees(int b, int query, int key) const {
    return key <= query && key >= first_key(b, query);
  }
  /// Elements before position 0 of query head `head`, and of the unit's keys, of sequence b.
  __host__ __device__ std::int64_t query(int b, int head) const {
    return b * sequence * qkv_stride + std::int64_t{head} * width;
  }
  __host__ __device__ std::int64_t key(int b, int kv_head) const {
    return query(b, heads + kv_head);
  }
  /// From a unit's keys to its values.
  __host__ __device__ int to_values() const { return kv_heads * width; }
  __host__ __device__ std::int64_t out(int b, int head) const {
    return b * sequence * out_stride + std::int64_t{head} * width;
  }
  /// Entries of log_sum_exp before position 0.
  __host__ __device__ std::int64_t row(int b, int head) const {
    return (std::int64_t{b} * heads + head) * sequence;
  }
};

template <class T>
struct ForwardCall {
  AttentionHeads at;
  int units;
  T const* qkv;
  T* out;
  float* log_sum_exp;
};

/// Arguments of backward for units first_unit to first_unit + units - 1.
template <class T>
struct BackwardCall {
  AttentionHeads at;
  int first_unit, units;
  T const* qkv;
  T const* out;
  T const* d_out;
  float const* log_sum_exp;
  T* d_qkv;
  int parts;  ///< parts of a unit's query heads in dK's kernel (attention_parts)
  /// (units, parts, 2, T, width) of scratch: dK, not yet scaled, and dV; if parts > 1.
  float* sums;
  /// (units, group, T) of scratch: sum of d_out * out, which dQ's kernel leaves to dK's.
  float* delta;
};

/// Head and tile of a block: those of all heads that are said to go first have the lowest indices.
struct BlockTask {
  int b, head, kv_head;
  int local;  ///< the head's index in the call
  int tile;
};
__device__ inline BlockTask query_task(AttentionHeads const& at, int first_unit, int units,
                                       int tiles) {
  int const heads = units * at.group;
  auto const block = static_cast<int>(blockIdx.x);
  int const local = block % heads;
  int const unit = first_unit + local / at.group;
  int const kv_head = unit % at.kv_heads;
  // The last queries have the most keys.
  return {unit / at.kv_heads, kv_head * at.group + local % at.group, kv_head, local,
          tiles - 1 - block / heads};
}
/// `parts`: between so many blocks a unit's heads are dealt; the block has heads from its own on.
__device__ inline BlockTask key_task(AttentionHeads const& at, int first_unit, int units,
                                     int parts) {
  auto const block = static_cast<int>(blockIdx.x);
  int const local = block % (units * parts) / parts;
  int const member = block % parts * (at.group / parts);
  int const unit = first_unit + local;
  int const kv_head = unit % at.kv_heads;
  // The first keys have the most queries.
  return {unit / at.kv_heads, kv_head * at.group + member, kv_head, local * at.group + member,
          block / (units * parts)};
}

/// Blocks of one dimension. Errors: PreconditionError if there are too many.
dim3 attention_blocks(std::int64_t heads, std::int64_t tiles);

/// On tensor cores; attention_has_tiles(), memory aligned to 16 bytes.
template <class T>
void forward_by_tiles(ForwardCall<T> const&, CUstream_st*);
/// `most_shared`: bytes of shared memory that a block can have, least_shared_bytes at least.
template <class T>
void d_queries_by_tiles(BackwardCall<T> const&, std::size_t most_shared,
                        CUstream_st*);  ///< leaves delta behind
template <class T>
void d_keys_by_tiles(BackwardCall<T> const&, std::size_t most_shared,
                     CUstream_st*);  ///< and of values; reads delta

/// In FP32 without tensor cores; head_dim up to largest_simple_width.
constexpr std::int64_t largest_simple_width = 256;
template <class T>
void simple_forward(ForwardCall<T> const&, CUstream_st*);
template <class T>
void simple_backward(BackwardCall<T> const&, CUstream_st*);

}  // namespace offstage::kernels::cuda
