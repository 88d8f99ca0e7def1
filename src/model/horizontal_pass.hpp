#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "data/batch.hpp"
#include "model/block_traffic.hpp"
#include "model/gradient_buffers.hpp"
#include "model/head.hpp"
#include "model/layer_work.hpp"
#include "state/exchange.hpp"

namespace offstage::model {

/// A pass in which a micro-batch goes through all layers before the next one comes. One layer is
/// held at a time, two where both are needed.
///
/// T: as Transformer's, and so are errors and waiting.
template <class T>
class Horizontal {
 public:
  /// `work` must outlive this object.
  Horizontal(LayerWork<T>& work, RunShape const& run);

  void set_store(state::ActivationStore& store) { traffic_.set_store(store); }
  /// Runs forward and returns the loss. Without `keep` nothing is kept for backward, and the scale
  /// of the gradient does not matter.
  double forward(data::TokenBatch const& batch, state::ParameterSource<T>& source, bool keep,
                 double loss_scale);
  void backward(state::ParameterSource<T>& source, state::GradientSink<T>& sink);
  void logits(data::TokenBatch const& batch, state::ParameterSource<T>& source,
              std::int64_t first_row, std::span<Real<T>> out);
  // The same on a rank without a micro-batch.
  void idle_forward(state::ParameterSource<T>& source);
  void idle_backward(state::ParameterSource<T>& source, state::GradientSink<T>& sink);

 private:
  /// Runs the embedding and the blocks. Returns the head's input.
  Residual<T> forward_blocks(data::TokenBatch const& batch, state::ParameterSource<T>& source,
                             bool keep);
  /// Runs a block's forward. With `keep`, parts leave for backward.
  void forward_block(int block, state::ParameterSource<T>& source, Residual<T> const& residual,
                     BlockActivations<T> const& a, bool keep);
  /// Runs the head's forward. With `keep` its backward too: dx and the head's gradient, which is in
  /// its own memory, then wait for the rest of backward.
  void forward_head(state::ParameterSource<T>& source, Residual<T> const& residual, bool keep,
                    double loss_scale);
  void backward_block(int block, state::ParameterSource<T>& source, state::GradientSink<T>& sink);
  void idle_block_backward(int block, state::ParameterSource<T>& source,
                           state::GradientSink<T>& sink);
  [[nodiscard]] BlockActivations<T> const& activations(int block) const {
    return memory_.blocks[static_cast<std::size_t>(block)];
  }

  LayerWork<T>& work_;
  Workspace<T> const& memory_;
  Block<T> const& block_;
  device::Stream& stream_;
  Head<T> head_;
  BlockTraffic traffic_;
  GradientBuffers<T> gradients_;
  bool forwarded_ = false;      ///< forward has kept the tensors for backward
  std::span<T> head_gradient_;  ///< gradient of the head's layer
};

}  // namespace offstage::model
