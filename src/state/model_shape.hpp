#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace offstage::state {

enum class Family { llama };

/// What defines a model: the `model.*` keys. Two runs are of one model if these are equal, max_sequence
/// apart: no parameter depends on it.
struct ModelShape {
  Family family = Family::llama;
  std::int64_t layers{};        ///< transformer blocks
  std::int64_t hidden{};        ///< C
  std::int64_t heads{};         ///< H, divides hidden
  std::int64_t kv_heads{};      ///< K, divides heads
  std::int64_t ffn_hidden{};    ///< F
  std::int64_t vocab{};         ///< V
  std::int64_t max_sequence{};  ///< longest T
  bool tied_head = false;
  double rope_theta = 10'000.0;
  double norm_epsilon = 1e-5;

  [[nodiscard]] std::int64_t head_dim() const { return hidden / heads; }
  friend bool operator==(ModelShape const&, ModelShape const&) = default;
};

/// Errors: UsageError naming the `model.` key, its value and what would be right: sizes at least 1,
/// heads divides hidden into an even head size, kv-heads divides heads; at most 10^6 layers and 2^50
/// parameters, so that no count of elements or bytes overflows.
void validate(ModelShape const& shape);

/// How a tensor starts.
struct Initial {
  enum class Kind { normal, ones } kind;
  double standard_deviation{};  ///< of a normal
};

/// One parameter tensor inside its layer.
struct TensorLayout {
  std::string name;     ///< as in Hugging Face files: "model.layers.3.mlp.up_proj.weight"
  std::int64_t rows{};  ///< a vector has rows = its length and columns = 0
  std::int64_t columns{};
  std::int64_t offset{};  ///< of its first element in the layer
  bool decayed{};         ///< 2-D tensors are, norms are not
  Initial initial;
  std::int64_t index{};  ///< counts the model's tensors; names its random stream

  [[nodiscard]] std::int64_t elements() const { return columns == 0 ? rows : rows * columns; }
};

/// The unit that is gathered before use: the decayed tensors first, without gaps, then the others.
struct LayerLayout {
  std::string name;  ///< "embedding", "block 3", "head"
  std::vector<TensorLayout> tensors;
  std::int64_t decayed_elements{};
  std::int64_t elements{};

  [[nodiscard]] std::int64_t chunks() const;           ///< of 4096 elements, the last one padded
  [[nodiscard]] std::int64_t padded_elements() const;  ///< chunks() * 4096
  /// Errors: PreconditionError if there is no tensor whose name ends with `suffix`.
  [[nodiscard]] TensorLayout const& tensor(std::string const& suffix) const;
};

/// All layers in forward order: the embedding; each block (q, k, v and gate, up stand side by side,
/// so that one product computes them together); the final norm with the head unless it is tied.
[[nodiscard]] std::vector<LayerLayout> layers_of(ModelShape const& shape);

/// Parameters of the model, padding left out.
[[nodiscard]] std::int64_t count_parameters(std::vector<LayerLayout> const& layers);

}  // namespace offstage::state
