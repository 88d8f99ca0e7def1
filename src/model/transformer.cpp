#include "model/transformer.hpp"

#include <algorithm>
#include <numeric>
#include <optional>
#include <vector>

#include "base/error.hpp"
#include "base/instantiate.hpp"
#include "kernels/tokens/cross_entropy.hpp"
#include "kernels/tokens/embedding.hpp"
#include "model/block.hpp"
#include "model/block_traffic.hpp"
#include "model/dims.hpp"
#include "model/gradient_buffers.hpp"
#include "model/head.hpp"
#include "model/slab.hpp"
#include "model/tensors.hpp"
#include "model/vertical_pass.hpp"
#include "model/workspace.hpp"

namespace offstage::model {
namespace {

constexpr int embedding_layer = 0;

static_assert(kernels::ignored_target == data::ignored_target,
              "targets go to the kernel as they are");

/// The head's parameters: its own layer and, if it is tied, the embedding's.
template <class T>
class HeldHead {
 public:
  HeldHead(state::ParameterSource<T>& source, int head, bool tied, device::Stream& stream)
      : head_{source, head, stream} {
    if (tied) {
      embedding_.emplace(source, embedding_layer, stream);
    }
  }
  [[nodiscard]] state::HeldLayer<T> const& layer() const { return head_; }
  /// Null unless the head is tied.
  [[nodiscard]] state::HeldLayer<T> const* embedding() const {
    return embedding_ ? &*embedding_ : nullptr;
  }

 private:
  state::HeldLayer<T> head_;
  std::optional<state::HeldLayer<T>> embedding_;
};

}  // namespace

template <class T>
class Transformer<T>::Implementation {
 public:
  Implementation(state::ModelShape const& shape, RunShape const& run, device::Device& device,
                 device::Stream& stream);
  /// Waits for the stream, because work that a failed call left there uses this object's memory.
  ~Implementation() {
    try {
      stream_.synchronize();
    } catch (...) {  // the failed call has reported the error
    }
  }
  Implementation(Implementation const&) = delete;
  Implementation& operator=(Implementation const&) = delete;

  /// Runs forward. Without `keep` nothing is kept for backward, and the scale of the gradient does
  /// not matter.
  double forward(data::TokenBatch const& batch, state::ParameterSource<T>& source, bool keep,
                 double loss_scale);
  void backward(state::ParameterSource<T>& source, state::GradientSink<T>& sink);
  void logits(data::TokenBatch const& batch, state::ParameterSource<T>& source,
              std::int64_t first_row, std::span<Real<T>> out);
  [[nodiscard]] std::span<std::byte> idle_memory() const { return work_.idle_memory(); }
  void set_store(state::ActivationStore& store) {
    vertical_run_ ? vertical_.set_store(store) : traffic_.set_store(store);
  }
  void idle_forward(state::ParameterSource<T>& source);
  void idle_backward(state::ParameterSource<T>& source, state::GradientSink<T>& sink);
  [[nodiscard]] Vertical<T, Implementation>& vertical() { return vertical_; }

 private:
  friend class Vertical<T, Implementation>;
  using Head = HeldHead<T>;
  // Members that work on micro-batch g of a vertical schedule, whose layers are held.
  void upload_ids(data::TokenBatch const& batch, int g);
  void embed(state::HeldLayer<T> const& held, int g, std::span<T> x);
  void run_block(int block, state::HeldLayer<T> const& attention, state::HeldLayer<T> const& mlp,
                 std::span<T> x, std::span<T> out);
  void run_head(HeldHead<T> const& held, int g, std::span<T> x, double loss_scale, std::span<T> dx,
                std::span<T> gradient, std::span<T> table);
  /// Recomputes the parts that the block's backward needs, then runs the MLP's backward.
  /// Attention's comes next.
  void run_mlp_backward(int block, state::HeldLayer<T> const& attention,
                        state::HeldLayer<T> const& mlp, std::span<T> x, std::span<T> dx,
                        std::span<T> gradient);
  void run_attention_backward(int block, state::HeldLayer<T> const& attention, std::span<T> x,
                              std::span<T> dx, std::span<T> gradient);
  /// `gradient` has the head's part already if the head is tied.
  void run_embedding_backward(int g, std::span<T> dx, std::span<T> gradient);
  [[nodiscard]] GradientBuffers<T>& gradients() { return gradients_; }

