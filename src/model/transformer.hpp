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
#include "plan/waiting_slabs.hpp"
#include "state/exchange.hpp"
#include "state/model_shape.hpp"

namespace offstage::cudnn {
class Attention;
}

namespace offstage::model {

struct RunShape {
  std::int64_t batch{};     ///< B, sequences of a micro-batch
  std::int64_t sequence{};  ///< T
  /// Attention stays within documents, and learned positions count from their begins
  /// (TokenBatch::begins).
  bool documents_apart = false;
  /// Share of attention's pairs that documents leave, for counting operations.
  double attended = 1.0;
  /// Weight of the auxiliary loss (kernels::CrossEntropy), which has a gradient and is in no loss
  /// that is returned.
  double z_loss = 0.0;
  /// Device memory for backward of attention by cuDNN; 0: Offstage's own kernels compute it.
  Bytes attention_workspace{};
  /// cuDNN's plans of this shape, which take no more; null: Offstage's own kernels, or memory is
  /// only counted.
  cudnn::Attention* attention{};
  /// Fates of each block's activations; empty: all stay. They change memory and time, never the
  /// bits.
  std::vector<BlockFates> fates{};
  /// Number of blocks whose leaving parts are on the device at a time (BlockRing).
  int slabs = 2;
  /// The model waits for each copy of parts that leave, as in serial swapping.
  bool serial_copies = false;
  /// Number of this rank's micro-batches in a step, if they pass the layers together
  /// (vertical_pass.hpp). Of `fates` only the input's counts then; the other parts are computed
  /// again. 0: a micro-batch passes all layers before the next one comes.
  int micro_batches = 0;
  /// Tensors that wait on the device then, although the inputs leave it.
  plan::StayingTensors staying{};
  /// Attention's gradient has a buffer of its own (GradientBuffers).
  bool attention_buffer = false;
};

/// The layers that a micro-batch acquires, in order: for sources that bring them ahead of use.
struct LayerOrder {
  std::vector<int> forward;   ///< in forward, evaluate and logits
  std::vector<int> backward;  ///< in backward; none is acquired again before the next forward
};
[[nodiscard]] LayerOrder layer_order(state::ModelShape const& shape);

/// A decoder of the families of state::Family; forward and backward written out.
///
/// T:          type of parameters, activations and gradients: float, bfloat16, float16; double is
///             the FP64 reference, for tests.
/// Source:     llama: Touvron et al., arXiv:2302.13971; gpt2: Radford et al., "Language models are
///             unsupervised multitask learners", 2019. Weights are laid out as in Hugging Face
///             files.
/// Memory:     every buffer is allocated from `device` at construction, none during a step.
/// Collective: all members but the constructor, through source and sink; a rank without a
///             micro-batch calls the idle_ members in place of the others. Order of acquire
///             (layer_order) in forward, evaluate and logits: embedding, blocks ascending, head
///             (then the embedding beside it if tied). In backward: blocks descending; the head's
///             is part of forward, and the embedding's needs no parameters. A block's two layers
///             are acquired one after the other, and held together where both are needed: in a
///             vertical schedule, and in backward where attention's addition is computed again. A
///             layer's gradient goes to the sink right after its backward, when the layer is
///             released: head, blocks descending, the MLP before attention, embedding.
/// Waiting:    the calling thread waits for the stream at the end of each member, not between
///             layers. It hands layers and gradients on while the work that uses or makes them may
///             still be in the stream.
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

  /// Sets the store for the parts that leave (leaving_parts). Call it before the first micro-batch.
  /// `store` must outlive this object.
  void set_store(state::ActivationStore& store);

  /// Loss of the micro-batch in nats per token: the sum over targets that are not ignored, in FP64
  /// in row order, divided by B T whatever is ignored. Keeps the tensors that backward needs. The
  /// gradient is that of this loss, with RunShape::z_loss, times `loss_scale`.
  double forward(data::TokenBatch const& batch, state::ParameterSource<T>& source,
                 double loss_scale = 1.0);
  /// Runs backward of the micro-batch of the last forward. Returns when the stream is done with it.
  void backward(state::ParameterSource<T>& source, state::GradientSink<T>& sink);
  // With RunShape::micro_batches the next three members replace forward and backward, in this
  // order. The bits are the same: a sink that adds its gradients round by round within a block, the
  // head and the embedding makes the same additions.
  /// Runs all micro-batches of this rank in a step, from their tokens to the head's input. `rounds`
  /// is the step's number of rounds: the number of batches, or more on a rank that is idle in
  /// the last ones.
  void forward(std::span<data::TokenBatch const> batches, int rounds,
               state::ParameterSource<T>& source);
  /// Returns the loss of each micro-batch, as forward's. The sink gets the head's gradients of all
  /// rounds but the last.
  std::vector<double> head(state::ParameterSource<T>& source, state::GradientSink<T>& sink,
                           double loss_scale = 1.0);
  /// Computes the rest of the gradients. The sink gets a layer's last one when the layer is
  /// released.
  void backward_all(state::ParameterSource<T>& source, state::GradientSink<T>& sink);

  /// Returns the loss as forward does, and keeps nothing.
  double evaluate(data::TokenBatch const& batch, state::ParameterSource<T>& source);

  /// Writes the logits (n, V) behind tokens first_row .. first_row + n - 1 of the micro-batch to
  /// host memory. Rows are counted over (B, T), and n = out.size() / V. Targets are not looked at
  /// and may be missing. Returns when the logits are there. Layers are acquired as by evaluate.
  /// Errors: PreconditionError if `out` does not have whole rows of the micro-batch.
  void logits(data::TokenBatch const& batch, state::ParameterSource<T>& source,
              std::int64_t first_row, std::span<Real<T>> out);

  /// Device memory that is idle from the return of backward or evaluate (or logits, or their idle_
  /// members, or the constructor) until the next of them begins: the largest buffer of gradients
  /// and activations (DOS section 3, Figure 3). In between anyone may write to it; the bytes left
  /// there change no bits. It is always the same memory, aligned to 64 bytes.
  [[nodiscard]] std::span<std::byte> idle_memory() const;

  void idle_forward(state::ParameterSource<T>& source);
  void idle_backward(state::ParameterSource<T>& source, state::GradientSink<T>& sink);

 private:
  class Implementation;
  std::unique_ptr<Implementation> implementation_;
};

/// The parts that leave the device in each micro-batch, in type T. A store needs room for them.
template <class T>
[[nodiscard]] std::vector<state::LeavingPart> leaving_parts(state::ModelShape const& shape,
                                                            RunShape const& run);

/// Floating-point operations of the matrix products of forward and backward (two products in
/// backward for one in forward), attention's two included as causal, for one micro-batch.
[[nodiscard]] double product_flops(state::ModelShape const& shape, RunShape const& run);

}  // namespace offstage::model
