#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "data/batch.hpp"
#include "device/device.hpp"
#include "model/block.hpp"
#include "model/dims.hpp"
#include "model/fates.hpp"
#include "model/head.hpp"
#include "model/tensors.hpp"
#include "model/transformer.hpp"
#include "model/workspace.hpp"
#include "state/exchange.hpp"
#include "state/model_shape.hpp"

namespace offstage::model {

/// The number of the embedding's layer.
constexpr int embedding_layer = 0;

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

/// The work that both schedules share: the memory of a pass, the tensors of layers in it, and the
/// two ends of a micro-batch, from its ids to the embedding and from the head to its loss.
/// `Horizontal` and `Vertical` order it, and call the blocks and the head.
///
/// T:     as Transformer's.
/// Order: members enqueue on the stream and return, unless they say otherwise. `g` is the number of
///        the micro-batch, 0 in a horizontal schedule.
template <class T>
class LayerWork {
 public:
  LayerWork(state::ModelShape const& shape, RunShape const& run, device::Device& device,
            device::Stream& stream);
  ~LayerWork() = default;
  LayerWork(LayerWork const&) = delete;
  LayerWork& operator=(LayerWork const&) = delete;

  [[nodiscard]] Dims const& dims() const { return dims_; }
  [[nodiscard]] bool tied() const { return tied_; }
  [[nodiscard]] BlockRing const& ring() const { return ring_; }
  [[nodiscard]] Workspace<T> const& memory() const { return memory_; }
  [[nodiscard]] device::Stream& stream() const { return stream_; }
  [[nodiscard]] Block<T> const& block() const { return block_; }
  [[nodiscard]] int head_layer() const { return static_cast<int>(layers_.size()) - 1; }
  [[nodiscard]] int block_count() const { return head_layer() / state::layers_per_block; }

  // The tensors of a layer that is held, and of a layer's gradient.
  [[nodiscard]] AttentionTensors<T const> attention(int block,
                                                    state::HeldLayer<T> const& held) const {
    return view(state::attention_layer(block), held).attention();
  }
  [[nodiscard]] AttentionTensors<T> attention(int block, std::span<T> gradient) const {
    return view(state::attention_layer(block), gradient).attention();
  }
  [[nodiscard]] MlpTensors<T const> mlp(int block, state::HeldLayer<T> const& held) const {
    return view(state::mlp_layer(block), held).mlp();
  }
  [[nodiscard]] MlpTensors<T> mlp(int block, std::span<T> gradient) const {
    return view(state::mlp_layer(block), gradient).mlp();
  }
  [[nodiscard]] HeadTensors<T const> head(HeldHead<T> const& held) const {
    auto const* const embedding = held.embedding();
    return view(head_layer(), held.layer())
        .head(embedding ? view(embedding_layer, *embedding).embedding().table
                        : std::span<T const>{});
  }
  /// `tied_gradient`: the embedding's gradient, to which the table's is written if the head is
  /// tied.
  [[nodiscard]] HeadTensors<T> head(std::span<T> gradient, std::span<T> tied_gradient) const {
    return view(head_layer(), gradient)
        .head(tied_ ? embedding(tied_gradient).table : std::span<T>{});
  }
  [[nodiscard]] EmbeddingTensors<T> embedding(std::span<T> gradient) const {
    return view(embedding_layer, gradient).embedding();
  }

  /// Rows of micro-batch g that the head reads and writes.
  [[nodiscard]] HeadRows head_rows(int g) const {
    return {.loss = rows_of(memory_.head_rows.loss, g),
            .targets = rows_of(memory_.head_rows.targets, g)};
  }

  /// Documents of micro-batch g.
  [[nodiscard]] kernels::AttentionDocuments documents(int g) const {
    return {rows_of(memory_.documents.begins, g), rows_of(memory_.documents.ends, g)};
  }

  /// Copies the ids of a micro-batch to the device, with the places of its documents. The batch may
  /// be gone when they return.
  /// Errors: PreconditionError: another shape than the run's, an id outside the vocabulary, places
  ///         that are none of documents.
  void upload_tokens(data::TokenBatch const& batch, int g);
  void upload_targets(data::TokenBatch const& batch, int g);
  /// Writes the embedding of the tokens to x (B, T, C).
  void embed(state::HeldLayer<T> const& held, int g, std::span<T> x) const;
  /// Computes the embedding's gradient. If the head is tied, its part is there and is added to.
  void backward_embedding(int g, std::span<T> dx, std::span<T> gradient) const;
  /// Gives a layer's gradient, with zeros as padding, to the sink. Returns what GradientSink::add
  /// does.
  [[nodiscard]] std::shared_ptr<device::Event> send(int layer, std::span<T> gradient,
                                                    state::GradientSink<T>& sink) const;
  /// Returns the mean losses of the first `count` micro-batches. Waits for the stream.
  [[nodiscard]] std::vector<double> losses(int count);

 private:
  /// Micro-batch g's part of an array of all micro-batches, which may be empty.
  template <class Element>
  [[nodiscard]] std::span<Element> rows_of(std::span<Element> all, int g) const {
    auto const rows = static_cast<std::size_t>(dims_.rows());
    return all.empty() ? all : all.subspan(static_cast<std::size_t>(g) * rows, rows);
  }
  /// The positions of one sequence, if the family has any.
  template <class Element>
  [[nodiscard]] std::span<Element> first_positions(std::span<Element> positions) const {
    return positions.first(std::min(positions.size(), static_cast<std::size_t>(dims_.T * dims_.C)));
  }
  [[nodiscard]] state::LayerLayout const& layout(int layer) const {
    return layers_[static_cast<std::size_t>(layer)];
  }
  template <class Element>
  [[nodiscard]] LayerView<Element> view(int layer, std::span<Element> memory) const {
    return {dims_, layout(layer), memory};
  }
  [[nodiscard]] LayerView<T const> view(int layer, state::HeldLayer<T> const& held) const {
    return view(layer, held.tensor(0, layout(layer).elements));
  }
  /// Copies ids, which run from `least` to the end of the vocabulary, to the device by way of
  /// `staged`.
  void upload(std::vector<std::int32_t> const& ids, std::int32_t least,
              std::vector<std::int32_t>& staged, std::span<std::int32_t> target);

  void upload(std::vector<std::int32_t> const& staged, std::span<std::int32_t> target);
  void upload_documents(data::TokenBatch const& batch, int g);

  /// DocumentRows of one micro-batch on the host.
  struct HostDocuments {
    std::vector<std::int32_t> begins, ends, position_of;
  };

  Dims dims_;
  bool tied_;
  BlockRing ring_;
  std::vector<state::LayerLayout> layers_;
  device::Stream& stream_;
  Workspace<T> memory_;
  std::vector<std::vector<std::int32_t>> tokens_;   ///< (B, T) on the host, for each micro-batch
  std::vector<std::vector<std::int32_t>> targets_;  ///< (B, T) on the host, for each micro-batch
  std::vector<HostDocuments> documents_;            ///< documents of each micro-batch
  std::vector<double> losses_;                      ///< (B, T) on the host, for each micro-batch
  Block<T> block_;
};

}  // namespace offstage::model
