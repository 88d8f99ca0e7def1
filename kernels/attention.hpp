#pragma once

#include <cstdint>
#include <span>

#include "base/dtype.hpp"
#include "device/device.hpp"

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
template <class T>
void attention_forward(device::Stream&, AttentionForward<T> const&);
template <class T>
void attention_backward(device::Stream&, AttentionBackward<T> const&);

}  // namespace offstage::kernels
