#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

namespace offstage::state {

enum class Family {
  llama,  ///< RMSNorm, RoPE, SwiGLU, no biases but those of Qwen2; weights stored (out, in)
  gpt2,   ///< LayerNorm, learned positions, GELU, biases everywhere; weights stored (in, out)
};
[[nodiscard]] char const* name_of(Family family);

/// How RoPE's frequencies are stretched beyond the length that a model was first trained on.
enum class RopeScaling {
  none,
  linear,  ///< all alike
  llama3,  ///< by wavelength, as LLaMA 3.1 does
  yarn,    ///< by number of the frequency, and with larger scores (Peng et al., arXiv:2309.00071)
};
[[nodiscard]] char const* name_of(RopeScaling scaling);

/// rope_attention_factor that YaRN has unless a model says another: 0.1 ln(factor) + 1.
[[nodiscard]] double yarn_attention_factor(double factor);

/// RMSNorm of queries and keys, before RoPE turns them.
enum class QkNorm {
  none,
  head,  ///< each head by itself, with one weight per element of a head (Qwen3)
  all,   ///< all heads of a row together, with a weight for each of their elements (OLMo 2)
};
[[nodiscard]] char const* name_of(QkNorm norm);

/// The `model.*` keys, which define a model. Fields from head_size to rope_attention_factor are
/// of llama alone and have their defaults in other families.
struct ModelShape {
  Family family = Family::llama;
  std::int64_t layers{};        ///< transformer blocks
  std::int64_t hidden{};        ///< C
  std::int64_t heads{};         ///< H; divides hidden where head_size is 0
  std::int64_t kv_heads{};      ///< K, divides heads; H in gpt2
  std::int64_t ffn_hidden{};    ///< F
  std::int64_t vocab{};         ///< V
  std::int64_t max_sequence{};  ///< longest T; P, the rows of the table of positions, in gpt2
  bool tied_head = false;
  std::int64_t head_size = 0;  ///< D where it is not hidden / heads; 0 where it is
  bool qkv_bias = false;  ///< llama with biases on q, k and v (Qwen2); false in gpt2, which has all
  QkNorm qk_norm = QkNorm::none;
  /// Norms of what attention and the MLP add to the residual stream (OLMo 2), instead of what they
  /// take from it.
  bool norms_after = false;
  std::int64_t window = 0;  ///< keys that a query sees, its own the last; 0: all before it
  double rope_theta = 10'000.0;
  RopeScaling rope_scaling = RopeScaling::none;
  double rope_factor = 8.0;                    ///< of every scaling
  double rope_low_frequency = 1.0;             ///< llama3: low_freq_factor; yarn: beta_slow
  double rope_high_frequency = 4.0;            ///< llama3: high_freq_factor; yarn: beta_fast
  std::int64_t rope_original_sequence = 8192;  ///< of both: original_max_position_embeddings
  double rope_attention_factor = 1.0;          ///< yarn: of cosines and sines
  double norm_epsilon = 1e-5;

  /// D
  [[nodiscard]] std::int64_t head_dim() const {
    return head_size > 0 ? head_size : hidden / std::max<std::int64_t>(heads, 1);
  }
  /// Sets head_size, when hidden and heads are set. 0: hidden / heads.
  void set_head_dim(std::int64_t size) {
    bool const derived = heads > 0 && hidden % heads == 0 && size == hidden / heads;
    head_size = derived ? 0 : size;
  }
  friend bool operator==(ModelShape const&, ModelShape const&) = default;
};

/// Errors: UsageError naming the `model.` key, its value and what would be right: sizes at least 1,
/// heads divides hidden unless there is a head-dim, head sizes are even, kv-heads divides heads; at
/// most 10^6 layers and 2^50 parameters, so that no count of elements or bytes overflows; keys that
/// do not apply to the family at their defaults; no combination that no model of transformers has.
void validate(ModelShape const& shape);

/// "model.hidden" and "256".
struct ModelKey {
  std::string key;
  std::string value;
};
/// All keys of a shape with their values as a configuration writes them, in a fixed order.
[[nodiscard]] std::vector<ModelKey> keys_of(ModelShape const& shape);

/// True if parameters of one are parameters of the other: all fields are equal, but for
/// max_sequence where no parameter depends on it.
[[nodiscard]] bool same_parameters(ModelShape const& a, ModelShape const& b);

/// How a tensor starts.
struct Initial {
  enum class Kind { normal, ones, zeros } kind;
  double standard_deviation{};  ///< of a normal
};

/// One parameter tensor inside its layer.
struct TensorLayout {
  std::string name;     ///< as in Hugging Face files: "model.layers.3.mlp.up_proj.weight"
  std::int64_t rows{};  ///< shape as there, too; a vector has rows = its length and columns = 0
  std::int64_t columns{};
  std::int64_t offset{};  ///< of its first element in the layer
  bool decayed{};         ///< 2-D tensors are, norms and biases are not
  Initial initial;
  std::int64_t index{};  ///< counts the model's tensors; names its random stream

  [[nodiscard]] std::int64_t elements() const { return columns == 0 ? rows : rows * columns; }
};

/// The unit that is gathered before use, and whose gradient is sent: the decayed tensors first,
/// without gaps, then the others.
struct LayerLayout {
  std::string name;         ///< "embedding", "attention of block 3", "MLP of block 3", "head"
  std::int64_t block = -1;  ///< that it is a layer of; below 0: of none
  std::vector<TensorLayout> tensors;
  std::int64_t decayed_elements{};
  std::int64_t elements{};

  [[nodiscard]] std::int64_t chunks() const;           ///< of 4096 elements, the last one padded
  [[nodiscard]] std::int64_t padded_elements() const;  ///< chunks() * 4096
  /// Errors: PreconditionError if there is no tensor whose name ends with `suffix`.
  [[nodiscard]] TensorLayout const& tensor(std::string const& suffix) const;
};

/// Layers of a block: attention with its norm, and the MLP with its norm.
constexpr int layers_per_block = 2;
[[nodiscard]] constexpr int attention_layer(int block) {
  return 1 + layers_per_block * block;
}
[[nodiscard]] constexpr int mlp_layer(int block) {
  return attention_layer(block) + 1;
}

/// All layers in forward order: the embedding (with gpt2's positions); each block's two (q, k, v
/// and gate, up stand side by side, weights and biases, so that one product computes them
/// together); the final norm with the head unless it is tied.
[[nodiscard]] std::vector<LayerLayout> layers_of(ModelShape const& shape);

/// Parameters of the model, padding left out.
[[nodiscard]] std::int64_t count_parameters(std::vector<LayerLayout> const& layers);

}  // namespace offstage::state
