#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace offstage::state {

enum class Family {
  llama,  ///< RMSNorm, RoPE, SwiGLU, no biases but those of Qwen2; weights stored (out, in)
  gpt2,   ///< LayerNorm, learned positions, GELU, biases everywhere; weights stored (in, out)
};
[[nodiscard]] char const* name_of(Family family);

/// The way in which RoPE's frequencies are stretched beyond the length on which a model was first
/// trained.
enum class RopeScaling {
  none,
  linear,  ///< all frequencies alike
  llama3,  ///< by wavelength, as LLaMA 3.1 does
  yarn,    ///< by the frequency's number, and with larger scores (Peng et al., arXiv:2309.00071)
};
[[nodiscard]] char const* name_of(RopeScaling scaling);

/// The rope_attention_factor of YaRN unless a model names another: 0.1 ln(factor) + 1.
[[nodiscard]] double yarn_attention_factor(double factor);

/// RMSNorm of queries and keys, before RoPE turns them.
enum class QkNorm {
  none,
  head,  ///< each head by itself, with one weight per element of a head (Qwen3)
  all,   ///< all heads of a row together, with a weight for each of their elements (OLMo 2)
};
[[nodiscard]] char const* name_of(QkNorm norm);

/// The `model.*` keys, which define a model. Fields from head_size to rope_attention_factor are
/// llama's alone, and have their defaults in other families.
struct ModelShape {
  Family family = Family::llama;
  std::int64_t layers{};        ///< transformer blocks
  std::int64_t hidden{};        ///< C
  std::int64_t heads{};         ///< H; divides hidden if head_size is 0
  std::int64_t kv_heads{};      ///< K, divides heads; H in gpt2
  std::int64_t ffn_hidden{};    ///< F
  std::int64_t vocab{};         ///< V
  std::int64_t max_sequence{};  ///< longest T; P, the rows of the table of positions, in gpt2
  bool tied_head = false;
  std::int64_t head_size = 0;  ///< D if it is not hidden / heads; else 0
  /// Llama with biases on q, k and v (Qwen2); false in gpt2, which has all biases.
  bool qkv_bias = false;
  QkNorm qk_norm = QkNorm::none;
  /// Norms are of the additions of attention and the MLP to the residual stream (OLMo 2), instead
  /// of their inputs.
  bool norms_after = false;
  /// Keys that a query sees, the last of which is its own; 0: it sees its own and all before.
  std::int64_t window = 0;
  double rope_theta = 10'000.0;
  RopeScaling rope_scaling = RopeScaling::none;
  double rope_factor = 8.0;          ///< factor of every scaling
  double rope_low_frequency = 1.0;   ///< llama3: low_freq_factor; yarn: beta_slow
  double rope_high_frequency = 4.0;  ///< llama3: high_freq_factor; yarn: beta_fast
  /// Llama3 and yarn: original_max_position_embeddings.
  std::int64_t rope_original_sequence = 8192;
  double rope_attention_factor = 1.0;  ///< yarn: factor of cosines and sines
  double norm_epsilon = 1e-5;
  /// Gpt2 with GELU itself (Cerebras-GPT) instead of its approximation by tanh; false in llama.
  bool exact_gelu = false;

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

/// Checks a shape. Sizes are at least 1, heads divides hidden unless there is a head-dim, head
/// sizes are even, and kv-heads divides heads. There are at most 10^6 layers and 2^50 parameters,
/// so that no count of elements or bytes overflows, and at most 2^31 - 1 tokens, so that each is a
/// std::int32_t. Keys that do not apply to the family are at their defaults, and a model of
/// transformers has the combination.
/// Errors: UsageError naming the `model.` key, its value and what would be right.
void validate(ModelShape const& shape);

/// A key and its value, such as "model.hidden" and "256".
struct ModelKey {
  std::string key;
  std::string value;
};
/// All keys of a shape with their values as a configuration writes them, in a fixed order.
[[nodiscard]] std::vector<ModelKey> keys_of(ModelShape const& shape);

/// Returns true if the parameters of one are parameters of the other: all fields are equal, except
/// for max_sequence if no parameter depends on it.
[[nodiscard]] bool same_parameters(ModelShape const& a, ModelShape const& b);

/// The keys that keep parameters of one from being parameters of the other, with a name for each
/// model: "model.hidden: checkpoint 256, run 512; model.heads: ...". Empty if same_parameters.
[[nodiscard]] std::string differences(ModelShape const& a, std::string_view name_of_a,
                                      ModelShape const& b, std::string_view name_of_b);

/// The first values of a tensor.
struct Initial {
  enum class Kind { normal, ones, zeros } kind;
  double standard_deviation{};  ///< standard deviation of `normal`
};

/// One parameter tensor inside its layer.
struct TensorLayout {
  std::string name;     ///< as in Hugging Face files: "model.layers.3.mlp.up_proj.weight"
  std::int64_t rows{};  ///< shape as in those files; a vector has rows = its length and columns = 0
  std::int64_t columns{};
  std::int64_t offset{};  ///< first element in the layer
  bool decayed{};         ///< weight decay applies: to 2-D tensors, not to norms and biases
  Initial initial;
  std::int64_t index{};  ///< the tensor's number in the model; its random stream depends on it

  [[nodiscard]] std::int64_t elements() const { return columns == 0 ? rows : rows * columns; }
};

/// The unit that is gathered before use, and whose gradient is sent. The decayed tensors come
/// first, without gaps, then the others.
struct LayerLayout {
  std::string name;         ///< "embedding", "attention of block 3", "MLP of block 3", "head"
  std::int64_t block = -1;  ///< the layer's block; below 0: none
  std::vector<TensorLayout> tensors;
  std::int64_t decayed_elements{};
  std::int64_t elements{};

  /// Number of chunks of 4096 elements, the last one padded.
  [[nodiscard]] std::int64_t chunks() const;
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

/// All layers in forward order: the embedding (with gpt2's positions); each block's two layers; the
/// final norm, with the head unless it is tied. q, k, v and gate, up are side by side, weights and
/// biases, so that one product computes them together.
[[nodiscard]] std::vector<LayerLayout> layers_of(ModelShape const& shape);

/// Number of the model's parameters, without padding.
[[nodiscard]] std::int64_t count_parameters(std::vector<LayerLayout> const& layers);

}  // namespace offstage::state