  /// Micro-batch g's part of an array of all micro-batches.
  template <class Element>
  [[nodiscard]] std::span<Element> rows_of(std::span<Element> all, int g) const {
    auto const rows = static_cast<std::size_t>(dims_.rows());
    return all.subspan(static_cast<std::size_t>(g) * rows, rows);
  }
  [[nodiscard]] HeadRows head_rows(int g) const {
    return {.loss = rows_of(work_.head_rows.loss, g),
            .targets = rows_of(work_.head_rows.targets, g)};
  }
  [[nodiscard]] BlockActivations<T> with_input(std::span<T> x) const {
    auto a = activations(0);
    a.x = x;
    return a;
  }
  /// Copies ids, which run from `least` to the end of the vocabulary, to the device by way of
  /// `staged`, because the caller's may be gone before they are copied.
  void upload(std::vector<std::int32_t> const& ids, std::int32_t least,
              std::vector<std::int32_t>& staged, std::span<std::int32_t> target);
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
  [[nodiscard]] std::vector<double> losses(int count);

  void backward_block(int block, state::ParameterSource<T>& source, state::GradientSink<T>& sink);
  /// The backward of a rank without a micro-batch.
  void idle_block_backward(int block, state::ParameterSource<T>& source,
                           state::GradientSink<T>& sink);
  /// Computes the embedding's gradient into `gradient`.
  void backward_embedding(int g, std::span<T> dx, EmbeddingTensors<T> const& gradient);
  [[nodiscard]] std::shared_ptr<device::Event> send(int layer, std::span<T> gradient,
                                                    state::GradientSink<T>& sink);

  [[nodiscard]] BlockActivations<T> const& activations(int block) const {
    return work_.blocks[static_cast<std::size_t>(block)];
  }
  [[nodiscard]] state::LayerLayout const& layout(int layer) const {
    return layers_[static_cast<std::size_t>(layer)];
  }
  /// The positions of one sequence, if the family has any.
  template <class Element>
  [[nodiscard]] std::span<Element> first_positions(std::span<Element> positions) const {
    return positions.first(std::min(positions.size(), static_cast<std::size_t>(dims_.T * dims_.C)));
  }
  [[nodiscard]] int head_layer() const { return static_cast<int>(layers_.size()) - 1; }
  [[nodiscard]] int block_count() const { return head_layer() / state::layers_per_block; }
  template <class Element>
  [[nodiscard]] LayerView<Element> view(int layer, std::span<Element> memory) const {
    return {dims_, layout(layer), memory};
  }
  [[nodiscard]] LayerView<T const> view(int layer, state::HeldLayer<T> const& held) const {
    return view(layer, held.tensor(0, layout(layer).elements));
  }
  [[nodiscard]] AttentionTensors<T const> attention_view(int block,
                                                         state::HeldLayer<T> const& held) const {
    return view(state::attention_layer(block), held).attention();
  }
  [[nodiscard]] MlpTensors<T const> mlp_view(int block, state::HeldLayer<T> const& held) const {
    return view(state::mlp_layer(block), held).mlp();
  }
  [[nodiscard]] AttentionTensors<T> attention_view(int block, std::span<T> gradient) const {
    return view(state::attention_layer(block), gradient).attention();
  }
  [[nodiscard]] MlpTensors<T> mlp_view(int block, std::span<T> gradient) const {
    return view(state::mlp_layer(block), gradient).mlp();
  }
  [[nodiscard]] HeadTensors<T const> head_view(HeldHead<T> const& held) const {
    auto const* const embedding = held.embedding();
    return view(head_layer(), held.layer())
        .head(embedding ? view(embedding_layer, *embedding).embedding().table
                        : std::span<T const>{});
  }
  /// Memory in which the embedding's gradient is summed. The head's part comes first if the head is
  /// tied.
  [[nodiscard]] EmbeddingTensors<T> embedding_gradient(std::span<T> gradient) const {
    return view(embedding_layer, tied_ ? work_.tied_gradient : gradient).embedding();
  }

