#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/dtype.hpp"
#include "base/units.hpp"
#include "data/batch.hpp"
#include "device/device.hpp"
#include "model/fates.hpp"
#include "state/exchange.hpp"
#include "state/model_shape.hpp"

namespace offstage::cudnn {
class Attention;
}

namespace offstage::model {

struct RunShape {
  std::int64_t batch{};     ///< B, sequences of a micro-batch
  std::int64_t sequence{};  ///< T
  /// Device memory for backward of attention by cuDNN; 0: the own kernels compute it.
  Bytes attention_workspace{};
  /// cuDNN's plans of this shape, which take no more; null: the own kernels, or memory is only counted.
  cudnn::Attention* attention{};
  /// Of each block's activations; empty: all stay. They change memory and time, never the bits.
  std::vector<BlockFates> fates{};
  /// Blocks whose parts that leave are on the device at a time (BlockRing).
  int slabs = 2;
  /// The model waits for each copy of parts that leave, as in serial swapping.
  bool serial_copies = false;
  /// Of this rank in a step, which pass the layers together (vertical_pass.hpp); 0: a micro-batch passes
  /// all layers before the next one comes. Of `fates` the inputs' alone counts then: all else is
  /// computed again.
  int micro_batches = 0;
};

/// The layers that a micro-batch acquires, in order: for sources that bring them ahead of use.
struct LayerOrder {
  std::vector<int> forward;   ///< of evaluate and logits, too
  std::vector<int> backward;  ///< none of them is acquired again before the next forward
};
[[nodiscard]] LayerOrder layer_order(state::ModelShape const& shape);

/// A decoder of the families of state::Family; forward and backward written out.
///
/// T:          type of parameters, activations and gradients: float, bfloat16, float16; double is the
///             FP64 reference, for tests.
/// Source:     llama: Touvron et al., arXiv:2302.13971; gpt2: Radford et al., "Language models are
///             unsupervised multitask learners", 2019. Weights are laid out as in Hugging Face files.
/// Memory:     every buffer is allocated from `device` at construction, none during a step.
/// Collective: all members but the constructor, through source and sink; a rank without a
///             micro-batch calls the idle_ members in place of the others. Order of acquire (layer_order) in
///             forward, evaluate and logits: embedding, blocks ascending, head (then the embedding beside it
///             if tied). In backward: blocks descending; the head's is part of forward, and the embedding's needs no
///             parameters. A block's two layers are acquired one after the other, and held together
///             where both are needed: in a vertical schedule, and in backward where what attention
///             adds is computed again.
///             A layer's gradient goes to the sink right after its backward, when the layer is
///             released: head, blocks descending, the MLP before attention, embedding.
/// Waiting:    the calling thread waits for the stream at the end of each member, not between layers: it hands
///             layers and gradients on while the work that uses or makes them may still be to come.
template <class T>
class Transformer {
 public:
  /// Errors: PreconditionError: fates that BlockRing refuses.
  Transformer(state::ModelShape const& shape, RunShape const& run, device::Device& device,
              device::Stream& stream);
  /// Waits for the stream: a member that threw may have left work there.
  ~Transformer();
  Transformer(Transformer const&) = delete;
  Transformer& operator=(Transformer const&) = delete;

  /// For what leaves (leaving_parts), before the first micro-batch; `store` outlives this.
  void set_store(state::ActivationStore& store);

  /// Loss of the micro-batch in nats per token: the sum over targets that are not ignored, in FP64
  /// in row order, divided by B T whatever is ignored. Keeps what backward needs; the gradient is
  /// that of this loss times `loss_scale`.
  double forward(data::TokenBatch const& batch, state::ParameterSource<T>& source,
                 double loss_scale = 1.0);
  /// Must follow forward of the same micro-batch. Returns when the stream is done with it.
  void backward(state::ParameterSource<T>& source, state::GradientSink<T>& sink);
  // Where RunShape::micro_batches says so, in place of both, in this order. Bits are theirs: a sink
  // that adds what it is given round by round within a block, the head and the embedding, gets the
  // gradients of the same additions.
  /// All micro-batches of this rank in a step, from their tokens to what the head takes. `rounds`:
  /// of the step, as many as batches, or more on a rank that is idle in the last ones.
  void forward(std::span<data::TokenBatch const> batches, int rounds,
               state::ParameterSource<T>& source);
  /// Loss of each, as forward's. The sink gets the head's gradients of all rounds but the last.
  std::vector<double> head(state::ParameterSource<T>& source, state::GradientSink<T>& sink,
                           double loss_scale = 1.0);
  /// The rest of the gradients. A layer's last one is given when the layer is released.
  void backward_all(state::ParameterSource<T>& source, state::GradientSink<T>& sink);

  /// Loss as forward, without keeping anything.
  double evaluate(data::TokenBatch const& batch, state::ParameterSource<T>& source);

  /// The logits (n, V) that follow tokens first_row .. first_row + n - 1 of the micro-batch, rows
  /// counted over (B, T), into host memory; n = out.size() / V. Targets are not looked at, they may
  /// be missing. Returns when the logits are there; layers are acquired as by evaluate.
  /// Errors: PreconditionError if `out` is not of whole rows of the micro-batch.
  void logits(data::TokenBatch const& batch, state::ParameterSource<T>& source,
              std::int64_t first_row, std::span<Real<T>> out);

  /// Device memory that holds nothing from the return of backward or evaluate (or logits, or their
  /// idle_ likes, or the construction) until the next of them begins: the largest buffer of gradients
  /// and activations (DOS section 3, Figure 3). Till then anyone may write to it; whatever is left there
  /// changes no bits. Always the same memory, aligned to 64 bytes.
  [[nodiscard]] std::span<std::byte> idle_memory() const;

  void idle_forward(state::ParameterSource<T>& source);
  void idle_backward(state::ParameterSource<T>& source, state::GradientSink<T>& sink);

 private:
  class Implementation;
  std::unique_ptr<Implementation> implementation_;
};

/// What leaves the device in each micro-batch, in type T: what a store is to have room for.
template <class T>
[[nodiscard]] std::vector<state::LeavingPart> leaving_parts(state::ModelShape const& shape,
                                                            RunShape const& run);

/// Floating-point operations of the matrix products of forward and backward (two products in
/// backward for one in forward), attention's two included as causal, for one micro-batch.
[[nodiscard]] double product_flops(state::ModelShape const& shape, RunShape const& run);

}  // namespace offstage::model
