#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "data/batch.hpp"
#include "device/device.hpp"
#include "model/gradient_buffers.hpp"
#include "model/layer_work.hpp"
#include "model/vertical_plan.hpp"
#include "model/waiting_tensors.hpp"
#include "state/exchange.hpp"

namespace offstage::model {

/// A step in which all micro-batches of this rank pass a block before the next block comes. The
/// block's two layers are held together. Every layer is acquired once in forward and once in
/// backward, however many micro-batches there are. Between blocks their inputs and the gradients of
/// these wait (WaitingTensors); backward computes the rest of a block again.
///
/// T:     as Transformer's.
/// Order: forward goes through the micro-batches to and fro, because the tensor that the layer
///        before made last is still there. Gradients go to the sink in ascending order of
///        micro-batches, the same order as in a horizontal schedule: in a block, those of the MLP
///        and of attention for each micro-batch.
template <class T>
class Vertical {
 public:
  /// `work` must outlive this object.
  Vertical(LayerWork<T>& work, VerticalPlan const& plan);

  void set_store(state::ActivationStore& store);
  /// Runs from tokens to the head's input. `rounds` is the step's number of rounds; this rank has
  /// no micro-batch in those after its own.
  void forward(std::span<data::TokenBatch const> batches, int rounds,
               state::ParameterSource<T>& source);
  /// Computes the loss of each micro-batch, and the gradients of the head. The gradients of all
  /// rounds but the last go to the sink. The last one waits for backward, because no gradient is
  /// complete until then.
  std::vector<double> head(state::ParameterSource<T>& source, state::GradientSink<T>& sink,
                           double loss_scale);
  void backward(state::ParameterSource<T>& source, state::GradientSink<T>& sink);

 private:
  /// A block whose layers are held. A layer is released before its last gradient is handed on,
  /// because its parameters may change then.
  struct HeldBlock {
    std::optional<state::HeldLayer<T>> mlp, attention;
  };

  /// The numbers of tensors. `block` = blocks stands for the last block's output.
  [[nodiscard]] int input(int block, int g) const { return block * plan_.micro_batches + g; }
  [[nodiscard]] int gradient(int g) const { return input(plan_.blocks + 1, g); }
  /// The i-th micro-batch in a layer. The head, after all blocks, takes them in ascending order.
  [[nodiscard]] int forward_order(int layer, int i) const {
    bool const ascending = (plan_.blocks + 1 - layer) % 2 == 0;
    return ascending ? i : count_ - 1 - i;
  }
  void bring(int tensor) {
    if (plan_.ahead) {
      tensors_.bring(tensor);
    }
  }
  /// The one block's activations that there are, with the documents of micro-batch g and this
  /// input.
  [[nodiscard]] BlockActivations<T> with_input(int g, std::span<T> x) const;

  void forward_block(int block, int i, state::HeldLayer<T> const& attention,
                     state::HeldLayer<T> const& mlp);
  /// Runs the head and its backward on micro-batch g. Returns the gradient of the head's layer.
  std::span<T> run_head(HeldHead<T> const& held, int g, double loss_scale);
  void backward_block(int block, int g, HeldBlock& held, state::GradientSink<T>& sink);
  /// Brings what backward of the block takes after micro-batch g.
  void bring_after(int block, int g);
  void backward_embedding(state::GradientSink<T>& sink);
  /// Hands a gradient on; it is empty if this rank has no micro-batch in the round.
  void hand_on(int layer, std::span<T> gradient, state::GradientSink<T>& sink);

  LayerWork<T>& work_;
  VerticalPlan plan_;
  device::Stream& stream_;
  state::ActivationStore* store_{};
  GradientBuffers<T> gradients_;
  WaitingTensors tensors_;  ///< (B, T, C) each
  /// The tied head's gradients of the table, until the embedding adds its part.
  WaitingTensors tables_;
  int count_ = 0;  ///< micro-batches of this rank in this step
  int rounds_ = 0;
  std::span<T> last_;  ///< the head's gradient of the last round, until backward; empty: none
};

}  // namespace offstage::model