  Dims dims_;
  bool tied_;
  bool vertical_run_;
  BlockRing ring_;
  std::vector<state::LayerLayout> layers_;
  device::Stream& stream_;
  Workspace<T> work_;
  std::vector<std::vector<std::int32_t>> tokens_;   ///< (B, T) on the host, for each micro-batch
  std::vector<std::vector<std::int32_t>> targets_;  ///< (B, T) on the host, for each micro-batch
  std::vector<double> losses_;                      ///< (B, T) on the host, for each micro-batch
  Block<T> block_;
  model::Head<T> head_;
  bool forwarded_ = false;      ///< forward has kept the tensors for backward
  std::span<T> head_gradient_;  ///< gradient of the head's layer
  BlockTraffic traffic_;
  GradientBuffers<T> gradients_;
  Vertical<T, Implementation> vertical_;
};

template <class T>
Transformer<T>::Implementation::Implementation(state::ModelShape const& shape, RunShape const& run,
                                               device::Device& device, device::Stream& stream)
    : dims_{dims_of(shape, run, device.kind())},
      tied_{shape.tied_head},
      vertical_run_{run.micro_batches > 0},
      ring_{ring_of(shape, run)},
      layers_{state::layers_of(shape)},
      stream_{stream},
      work_{dims_, workspace_demand(layers_, tied_, ring_, vertical_plan(shape, run).demand()),
            device},
      tokens_(work_.tokens.size() / static_cast<std::size_t>(dims_.rows())),
      targets_(tokens_.size()),
      losses_(work_.tokens.size()),
      block_{dims_, stream_, work_.rope, work_.scratch},
      head_{dims_, stream_, work_.head, head_rows(0)},
      traffic_{ring_, work_.slabs, run.serial_copies, stream_},
      gradients_{work_.gradients},
      vertical_{*this, vertical_plan(shape, run), work_, dims_.V * dims_.C, stream_} {
  work_.fill_rope_tables(shape, stream_);
}

template <class T>
double Transformer<T>::Implementation::forward(data::TokenBatch const& batch,
                                               state::ParameterSource<T>& source, bool keep,
                                               double loss_scale) {
  require(!keep || !vertical_run_, "Transformer: made for a vertical schedule");
  require(batch.targets.size() == batch.tokens.size(),
          "Transformer: a micro-batch needs as many targets as tokens");
  // This copy comes first, because a copy of pageable memory may wait for all work in the stream.
  upload(batch.targets, data::ignored_target, targets_[0], head_rows(0).targets);
  auto const residual = forward_blocks(batch, source, keep);
  forward_head(source, residual, keep, loss_scale);
  forwarded_ = keep;
  return losses(1).front();
}

template <class T>
void Transformer<T>::Implementation::logits(data::TokenBatch const& batch,
                                            state::ParameterSource<T>& source,
                                            std::int64_t first_row, std::span<Real<T>> out) {
  auto const rows = static_cast<std::int64_t>(out.size()) / dims_.V;
  require(static_cast<std::int64_t>(out.size()) == rows * dims_.V && first_row >= 0 &&
              first_row <= dims_.rows() - rows,
          "Transformer: logits asked for are not those of whole rows of the micro-batch");
  auto const residual = forward_blocks(batch, source, false);
  {
    HeldHead<T> const held{source, head_layer(), tied_, stream_};
    head_.logits(head_view(held), residual, first_row, out);
  }
  stream_.synchronize();
}

template <class T>
Residual<T> Transformer<T>::Implementation::forward_blocks(data::TokenBatch const& batch,
                                                           state::ParameterSource<T>& source,
                                                           bool keep) {
  require(batch.batch == dims_.B && batch.sequence == dims_.T,
          "Transformer: the micro-batch is not of the run's shape");
  forwarded_ = false;
  upload(batch.tokens, 0, tokens_[0], rows_of(work_.tokens, 0));
  traffic_.begin();
  // If nothing is kept, every block uses the first one's memory.
  auto const block = [&](int i) -> BlockActivations<T> const& { return activations(keep ? i : 0); };
  {
    state::HeldLayer<T> const held{source, embedding_layer, stream_};
    embed(held, 0, block(0).x);
  }
  Residual<T> residual;
  for (int i = 0; i < block_count(); ++i) {
    forward_block(i, source, residual, block(i), keep);
    residual = {block(i).mid, work_.scratch.branch};
  }
  return residual;
}

template <class T>
void Transformer<T>::Implementation::upload(std::vector<std::int32_t> const& ids,
                                            std::int32_t least, std::vector<std::int32_t>& staged,
                                            std::span<std::int32_t> target) {
  require(ids.size() == target.size(), "Transformer: a micro-batch needs batch x sequence ids");
  // Kernels of a GPU cannot report an error.
  require(std::ranges::all_of(ids, [&](std::int32_t id) { return id >= least && id < dims_.V; }),
          "Transformer: an id of the micro-batch is outside the vocabulary");
  staged = ids;
  stream_.copy(target.data(), staged.data(), static_cast<Bytes>(target.size_bytes()),
               device::Copy::host_to_device);
}

template <class T>
void Transformer<T>::Implementation::embed(state::HeldLayer<T> const& held, int g, std::span<T> x) {
  auto const w = view(embedding_layer, held).embedding();
  kernels::embedding_forward<T>(stream_, {.tokens = rows_of(work_.tokens, g),
                                          .table = w.table,
                                          .out = x,
                                          .rows = dims_.rows(),
                                          .vocab = dims_.V,
                                          .width = dims_.C,
                                          .positions = first_positions(w.positions),
                                          .sequence = dims_.T});
}

template <class T>
void Transformer<T>::Implementation::forward_block(int block, state::ParameterSource<T>& source,
                                                   Residual<T> const& residual,
                                                   BlockActivations<T> const& a, bool keep) {
  auto const within_traffic = [&](BlockLayer layer, auto const& forward) {
    if (keep) {
      traffic_.before_forward(block, layer);
    }
    forward();
    if (keep) {
      traffic_.after_forward(block, layer);
    }
  };
  {
    state::HeldLayer<T> const held{source, state::attention_layer(block), stream_};
    within_traffic(BlockLayer::attention,
                   [&] { block_.forward_attention(attention_view(block, held), residual, a); });
  }
  state::HeldLayer<T> const held{source, state::mlp_layer(block), stream_};
  within_traffic(BlockLayer::mlp, [&] { block_.forward_mlp(mlp_view(block, held), a); });
}

template <class T>
void Transformer<T>::Implementation::forward_head(state::ParameterSource<T>& source,
                                                  Residual<T> const& residual, bool keep,
                                                  double loss_scale) {
  HeldHead<T> const held{source, head_layer(), tied_, stream_};
  if (!keep) {
    head_.forward(head_view(held), residual);
    return;
  }
  gradients_.begin();
  head_gradient_ = gradients_.next(stream_);
  auto const table = tied_ ? embedding_gradient({}).table : std::span<T>{};
  head_.forward_backward(head_view(held), residual, loss_scale,
                         {.dx = work_.dx,
                          .dw = view(head_layer(), head_gradient_).head(table),
                          .scratch = work_.scratch.branch,
                          .sum = work_.head_sum});
}

template <class T>
std::vector<double> Transformer<T>::Implementation::losses(int count) {
  auto const rows = static_cast<std::size_t>(dims_.rows());
  auto const loss = work_.head_rows.loss.first(static_cast<std::size_t>(count) * rows);
  stream_.copy(losses_.data(), loss.data(), static_cast<Bytes>(loss.size_bytes()),
               device::Copy::device_to_host);
  stream_.synchronize();
  std::vector<double> means;
  for (int g = 0; g < count; ++g) {
    auto const of = rows_of(std::span{losses_}, g);
    means.push_back(std::accumulate(of.begin(), of.end(), 0.0) / static_cast<double>(rows));
  }
  return means;
}

template <class T>
void Transformer<T>::Implementation::backward(state::ParameterSource<T>& source,
                                              state::GradientSink<T>& sink) {
  require(forwarded_, "Transformer: backward without a forward of the same micro-batch");
  forwarded_ = false;
  gradients_.given(send(head_layer(), head_gradient_, sink));
  for (int block = block_count() - 1; block >= 0; --block) {
    backward_block(block, source, sink);
  }
  auto const gradient = gradients_.next(stream_);
  backward_embedding(0, work_.dx, embedding_gradient(gradient));
  gradients_.given(send(embedding_layer, tied_ ? work_.tied_gradient : gradient, sink));
  stream_.synchronize();  // others may use the idle memory from now on
}

// The MLP's layer comes first. Attention's is acquired beside it only if the MLP needs attention's
// addition.
template <class T>
void Transformer<T>::Implementation::backward_block(int block, state::ParameterSource<T>& source,
                                                    state::GradientSink<T>& sink) {
  auto const fates = ring_.fates(block);
  auto const& a = activations(block);
  std::optional<state::HeldLayer<T>> mlp;
  mlp.emplace(source, state::mlp_layer(block), stream_);
  std::optional<state::HeldLayer<T>> attention;
  auto const begin_attention = [&] {
    attention.emplace(source, state::attention_layer(block), stream_);
    traffic_.before_backward(block, BlockLayer::attention);
    block_.recompute_attention(attention_view(block, *attention), a, fates);
  };
  if (mlp_needs_attention(fates)) {
    begin_attention();
  }
  traffic_.before_backward(block, BlockLayer::mlp);
  block_.recompute_mlp(mlp_view(block, *mlp), a, fates);
  auto gradient = gradients_.next(stream_);
  block_.backward_mlp(mlp_view(block, *mlp), a, work_.dx, mlp_view(block, gradient));
  traffic_.after_backward(block, BlockLayer::mlp);
  mlp.reset();
  gradients_.given(send(state::mlp_layer(block), gradient, sink));
  if (!attention) {
    begin_attention();
  }
  gradient = gradients_.next(stream_);
  block_.backward_attention(attention_view(block, *attention), a, work_.dx,
                            attention_view(block, gradient));
  traffic_.after_backward(block, BlockLayer::attention);
  attention.reset();
  gradients_.given(send(state::attention_layer(block), gradient, sink));
}

template <class T>
void Transformer<T>::Implementation::idle_block_backward(int block,
                                                         state::ParameterSource<T>& source,
                                                         state::GradientSink<T>& sink) {
  bool const together = mlp_needs_attention(ring_.fates(block));
  std::optional<state::HeldLayer<T>> attention;
  {
    state::HeldLayer<T> const mlp{source, state::mlp_layer(block), stream_};
    if (together) {
      attention.emplace(source, state::attention_layer(block), stream_);
    }
  }
  sink.add(state::mlp_layer(block), {});
  if (!together) {
    attention.emplace(source, state::attention_layer(block), stream_);
  }
  attention.reset();
  sink.add(state::attention_layer(block), {});
}

template <class T>
void Transformer<T>::Implementation::backward_embedding(int g, std::span<T> dx,
                                                        EmbeddingTensors<T> const& gradient) {
  auto const& [d_table, d_positions] = gradient;
  if (!tied_) {
    zero(stream_, d_table);
  }  // a tied table has the head's gradient already
  zero(stream_, d_positions);
  kernels::embedding_backward<T>(stream_, {.tokens = rows_of(work_.tokens, g),
                                           .d_out = dx,
                                           .d_table = d_table,
                                           .rows = dims_.rows(),
                                           .vocab = dims_.V,
                                           .width = dims_.C,
                                           .d_positions = first_positions(d_positions),
                                           .sequence = dims_.T});
}

template <class T>
std::shared_ptr<device::Event> Transformer<T>::Implementation::send(int layer,
                                                                    std::span<T> gradient,
                                                                    state::GradientSink<T>& sink) {
  auto const elements = static_cast<std::size_t>(layout(layer).elements);
  auto const padded = gradient.first(static_cast<std::size_t>(layout(layer).padded_elements()));
  zero(stream_, padded.subspan(elements));
  return sink.add(layer, padded);
}

template <class T>
void Transformer<T>::Implementation::upload_ids(data::TokenBatch const& batch, int g) {
  require(batch.batch == dims_.B && batch.sequence == dims_.T,
          "Transformer: the micro-batch is not of the run's shape");
  auto const i = static_cast<std::size_t>(g);
  upload(batch.tokens, 0, tokens_[i], rows_of(work_.tokens, g));
  upload(batch.targets, data::ignored_target, targets_[i], head_rows(g).targets);
}

template <class T>
void Transformer<T>::Implementation::run_block(int block, state::HeldLayer<T> const& attention,
                                               state::HeldLayer<T> const& mlp, std::span<T> x,
                                               std::span<T> out) {
  auto const a = with_input(x);
  block_.forward_attention(attention_view(block, attention), {}, a);
  block_.forward_mlp(mlp_view(block, mlp), a);
  block_.forward_sum(mlp_view(block, mlp), a, out);
}

template <class T>
void Transformer<T>::Implementation::run_head(HeldHead<T> const& held, int g, std::span<T> x,
                                              double loss_scale, std::span<T> dx,
                                              std::span<T> gradient, std::span<T> table) {
  auto activations = work_.head;
  activations.x = x;
  auto const d_table = tied_ ? view(embedding_layer, table).embedding().table : std::span<T>{};
  model::Head<T>{dims_, stream_, activations, head_rows(g)}.forward_backward(
      head_view(held), {}, loss_scale,
      {.dx = dx,
       .dw = view(head_layer(), gradient).head(d_table),
       .scratch = work_.scratch.branch,
       .sum = work_.head_sum});
}

template <class T>
void Transformer<T>::Implementation::run_mlp_backward(int block,
                                                      state::HeldLayer<T> const& attention,
                                                      state::HeldLayer<T> const& mlp,
                                                      std::span<T> x, std::span<T> dx,
                                                      std::span<T> gradient) {
  auto const a = with_input(x);
  auto const w = mlp_view(block, mlp);
  block_.recompute_attention(attention_view(block, attention), a, recomputed_block);
  block_.recompute_mlp(w, a, recomputed_block);
  block_.backward_mlp(w, a, dx, mlp_view(block, gradient));
}

template <class T>
void Transformer<T>::Implementation::run_attention_backward(int block,
                                                            state::HeldLayer<T> const& attention,
                                                            std::span<T> x, std::span<T> dx,
                                                            std::span<T> gradient) {
  block_.backward_attention(attention_view(block, attention), with_input(x), dx,
                            attention_view(block, gradient));
}

template <class T>
void Transformer<T>::Implementation::run_embedding_backward(int g, std::span<T> dx,
                                                            std::span<T> gradient) {
  backward_embedding(g, dx, view(embedding_layer, gradient).embedding());
}

template <class T>
void Transformer<T>::Implementation::idle_forward(state::ParameterSource<T>& source) {
  forwarded_ = false;
  for (int layer = embedding_layer; layer < head_layer(); ++layer) {
    state::HeldLayer<T> const held{source, layer, stream_};
  }
  { HeldHead<T> const held{source, head_layer(), tied_, stream_}; }
  stream_.synchronize();
}

template <class T>
void Transformer<T>::Implementation::idle_backward(state::ParameterSource<T>& source,
                                                   state::GradientSink<T>& sink) {
  sink.add(head_layer(), {});
  for (int block = block_count() - 1; block >= 0; --block) {
    idle_block_backward(block, source, sink);
  }
  sink.add(embedding_layer, {});
  stream_.synchronize();
}

template <class T>
Transformer<T>::Transformer(state::ModelShape const& shape, RunShape const& run,
                            device::Device& device, device::Stream& stream)
    : implementation_{std::make_unique<Implementation>(shape, run, device, stream)} {}

template <class T>
Transformer<T>::~Transformer() = default;

template <class T>
void Transformer<T>::set_store(state::ActivationStore& store) {
  implementation_->set_store(store);
}

template <class T>
double Transformer<T>::forward(data::TokenBatch const& batch, state::ParameterSource<T>& source,
                               double loss_scale) {
  return implementation_->forward(batch, source, true, loss_scale);
}

template <class T>
void Transformer<T>::backward(state::ParameterSource<T>& source, state::GradientSink<T>& sink) {
  implementation_->backward(source, sink);
}

template <class T>
double Transformer<T>::evaluate(data::TokenBatch const& batch, state::ParameterSource<T>& source) {
  return implementation_->forward(batch, source, false, 1.0);
}

template <class T>
void Transformer<T>::logits(data::TokenBatch const& batch, state::ParameterSource<T>& source,
                            std::int64_t first_row, std::span<Real<T>> out) {
  implementation_->logits(batch, source, first_row, out);
}

template <class T>
std::span<std::byte> Transformer<T>::idle_memory() const {
  return implementation_->idle_memory();
}

template <class T>
void Transformer<T>::idle_forward(state::ParameterSource<T>& source) {
  implementation_->idle_forward(source);
}

template <class T>
void Transformer<T>::idle_backward(state::ParameterSource<T>& source,
                                   state::GradientSink<T>& sink) {
  implementation_->idle_backward(source, sink);
}

template <class T>
void Transformer<T>::forward(std::span<data::TokenBatch const> batches, int rounds,
                             state::ParameterSource<T>& source) {
  implementation_->vertical().forward(batches, rounds, source);
}

template <class T>
std::vector<double> Transformer<T>::head(state::ParameterSource<T>& source,
                                         state::GradientSink<T>& sink, double loss_scale) {
  return implementation_->vertical().head(source, sink, loss_scale);
}

template <class T>
void Transformer<T>::backward_all(state::ParameterSource<T>& source, state::GradientSink<T>& sink) {
  implementation_->vertical().backward(source, sink);
}

template <class T>
std::vector<state::LeavingPart> leaving_parts(state::ModelShape const& shape, RunShape const& run) {
  if (run.micro_batches > 0) {
    Dims const dims = dims_of(shape, run);
    return vertical_plan(shape, run)
        .leaving_parts(dims.rows() * dims.C * static_cast<Bytes>(sizeof(T)),
                       dims.V * dims.C * static_cast<Bytes>(sizeof(T)));
  }
  return leaving_parts_of<T>(dims_of(shape, run),
                             BlockRing{static_cast<int>(shape.layers), run.fates, run.slabs});
}

OFFSTAGE_INSTANTIATE(OFFSTAGE_ALL_TYPES, leaving_parts)
OFFSTAGE_INSTANTIATE_CLASS(OFFSTAGE_ALL_TYPES, Transformer)

}  // namespace offstage::model
