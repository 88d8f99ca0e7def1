#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/dtype.hpp"
#include "base/units.hpp"
#include "device/device.hpp"

struct CUstream_st;  // lets host code name a stream without a CUDA header

namespace offstage::cudnn {
class Attention;
}

namespace offstage::kernels {

/// B sequences of T rows; a row of `qkv` is (heads, head_dim) of queries, then (kv_heads, head_dim)
/// of keys, then the same of values. Query head h uses key and value head h / (heads / kv_heads).
struct AttentionShape {
  std::int64_t batch, sequence, heads, kv_heads, head_dim;
  /// Keys that a query sees, its own the last of them; 0: all up to its own.
  std::int64_t window = 0;

  /// The same as a number of keys: no query sees more.
  [[nodiscard]] constexpr std::int64_t reach() const {
    return window > 0 && window < sequence ? window : sequence;
  }
};

/// Where documents lie that share sequences: a query sees no key of another document.
struct AttentionDocuments {
  /// (B, T) the position at which each row's document begins, and the one behind its end. Documents
  /// lie one behind the other and fill the sequence. Empty: each sequence is one document.
  std::span<std::int32_t const> begins{};
  std::span<std::int32_t const> ends{};
};

/// Causal attention, scale 1 / sqrt(head_dim). No (T, T) matrix is stored.
template <class T>
struct AttentionForward {
  AttentionShape shape;
  std::span<T const> qkv;          ///< (B, T, (heads + 2 kv_heads) * head_dim), after RoPE
  std::span<T> out;                ///< (B, T, heads * head_dim)
  std::span<Real<T>> log_sum_exp;  ///< (B, heads, T), kept for backward
  /// Plans of cuDNN compute it on cuda in the place of the own kernels: plans, of this shape and
  /// type; then the memory of all tensors is aligned to 16 bytes, and the stream a calling one.
  cudnn::Attention* cudnn{};
  AttentionDocuments documents{};
};

template <class T>
struct AttentionBackward {
  AttentionShape shape;
  std::span<T const> qkv;
  std::span<T const> out;
  std::span<T const> d_out;  ///< (B, T, heads * head_dim)
  std::span<Real<T> const> log_sum_exp;
  std::span<T> d_qkv;  ///< as qkv, overwritten
  /// Scratch memory of cuda in the place of the stream's: attention_workspace() bytes are best,
  /// cuDNN's workspace() needed.
  std::span<std::byte> workspace{};
  cudnn::Attention* cudnn{};  ///< as forward's
  AttentionDocuments documents{};
};

/// Pairs of a query and a key that it sees, of one head and of a sequence that is one document.
[[nodiscard]] constexpr std::int64_t attention_pairs(AttentionShape const& shape) {
  std::int64_t const reach = shape.reach();
  return reach * (reach + 1) / 2 + (shape.sequence - reach) * reach;
}
/// Floating-point operations of one of its products, a query by its keys say: of attention_pairs().
[[nodiscard]] constexpr double attention_product_flops(AttentionShape const& shape) {
  auto const pairs = static_cast<double>(attention_pairs(shape));
  return 2.0 * static_cast<double>(shape.batch * shape.heads * shape.head_dim) * pairs;
}
/// Queries by keys and probabilities by values; backward makes the first of them again, and then
/// four.
constexpr double attention_forward_products = 2.0;
constexpr double attention_backward_products = 5.0;

/// Source:  Dao, arXiv:2307.08691 (tiles, online softmax, recomputed probabilities).
/// Exact:   sums have a fixed order, also where several threads share a sequence and key-value
///          head: the bits do not depend on the number of threads. host multiplies bfloat16 in
///          bf16 where best_bf16_unit() says by what (bf16_unit.hpp), and then rounds weights and
///          their gradients to bf16 between two products; its bits are those of the unit. All
///          other types, and bfloat16 elsewhere, are widened to FP32.
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
/// Scratch memory that either direction takes at most in a team of `threads`.
template <class T>
[[nodiscard]] Bytes attention_scratch_bytes(AttentionShape const&, int threads);
}  // namespace host

constexpr std::int64_t largest_tile_width = 128;  ///< head_dim that tensor cores can have

