#pragma once

#include <cstdint>

#include "base/units.hpp"
#include "device/device.hpp"
#include "kernels/attention/attention.hpp"
#include "model/transformer.hpp"

namespace offstage::model {

/// Rows of logits begin at multiples of so many elements, 128 bytes of 16-bit ones: cuBLAS has its fast kernels for rows
/// that begin at multiples of 16 bytes, NVIDIA's guides advise 128 since the A100, and GPT-2's vocabulary is odd.
constexpr std::int64_t logit_multiple = 64;

/// The letters that shapes in this room are written with, and what else kernels need to know.
struct Dims {
  std::int64_t B, T;     ///< sequences, tokens of each
  std::int64_t C;        ///< hidden
  std::int64_t H, K, D;  ///< query heads, key-value heads, head size
  std::int64_t F;        ///< ffn_hidden
  std::int64_t V;        ///< vocab
  double epsilon;        ///< of every norm
  state::Family family;
  bool qkv_bias;                ///< of a llama
  state::QkNorm qk_norm;        ///< likewise
  bool norms_after;             ///< likewise
  std::int64_t window;          ///< keys that a query sees, its own the last; 0: all before it
  std::int64_t logit_rows;      ///< the head's logits in FP32 exist for so many rows at a time
  device::Kind kind;            ///< of the device that computes
  Bytes attention_workspace;    ///< as RunShape's
  cudnn::Attention* attention;  ///< as RunShape's

  [[nodiscard]] std::int64_t rows() const { return B * T; }
  [[nodiscard]] std::int64_t qkv() const { return (H + 2 * K) * D; }
  [[nodiscard]] kernels::AttentionShape attention_shape() const { return {B, T, H, K, D, window}; }
  /// Elements from one row of the head's logits to the next, and of their gradient.
  [[nodiscard]] std::int64_t logit_pitch() const { return round_up(V, logit_multiple); }
  /// Rows of which the gradient of the logits exists at a time. Of several tiles the gradient of the vocabulary's matrix
  /// is summed in FP32, V C of them: where all rows are no more than a tile and that sum, they are one tile.
  [[nodiscard]] std::int64_t tile_rows() const {
    return rows() > logit_rows + 2 * C ? logit_rows : rows();
  }
  /// Outputs of the MLP's first product: gate and up beside each other, or up alone.
  [[nodiscard]] std::int64_t up() const { return family == state::Family::gpt2 ? F : 2 * F; }
};

/// `kind`: of the device that computes, which decides on logit_rows.
/// Errors: UsageError as validate(shape); PreconditionError for a run shape below 1 or a sequence
/// beyond max_sequence.
[[nodiscard]] Dims dims_of(state::ModelShape const& shape, RunShape const& run,
                           device::Kind kind = device::Kind::host);

}  // namespace offstage::model
