#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/dtype.hpp"
#include "device/device.hpp"
#include "model/dims.hpp"
#include "model/norm.hpp"
#include "model/tensors.hpp"
#include "platform/memory/huge_buffer.hpp"
#include "state/exchange.hpp"
#include "state/model_shape.hpp"

namespace offstage::generate {

/// A decoder on the host that keeps keys and values of the tokens that it has seen, so that a
/// further token costs one row of every product.
///
/// T:      float or bfloat16.
/// Memory: keys and values, whose room doubles as the sequence grows; activations of the rows of
///         one call.
template <class T>
class CachedDecoder {
 public:
  /// All three outlive it; `stream` is a calling one of the host.
  CachedDecoder(state::ModelShape const& shape, state::ParameterSource<T>& parameters,
                device::Stream& stream);

  /// Tokens whose keys and values are kept.
  [[nodiscard]] std::int64_t size() const noexcept { return size_; }
  /// Forgets all tokens but the first `count`, at most size().
  void shorten(std::int64_t count);
  /// Appends tokens, at least one and at most max_sequence in all, and sets `out` (V) to the logits
  /// of what follows the last one.
  void append(std::span<std::int32_t const> tokens, std::span<float> out);

 private:
  /// Results of a block's layers for the new rows, one behind the other.
  struct Rows {
    std::vector<T> x, normed, qkv, attention, mid, up, hidden, branch;
    std::vector<T> heads;  ///< qkv with normalised queries and keys, in a model that has such norms
    std::vector<Real<T>> mean, inverse, query_inverse, key_inverse, log_sum_exp;
  };

  void make_room(std::int64_t tokens);
  void make_rows(std::int64_t rows);
  void embed(std::span<std::int32_t const> tokens);
  void attend(model::Dims const& dims, int block, bool first);
  void keep(model::Dims const& dims, int block);
  /// Rows of what attention takes.
  [[nodiscard]] std::span<T> heads() { return rows_.heads.empty() ? rows_.qkv : rows_.heads; }
  /// Makes heads() of rows_.qkv.
  void make_heads(model::Dims const& dims, model::AttentionTensors<T const> const& w);
  void run_mlp(model::Dims const& dims, int block);
  void run_head(model::Dims const& dims, std::span<float> out);
  [[nodiscard]] model::NormStatistics<T> statistics();
  [[nodiscard]] std::span<T> kept(int block, bool values) const;

  state::ModelShape shape_;
  std::vector<state::LayerLayout> layouts_;
  state::ParameterSource<T>& parameters_;
  device::Stream& stream_;
  std::int64_t size_{};
  std::int64_t room_{};                 ///< tokens that cache_ has room for
  memory::HugeBuffer cache_;            ///< (layers, 2, room, K D): keys, then values
  std::vector<Real<T>> cosine_, sine_;  ///< (room, D / 2), empty with learned positions
  Rows rows_;
};

}  // namespace offstage::generate