/// Whether tensor cores can have heads of this type and size.
template <class T>
[[nodiscard]] constexpr bool attention_has_tiles(AttentionShape const& shape) {
  return sizeof(T) == 2 && shape.head_dim % 8 == 0 && shape.head_dim <= largest_tile_width;
}

constexpr std::int64_t attention_key_tile = 128;  ///< keys of one block on tensor cores

/// Between how many blocks cuda::attention_backward deals the query heads that share a tile of
/// keys; each leaves sums in scratch memory, which are added in the order of the heads. As few as
/// keep a large GPU busy: the first keys have the most queries, and their blocks may take half of
/// the time that all blocks would take on an H100 without a gap. By simulation (blocks in the order
/// of their lengths, each on the place that is free first) 0.97 of it is busy or more; with one
/// block per tile 0.51 at batch 4, 32 heads on 4, T 2048, and 0.13 at batch 1. The shape alone
/// decides, so that the sums' order, and with it their bits, are the same on all GPUs.
template <class T>
[[nodiscard]] constexpr std::int64_t attention_parts(AttentionShape const& shape) {
  constexpr std::int64_t blocks_at_once = 264;  // two on each of an H100's multiprocessors
  std::int64_t const group = shape.heads / shape.kv_heads;
  if (!attention_has_tiles<T>(shape)) {
    return 1;
  }
  std::int64_t const tiles = (shape.sequence + attention_key_tile - 1) / attention_key_tile;
  for (std::int64_t parts = 1; parts < group; ++parts) {
    // A block has the queries of (tiles + 1) / 2 tiles on average; the longest has those of all.
    if (group % parts == 0 &&
        parts * shape.batch * shape.kv_heads * (tiles + 1) >= 4 * blocks_at_once) {
      return parts;
    }
  }
  return group;
}

/// Scratch memory of cuda::attention_backward. It takes as many key-value heads at once as the
/// scratch memory has room for: this for each, and one at least.
[[nodiscard]] constexpr Bytes attention_scratch(AttentionShape const& shape, std::int64_t parts) {
  std::int64_t const sums = parts > 1 ? parts * 2 * shape.head_dim : 0;
  return (shape.heads / shape.kv_heads + sums) * shape.sequence * static_cast<Bytes>(sizeof(float));
}
template <class T>
[[nodiscard]] constexpr Bytes attention_scratch(AttentionShape const& shape) {
  return attention_scratch(shape, attention_parts<T>(shape));
}

/// All of them at once, which leaves no GPU waiting for the last blocks of a few heads.
template <class T>
[[nodiscard]] constexpr Bytes attention_workspace(AttentionShape const& shape) {
  return shape.batch * shape.kv_heads * attention_scratch<T>(shape);
}

/// Types:   float, bfloat16, float16.
/// Exact:   FP32 sums in a fixed order, so that a run repeats its bits; they are not the host's,
///          and weights and their gradients are rounded to T between two products of the 16-bit
///          types. How much scratch memory there is changes no bits.
/// Speed:   tensor cores if attention_has_tiles() and memory is aligned to 16 bytes; else a kernel
///          that is meant for checks. Heads of 97 to 128 elements take smaller tiles where a block
///          cannot have 129 KiB of shared memory.
/// Order:   queued on `stream`; backward has the scratch memory for itself until it is done.
/// Errors:  PreconditionError as above, and if head_dim is over 256, the scratch memory too small,
///          or a size more than a launch can have; CudaError.
namespace cuda {
/// Choices that attention_backward makes by itself where they are 0; a test makes others.
struct AttentionChoices {
  std::int64_t parts = 0;  ///< attention_parts(); another must divide heads / kv_heads
  std::size_t most_shared =
      0;  ///< bytes of shared memory that a block may take, least_shared_bytes or more
};

template <class T>
void attention_forward(AttentionForward<T> const&, CUstream_st* stream);
template <class T>
void attention_backward(AttentionBackward<T> const&, std::span<std::byte> scratch,
                        CUstream_st* stream, AttentionChoices const& choices = {});
}  // namespace cuda

template <class T>
void attention_forward(device::Stream&, AttentionForward<T> const&);
template <class T>
void attention_backward(device::Stream&, AttentionBackward<T> const&);

}  // namespace offstage::kernels
