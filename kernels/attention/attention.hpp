#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/dtype.hpp"
#include "base/units.hpp"
#include "device/device.hpp"

struct CUstream_st;  // lets host code name a stream without a CUDA header

namespace offstage::kernels {

/// B sequences of T rows; a row of `qkv` is (heads, head_dim) of queries, then (kv_heads, head_dim)
/// of keys, then the same of values. Query head h uses key and value head h / (heads / kv_heads).
struct AttentionShape {
  std::int64_t batch, sequence, heads, kv_heads, head_dim;
};

/// Causal attention, scale 1 / sqrt(head_dim). No (T, T) matrix is stored.
template <class T>
struct AttentionForward {
  AttentionShape shape;
  std::span<T const> qkv;          ///< (B, T, (heads + 2 kv_heads) * head_dim), after RoPE
  std::span<T> out;                ///< (B, T, heads * head_dim)
  std::span<Real<T>> log_sum_exp;  ///< (B, heads, T), kept for backward
};

template <class T>
struct AttentionBackward {
  AttentionShape shape;
  std::span<T const> qkv;
  std::span<T const> out;
  std::span<T const> d_out;  ///< (B, T, heads * head_dim)
  std::span<Real<T> const> log_sum_exp;
  std::span<T> d_qkv;  ///< as qkv, overwritten
};

/// Source:  Dao, arXiv:2307.08691 (tiles, online softmax, recomputed probabilities).
/// Exact:   a (sequence, key-value head) is one task and sums in a fixed order: the bits do not
///          depend on the number of threads.
/// Memory, order, types, errors: as in rmsnorm.hpp. Also PreconditionError if heads is no multiple
/// of kv_heads.
namespace ref {
template <class T>
void attention_forward(AttentionForward<T> const&);
template <class T>
void attention_backward(AttentionBackward<T> const&);
}  // namespace ref
namespace host {
template <class T>
void attention_forward(AttentionForward<T> const&);
template <class T>
void attention_backward(AttentionBackward<T> const&);
}  // namespace host

/// Scratch memory of cuda::attention_backward. It takes as many key-value heads at once as the scratch memory has
/// room for: this for each, and one at least.
[[nodiscard]] constexpr Bytes attention_scratch(AttentionShape const& shape) {
  return shape.heads / shape.kv_heads * shape.sequence * static_cast<Bytes>(sizeof(float));
}

/// Types:   float, bfloat16, float16.
/// Exact:   FP32 sums in a fixed order, so that a run repeats its bits; they are not the host's, and weights and
///          their gradients are rounded to T between two products of the 16-bit types.
/// Speed:   tensor cores for 16-bit types if head_dim is a multiple of 8 up to 128 and memory is aligned to 16
///          bytes; else a kernel that is meant for checks.
/// Memory:  `most_shared`: bytes of shared memory that a block may take, cuda::least_shared_bytes or more; 0: what the
///          GPU gives. Heads of 97 to 128 elements take smaller tiles where they cannot have 129 KiB.
/// Order:   queued on `stream`, whose scratch memory backward uses alone until it is done.
/// Errors:  PreconditionError as above, and if head_dim is over 256, the scratch memory too small, or a size more
///          than a launch can have; CudaError.
namespace cuda {
template <class T>
void attention_forward(AttentionForward<T> const&, CUstream_st* stream);
template <class T>
void attention_backward(AttentionBackward<T> const&, std::span<std::byte> scratch,
                        CUstream_st* stream, std::size_t most_shared = 0);
}  // namespace cuda

template <class T>
void attention_forward(device::Stream&, AttentionForward<T> const&);
template <class T>
void attention_backward(device::Stream&, AttentionBackward<T> const&);

}  // namespace offstage::kernels
