#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "base/error.hpp"
#include "kernels/linear/bias.hpp"
#include "kernels/norms/layernorm.hpp"
#include "kernels/norms/rmsnorm.hpp"
#include "kernels/pointwise/add.hpp"
#include "kernels/pointwise/gelu.hpp"
#include "kernels/pointwise/rope.hpp"
#include "kernels/pointwise/swiglu.hpp"
#include "kernels/tokens/cross_entropy.hpp"
#include "kernels/tokens/embedding.hpp"

/// The preconditions that all backends share; check_views() is for cuda, which cannot look at what
/// views hold.
/// Errors: PreconditionError.
namespace offstage::kernels {

inline bool has_length(auto const& view, std::int64_t length) {
  return std::cmp_equal(view.size(), length);
}

/// Whether delta and sum are both there or both empty.
bool are_residual(auto const& norm, std::int64_t count) {
  return has_length(norm.delta, norm.delta.empty() ? 0 : count) &&
         has_length(norm.sum, norm.delta.empty() ? 0 : count);
}

/// Whether rows are whole groups that do not lie over one another.
bool are_places(auto const& norm) {
  auto const& [groups, pitch] = norm.places;
  return groups > 0 && norm.rows % groups == 0 && (pitch == 0 || pitch >= groups * norm.width);
}

template <class T>
void check(RmsnormForward<T> const& a) {
  require(a.rows >= 0 && a.width > 0 && are_places(a), "rmsnorm_forward: no such shape");
  std::int64_t const count = a.places.extent(a.rows, a.width);
  require(has_length(a.x, count) && has_length(a.y, count) && has_length(a.weight, a.width) &&
              has_length(a.inverse_rms, a.rows) && are_residual(a, count),
          "rmsnorm_forward: a view has the wrong length");
}

template <class T>
void check(RmsnormBackward<T> const& a) {
  require(a.rows >= 0 && a.width > 0 && are_places(a), "rmsnorm_backward: no such shape");
  std::int64_t const count = a.places.extent(a.rows, a.width);
  require(has_length(a.x, count) && has_length(a.dy, count) && has_length(a.dx, count) &&
              has_length(a.weight, a.width) && has_length(a.d_weight, a.width) &&
              has_length(a.inverse_rms, a.rows),
          "rmsnorm_backward: a view has the wrong length");
}

template <class T>
void check(LayernormForward<T> const& a) {
  require(a.rows >= 0 && a.width > 0, "layernorm_forward: no such shape");
  std::int64_t const count = a.rows * a.width;
  require(has_length(a.x, count) && has_length(a.y, count) && has_length(a.weight, a.width) &&
              has_length(a.bias, a.width) && has_length(a.mean, a.rows) &&
              has_length(a.inverse_deviation, a.rows) && are_residual(a, count),
          "layernorm_forward: a view has the wrong length");
}

template <class T>
void check(LayernormBackward<T> const& a) {
  require(a.rows >= 0 && a.width > 0, "layernorm_backward: no such shape");
  std::int64_t const count = a.rows * a.width;
  require(has_length(a.x, count) && has_length(a.dy, count) && has_length(a.dx, count) &&
              has_length(a.weight, a.width) && has_length(a.d_weight, a.width) &&
              has_length(a.d_bias, a.width) && has_length(a.mean, a.rows) &&
              has_length(a.inverse_deviation, a.rows),
          "layernorm_backward: a view has the wrong length");
}

template <class T>
void check(Add<T> const& a) {
  require(a.rows >= 0 && a.width > 0, "add: no such shape");
  std::int64_t const count = a.rows * a.width;
  require(has_length(a.x, count) && has_length(a.y, count) && has_length(a.sum, count),
          "add: a view has the wrong length");
}

template <class T>
void check(GeluForward<T> const& a) {
  require(a.rows >= 0 && a.width > 0, "gelu_forward: no such shape");
  std::int64_t const count = a.rows * a.width;
  require(has_length(a.x, count) && has_length(a.y, count),
          "gelu_forward: a view has the wrong length");
}

template <class T>
void check(GeluBackward<T> const& a) {
  require(a.rows >= 0 && a.width > 0, "gelu_backward: no such shape");
  std::int64_t const count = a.rows * a.width;
  require(has_length(a.x, count) && has_length(a.dy, count) && has_length(a.dx, count),
          "gelu_backward: a view has the wrong length");
}

template <class T>
void check(BiasForward<T> const& a) {
  require(a.rows >= 0 && a.width > 0, "bias_forward: no such shape");
  require(has_length(a.y, a.rows * a.width) && has_length(a.bias, a.width),
          "bias_forward: a view has the wrong length");
}

template <class T>
void check(BiasBackward<T> const& a) {
  require(a.rows >= 0 && a.width > 0, "bias_backward: no such shape");
  require(has_length(a.dy, a.rows * a.width) && has_length(a.d_bias, a.width),
          "bias_backward: a view has the wrong length");
}

template <class T>
void check(Rope<T> const& a) {
  require(a.rows >= 0 && a.sequence > 0 && a.heads > 0 && a.kv_heads > 0 && a.head_dim > 0 &&
              a.head_dim % 2 == 0,
          "rope: no such shape (head_dim must be even)");
  std::int64_t const table = a.sequence * (a.head_dim / 2);
  require(has_length(a.qkv, a.rows * (a.heads + 2 * a.kv_heads) * a.head_dim) &&
              has_length(a.cosine, table) && has_length(a.sine, table),
          "rope: a view has the wrong length");
}

template <class T>
void check(SwigluForward<T> const& a) {
  require(a.rows >= 0 && a.width > 0, "swiglu_forward: no such shape");
  std::int64_t const count = a.rows * a.width;
  require(has_length(a.gate_up, 2 * count) && has_length(a.y, count),
          "swiglu_forward: a view has the wrong length");
}

template <class T>
void check(SwigluBackward<T> const& a) {
  require(a.rows >= 0 && a.width > 0, "swiglu_backward: no such shape");
  std::int64_t const count = a.rows * a.width;
  require(has_length(a.gate_up, 2 * count) && has_length(a.dy, count) &&
              has_length(a.d_gate_up, 2 * count),
          "swiglu_backward: a view has the wrong length");
}

inline bool all_below(std::span<std::int32_t const> tokens, std::int64_t vocab) {
  for (std::int32_t const token : tokens) {
    if (token < 0 || token >= vocab) {
      return false;
    }
  }
  return true;
}

/// Returns the position of row r of an embedding (its position_of, or what stands for it).
template <class Call>
std::int64_t position_of(Call const& a, std::int64_t r) {
  return a.position_of.empty() ? r % a.sequence : a.position_of[static_cast<std::size_t>(r)];
}

template <class T>
void check_views(EmbeddingForward<T> const& a) {
  require(a.rows >= 0 && a.vocab > 0 && a.width > 0, "embedding_forward: no such shape");
  require(has_length(a.tokens, a.rows) && has_length(a.table, a.vocab * a.width) &&
              has_length(a.out, a.rows * a.width),
          "embedding_forward: a view has the wrong length");
  require(a.positions.empty() || (a.sequence > 0 && has_length(a.positions, a.sequence * a.width)),
          "embedding_forward: positions are not those of the sequence");
  require(a.position_of.empty() || has_length(a.position_of, a.rows),
          "embedding_forward: not each row has a position");
}

template <class T>
void check(EmbeddingForward<T> const& a) {
  check_views(a);
  require(all_below(a.tokens, a.vocab), "embedding_forward: a token is outside the vocabulary");
  require(all_below(a.position_of, a.sequence), "embedding_forward: a position is outside");
}

template <class T>
void check_views(EmbeddingBackward<T> const& a) {
  require(a.rows >= 0 && a.vocab > 0 && a.width > 0, "embedding_backward: no such shape");
  require(has_length(a.tokens, a.rows) && has_length(a.d_table, a.vocab * a.width) &&
              has_length(a.d_out, a.rows * a.width),
          "embedding_backward: a view has the wrong length");
  require(
      a.d_positions.empty() || (a.sequence > 0 && has_length(a.d_positions, a.sequence * a.width)),
      "embedding_backward: positions are not those of the sequence");
  require(a.position_of.empty() || has_length(a.position_of, a.rows),
          "embedding_backward: not each row has a position");
}

template <class T>
void check(EmbeddingBackward<T> const& a) {
  check_views(a);
  require(all_below(a.tokens, a.vocab), "embedding_backward: a token is outside the vocabulary");
  require(all_below(a.position_of, a.sequence), "embedding_backward: a position is outside");
}

template <class T>
void check_views(CrossEntropy<T> const& a) {
  require(a.rows >= 0 && a.vocab > 0, "cross_entropy: no such shape");
  require(a.stride() >= a.vocab, "cross_entropy: the pitch is less than a row");
  require(a.z_loss >= 0.0, "cross_entropy: z_loss is below 0");
  std::int64_t const count = a.rows * a.stride();
  require(has_length(a.logits, count) && has_length(a.targets, a.rows) &&
              has_length(a.loss, a.rows) && (a.d_logits.empty() || has_length(a.d_logits, count)),
          "cross_entropy: a view has the wrong length");
}

template <class T>
void check(CrossEntropy<T> const& a) {
  check_views(a);
  require(std::ranges::all_of(a.targets,
                              [&](std::int32_t target) {
                                return target == ignored_target ||
                                       (target >= 0 && target < a.vocab);
                              }),
          "cross_entropy: a target is outside the vocabulary");
}

}  // namespace offstage::kernels
