#pragma once

#include <cstdint>

#include "base/units.hpp"
#include "device/device.hpp"
#include "kernels/attention/attention.hpp"
#include "model/transformer.hpp"

namespace offstage::model {

/// Rows of logits begin at multiples of so many elements, which is 128 bytes in 16 bits. cuBLAS has
/// its fast kernels for rows that begin at multiples of 16 bytes, and NVIDIA's guides advise 128
/// since the A100. GPT-2's vocabulary is odd.
constexpr std::int64_t logit_multiple = 64;

/// The letters in which this room writes shapes, and other numbers that kernels need.
struct Dims {
  std::int64_t B, T;     ///< sequences, tokens of each
  std::int64_t C;        ///< hidden
  std::int64_t H, K, D;  ///< query heads, key-value heads, head size
  std::int64_t F;        ///< ffn_hidden
  std::int64_t V;        ///< vocab
  double epsilon;        ///< every norm's
  state::Family family;
  bool qkv_bias;          ///< llama's
  state::QkNorm qk_norm;  ///< llama's
  bool norms_after;       ///< llama's
  bool exact_gelu;        ///< gpt2's
  /// Keys that a query sees, the last of which is its own; 0: it sees its own and all before.
  std::int64_t window;
  bool documents_apart;         ///< as RunShape's
  double attended;              ///< as RunShape's
  double z_loss;                ///< as RunShape's
  std::int64_t logit_rows;      ///< rows whose logits in FP32 exist at a time
  device::Kind kind;            ///< kind of the device that computes
  Bytes attention_workspace;    ///< as RunShape's
  cudnn::Attention* attention;  ///< as RunShape's

  [[nodiscard]] std::int64_t rows() const { return B * T; }
  [[nodiscard]] std::int64_t qkv() const { return (H + 2 * K) * D; }
  [[nodiscard]] kernels::AttentionShape attention_shape() const { return {B, T, H, K, D, window}; }
  /// Elements from one row of the head's logits to the next, and of their gradient.
  [[nodiscard]] std::int64_t logit_pitch() const { return round_up(V, logit_multiple); }
  /// Rows for which the gradient of the logits exists at a time, a tile. With several tiles the
  /// gradient of the vocabulary's matrix is summed in FP32, in V C elements. If all rows take no
  /// more memory than a tile and that sum, they are one tile.
  [[nodiscard]] std::int64_t tile_rows() const {
    return rows() > logit_rows + 2 * C ? logit_rows : rows();
  }
  /// Whether positions have learned vectors; else attention has RoPE.
  [[nodiscard]] bool has_positions() const { return family == state::Family::gpt2; }
  /// Outputs of the MLP's first product: gate and up beside each other, or up alone.
  [[nodiscard]] std::int64_t up() const { return family == state::Family::gpt2 ? F : 2 * F; }
};

/// `kind` is that of the device that computes; logit_rows depends on it.
/// Errors: UsageError as validate(shape); PreconditionError for a run shape below 1 or a sequence
/// beyond max_sequence.
[[nodiscard]] Dims dims_of(state::ModelShape const& shape, RunShape const& run,
                           device::Kind kind = device::Kind::host);

}  // namespace offstage::model
