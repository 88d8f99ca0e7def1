#include "state/model_shape.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "base/chunk.hpp"
#include "base/error.hpp"
#include "base/units.hpp"

namespace offstage::state {
namespace {

constexpr double initial_deviation = 0.02;
constexpr std::int64_t max_layers = 1'000'000;
constexpr std::int64_t max_vocab = std::numeric_limits<std::int32_t>::max();
constexpr std::int64_t max_parameters = std::int64_t{1} << 50;

void require_positive(char const* key, std::int64_t value) {
  if (value < 1) {
    throw UsageError{fmt::format("{}={} must be at least 1", key, value)};
  }
}

void require_product(char const* first_key, std::int64_t first, char const* second_key,
                     std::int64_t second) {
  if (first > max_parameters / second) {
    throw UsageError{fmt::format("{}={} times {}={} is more than the limit of {} parameters (2^50)",
                                 first_key, first, second_key, second, max_parameters)};
  }
}

/// Checks that each product stays within the limit, so that later sums of a few of them stay within
/// 64 bits.
void require_sizes_in_limits(ModelShape const& shape) {
  if (shape.layers > max_layers) {
    throw UsageError{fmt::format("model.layers={} must be at most {}", shape.layers, max_layers)};
  }
  require_product("model.hidden", shape.hidden, "model.hidden", shape.hidden);
  if (shape.head_size > 0) {
    require_product("model.heads", shape.heads, "model.head-dim", shape.head_size);
    std::int64_t const width = shape.heads * shape.head_size;
    require_product("model.heads times model.head-dim", width, "model.hidden", shape.hidden);
  }
  require_product("model.ffn-hidden", shape.ffn_hidden, "model.hidden", shape.hidden);
  require_product("model.vocab", shape.vocab, "model.hidden", shape.hidden);
  require_product("model.max-sequence", shape.max_sequence, "model.hidden", shape.hidden);
  if (shape.vocab > max_vocab) {
    throw UsageError{fmt::format("model.vocab={} must be at most {}, as a token has 32 bits",
                                 shape.vocab, max_vocab)};
  }
}

void require_parameters_in_limit(ModelShape const& shape) {
  ModelShape one_block = shape;
  one_block.layers = 1;
  auto const layers = layers_of(one_block);
  std::int64_t const block = layers[attention_layer(0)].elements + layers[mlp_layer(0)].elements;
  std::int64_t const ends = layers.front().elements + layers.back().elements;
  if (ends > max_parameters || block > (max_parameters - ends) / shape.layers) {
    throw UsageError{fmt::format(
        "model.layers={}, model.hidden={}, model.ffn-hidden={} and model.vocab={} make more than "
        "the limit of {} parameters (2^50); lower one of them",
        shape.layers, shape.hidden, shape.ffn_hidden, shape.vocab, max_parameters)};
  }
}

/// The divisors of `whole` on both sides of a number that is none, as "4 or 8".
std::string nearest_divisors(std::int64_t whole, std::int64_t number) {
  std::int64_t below = std::min(number, whole);
  while (whole % below != 0) {
    --below;
  }
  std::int64_t above = number;
  while (above < whole && whole % above != 0) {
    ++above;
  }
  return above <= whole && whole % above == 0 ? fmt::format("{} or {}", below, above)
                                              : fmt::format("{}", below);
}

/// Values that make the size of a head even, as "model.hidden=56 or 64, or model.heads=3 or 5".
std::string even_heads(std::int64_t hidden, std::int64_t heads) {
  std::int64_t const step = 2 * heads;
  std::int64_t const below = hidden / step * step;
  auto const wider =
      below == 0 ? fmt::format("{}", step) : fmt::format("{} or {}", below, below + step);
  return hidden % 2 != 0 ? fmt::format("model.hidden={}", wider)
                         : fmt::format("model.hidden={}, or model.heads={}", wider,
                                       nearest_divisors(hidden / 2, heads));
}

/// Lays tensors out one behind the other. The caller adds the decayed ones first.
class LayerBuilder {
 public:
  LayerBuilder(std::string name, std::int64_t& tensors, std::int64_t block = -1)
      : tensors_{tensors} {
    layer_.name = std::move(name);
    layer_.block = block;
  }

  void matrix(std::string name, std::int64_t rows, std::int64_t columns, double deviation) {
    append(std::move(name), rows, columns, true, {Initial::Kind::normal, deviation});
    layer_.decayed_elements = layer_.elements;
  }
  void norm(std::string name, std::int64_t width) {
    append(std::move(name), width, 0, false, {Initial::Kind::ones, 0.0});
  }
  void bias(std::string name, std::int64_t width) {
    append(std::move(name), width, 0, false, {Initial::Kind::zeros, 0.0});
  }
  [[nodiscard]] LayerLayout take() { return std::move(layer_); }

 private:
  void append(std::string name, std::int64_t rows, std::int64_t columns, bool decayed,
              Initial initial) {
    layer_.tensors.push_back({.name = std::move(name),
                              .rows = rows,
                              .columns = columns,
                              .offset = layer_.elements,
                              .decayed = decayed,
                              .initial = initial,
                              .index = tensors_++});
    layer_.elements += layer_.tensors.back().elements();
  }

  LayerLayout layer_;
  std::int64_t& tensors_;
};

/// Standard deviation of the weights that end in the residual sum: the deeper the model, the
/// smaller it is (GPT-2).
double residual_deviation(ModelShape const& shape) {
  return initial_deviation / std::sqrt(2.0 * static_cast<double>(shape.layers));
}

/// The layers of a block, whose tensors are counted together: matrices first.
struct BlockBuilder {
  BlockBuilder(std::int64_t block, std::int64_t& tensors)
      : attention{fmt::format("attention of block {}", block), tensors, block},
        mlp{fmt::format("MLP of block {}", block), tensors, block} {}
  void move_to(std::vector<LayerLayout>& layers) {
    layers.push_back(attention.take());
    layers.push_back(mlp.take());
  }

  LayerBuilder attention, mlp;
};

BlockBuilder llama_block(ModelShape const& shape, std::int64_t i, std::int64_t& tensors) {
  std::int64_t const width = shape.hidden;
  std::int64_t const query_width = shape.heads * shape.head_dim();
  std::int64_t const key_width = shape.kv_heads * shape.head_dim();
  double const residual = residual_deviation(shape);
  BlockBuilder block{i, tensors};
  auto& [attention, mlp] = block;
  auto const name = [i](char const* part) { return fmt::format("model.layers.{}.{}", i, part); };
  attention.matrix(name("self_attn.q_proj.weight"), query_width, width, initial_deviation);
  attention.matrix(name("self_attn.k_proj.weight"), key_width, width, initial_deviation);
  attention.matrix(name("self_attn.v_proj.weight"), key_width, width, initial_deviation);
  attention.matrix(name("self_attn.o_proj.weight"), width, query_width, residual);
  mlp.matrix(name("mlp.gate_proj.weight"), shape.ffn_hidden, width, initial_deviation);
  mlp.matrix(name("mlp.up_proj.weight"), shape.ffn_hidden, width, initial_deviation);
  mlp.matrix(name("mlp.down_proj.weight"), width, shape.ffn_hidden, residual);
  if (shape.norms_after) {
    attention.norm(name("post_attention_layernorm.weight"), width);
    mlp.norm(name("post_feedforward_layernorm.weight"), width);
  } else {
    attention.norm(name("input_layernorm.weight"), width);
    mlp.norm(name("post_attention_layernorm.weight"), width);
  }
  if (shape.qk_norm != QkNorm::none) {
    bool const by_head = shape.qk_norm == QkNorm::head;
    attention.norm(name("self_attn.q_norm.weight"), by_head ? shape.head_dim() : query_width);
    attention.norm(name("self_attn.k_norm.weight"), by_head ? shape.head_dim() : key_width);
  }
  if (shape.qkv_bias) {
    attention.bias(name("self_attn.q_proj.bias"), query_width);
    attention.bias(name("self_attn.k_proj.bias"), key_width);
    attention.bias(name("self_attn.v_proj.bias"), key_width);
  }
  return block;
}

BlockBuilder gpt2_block(ModelShape const& shape, std::int64_t i, std::int64_t& tensors) {
  std::int64_t const width = shape.hidden;
  double const residual = residual_deviation(shape);
  BlockBuilder block{i, tensors};
  auto& [attention, mlp] = block;
  auto const name = [i](char const* part) { return fmt::format("transformer.h.{}.{}", i, part); };
  attention.matrix(name("attn.c_attn.weight"), width, 3 * width, initial_deviation);
  attention.matrix(name("attn.c_proj.weight"), width, width, residual);
  mlp.matrix(name("mlp.c_fc.weight"), width, shape.ffn_hidden, initial_deviation);
  mlp.matrix(name("mlp.c_proj.weight"), shape.ffn_hidden, width, residual);
  attention.norm(name("ln_1.weight"), width);
  attention.bias(name("ln_1.bias"), width);
  attention.bias(name("attn.c_attn.bias"), 3 * width);
  attention.bias(name("attn.c_proj.bias"), width);
  mlp.norm(name("ln_2.weight"), width);
  mlp.bias(name("ln_2.bias"), width);
  mlp.bias(name("mlp.c_fc.bias"), shape.ffn_hidden);
  mlp.bias(name("mlp.c_proj.bias"), width);
  return block;
}

/// `choice` is the key and value that leaves `key` without a meaning.
void require_default(bool is_default, char const* key, std::string const& choice) {
  if (!is_default) {
    throw UsageError{fmt::format("{} does not apply to {}; leave it out", key, choice)};
  }
}

void require_positive(char const* key, double value) {
  if (!(value > 0.0) || std::isinf(value)) {
    throw UsageError{fmt::format("{}={} must be above 0 and finite", key, value)};
  }
}

/// Checks that the values that only llama3 and yarn have are at their defaults.
void require_default_bounds(ModelShape const& shape, std::string const& choice) {
  ModelShape const plain;
  require_default(shape.rope_low_frequency == plain.rope_low_frequency, "model.rope-low-frequency",
                  choice);
  require_default(shape.rope_high_frequency == plain.rope_high_frequency,
                  "model.rope-high-frequency", choice);
  require_default(shape.rope_original_sequence == plain.rope_original_sequence,
                  "model.rope-original-sequence", choice);
}

void require_default_scaling(ModelShape const& shape, std::string const& choice) {
  require_default(shape.rope_factor == ModelShape{}.rope_factor, "model.rope-factor", choice);
  require_default_bounds(shape, choice);
}

void require_bounds(ModelShape const& shape) {
  require_positive("model.rope-high-frequency", shape.rope_high_frequency);
  if (!(shape.rope_low_frequency > 0.0 && shape.rope_high_frequency > shape.rope_low_frequency)) {
    throw UsageError{
        fmt::format("model.rope-low-frequency={} must be above 0 and below "
                    "model.rope-high-frequency={}",
                    shape.rope_low_frequency, shape.rope_high_frequency)};
  }
  require_positive("model.rope-original-sequence", shape.rope_original_sequence);
}

void validate_rope(ModelShape const& shape) {
  require_positive("model.rope-theta", shape.rope_theta);
  auto const choice = fmt::format("model.rope-scaling={}", name_of(shape.rope_scaling));
  if (shape.rope_scaling != RopeScaling::yarn) {
    require_default(shape.rope_attention_factor == ModelShape{}.rope_attention_factor,
                    "model.rope-attention-factor", choice);
  }
  if (shape.rope_scaling == RopeScaling::none) {
    require_default_scaling(shape, choice);
    return;
  }
  require_positive("model.rope-factor", shape.rope_factor);
  if (shape.rope_factor < 1.0) {
    throw UsageError{fmt::format("model.rope-factor={} must be 1 or more", shape.rope_factor)};
  }
  if (shape.rope_scaling == RopeScaling::linear) {
    require_default_bounds(shape, choice);
    return;
  }
  require_bounds(shape);
  require_positive("model.rope-attention-factor", shape.rope_attention_factor);
  if (shape.rope_scaling == RopeScaling::yarn && shape.rope_theta <= 1.0) {
    throw UsageError{
        fmt::format("model.rope-theta={} must be above 1 for {}", shape.rope_theta, choice)};
  }
}

/// Checks that transformers has a name for the model, because others could not be exported.
void validate_variant(ModelShape const& shape) {
  if (shape.qkv_bias && shape.qk_norm != QkNorm::none) {
    throw UsageError{
        fmt::format("model.qkv-bias=true goes with model.qk-norm=none, not {}: models of "
                    "transformers that have both (Qwen3 and OLMo 2 with attention_bias=true) have "
                    "a bias on attention's output, too",
                    name_of(shape.qk_norm))};
  }
  if (shape.norms_after != (shape.qk_norm == QkNorm::all)) {
    throw UsageError{fmt::format(
        "model.norms-after={} with model.qk-norm={}: model.norms-after=true and model.qk-norm=all "
        "go together, as in OLMo 2",
        shape.norms_after, name_of(shape.qk_norm))};
  }
  if (shape.window < 0) {
    throw UsageError{
        fmt::format("model.window={} must be at least 1, or 0 for none", shape.window)};
  }
  if (shape.window > 0 && shape.norms_after) {
    throw UsageError{fmt::format(
        "model.window={} with model.norms-after=true: no model of transformers has both",
        shape.window)};
  }
}

/// Checks the heads of keys and values, and the width of a head.
void validate_heads(ModelShape const& shape) {
  if (shape.head_size < 0) {
    throw UsageError{fmt::format("model.head-dim={} must be at least 1", shape.head_size)};
  }
  if (shape.head_size == 0 && shape.hidden % shape.heads != 0) {
    throw UsageError{fmt::format("model.heads={} does not divide model.hidden={}; use {}",
                                 shape.heads, shape.hidden,
                                 nearest_divisors(shape.hidden, shape.heads))};
  }
  if (shape.head_size == 0 && shape.head_dim() % 2 != 0) {
    throw UsageError{fmt::format(
        "model.hidden={} with model.heads={} leaves an odd head size of {}; use {}", shape.hidden,
        shape.heads, shape.head_dim(), even_heads(shape.hidden, shape.heads))};
  }
  if (shape.head_dim() % 2 != 0) {
    throw UsageError{fmt::format("model.head-dim={} must be even", shape.head_size)};
  }
  if (shape.heads % shape.kv_heads != 0) {
    throw UsageError{fmt::format("model.kv-heads={} does not divide model.heads={}; use {}",
                                 shape.kv_heads, shape.heads,
                                 nearest_divisors(shape.heads, shape.kv_heads))};
  }
}

void validate_gpt2(ModelShape const& shape) {
  ModelShape const plain;
  if (shape.kv_heads != shape.heads) {
    throw UsageError{
        fmt::format("model.kv-heads={} must be model.heads={} in model.family=gpt2; leave it out",
                    shape.kv_heads, shape.heads)};
  }
  std::string const family = "model.family=gpt2";
  require_default(shape.head_size == plain.head_size, "model.head-dim", family);
  require_default(!shape.qkv_bias, "model.qkv-bias", family);
  require_default(shape.qk_norm == plain.qk_norm, "model.qk-norm", family);
  require_default(!shape.norms_after, "model.norms-after", family);
  require_default(shape.window == plain.window, "model.window", family);
  require_default(shape.rope_theta == plain.rope_theta, "model.rope-theta", family);
  require_default(shape.rope_scaling == plain.rope_scaling, "model.rope-scaling", family);
  require_default_scaling(shape, family);
  require_default(shape.rope_attention_factor == plain.rope_attention_factor,
                  "model.rope-attention-factor", family);
}

/// The shape with those fields of another on which no parameter depends.
ModelShape with_free_fields_of(ModelShape const& other, ModelShape shape) {
  if (shape.family != Family::gpt2) {
    shape.max_sequence = other.max_sequence;
  }
  return shape;
}

}  // namespace

char const* name_of(Family family) {
  return family == Family::gpt2 ? "gpt2" : "llama";
}

char const* name_of(RopeScaling scaling) {
  switch (scaling) {
    case RopeScaling::linear:
      return "linear";
    case RopeScaling::llama3:
      return "llama3";
    case RopeScaling::yarn:
      return "yarn";
    case RopeScaling::none:
      break;
  }
  return "none";
}

double yarn_attention_factor(double factor) {
  return factor > 1.0 ? 0.1 * std::log(factor) + 1.0 : 1.0;
}

char const* name_of(QkNorm norm) {
  switch (norm) {
    case QkNorm::head:
      return "head";
    case QkNorm::all:
      return "all";
    case QkNorm::none:
      break;
  }
  return "none";
}

std::vector<ModelKey> keys_of(ModelShape const& shape) {
  auto const text = [](auto const& value) { return fmt::format("{}", value); };
  return {{"model.family", name_of(shape.family)},
          {"model.layers", text(shape.layers)},
          {"model.hidden", text(shape.hidden)},
          {"model.heads", text(shape.heads)},
          {"model.head-dim", text(shape.head_dim())},
          {"model.kv-heads", text(shape.kv_heads)},
          {"model.ffn-hidden", text(shape.ffn_hidden)},
          {"model.vocab", text(shape.vocab)},
          {"model.max-sequence", text(shape.max_sequence)},
          {"model.tied-head", text(shape.tied_head)},
          {"model.qkv-bias", text(shape.qkv_bias)},
          {"model.qk-norm", name_of(shape.qk_norm)},
          {"model.norms-after", text(shape.norms_after)},
          {"model.window", text(shape.window)},
          {"model.rope-theta", text(shape.rope_theta)},
          {"model.rope-scaling", name_of(shape.rope_scaling)},
          {"model.rope-factor", text(shape.rope_factor)},
          {"model.rope-low-frequency", text(shape.rope_low_frequency)},
          {"model.rope-high-frequency", text(shape.rope_high_frequency)},
          {"model.rope-original-sequence", text(shape.rope_original_sequence)},
          {"model.rope-attention-factor", text(shape.rope_attention_factor)},
          {"model.norm-eps", text(shape.norm_epsilon)},
          {"model.exact-gelu", text(shape.exact_gelu)}};
}

bool same_parameters(ModelShape const& a, ModelShape const& b) {
  return with_free_fields_of(b, a) == b;
}

std::string differences(ModelShape const& a, std::string_view name_of_a, ModelShape const& b,
                        std::string_view name_of_b) {
  auto const of_a = keys_of(with_free_fields_of(b, a));
  auto const of_b = keys_of(b);
  std::vector<std::string> parts;
  for (std::size_t i = 0; i < of_a.size(); ++i) {
    if (of_a[i].value != of_b[i].value) {
      parts.push_back(fmt::format("{}: {} {}, {} {}", of_a[i].key, name_of_a, of_a[i].value,
                                  name_of_b, of_b[i].value));
    }
  }
  return fmt::format("{}", fmt::join(parts, "; "));
}

void validate(ModelShape const& shape) {
  require_positive("model.layers", shape.layers);
  require_positive("model.hidden", shape.hidden);
  require_positive("model.heads", shape.heads);
  require_positive("model.kv-heads", shape.kv_heads);
  require_positive("model.ffn-hidden", shape.ffn_hidden);
  require_positive("model.vocab", shape.vocab);
  require_positive("model.max-sequence", shape.max_sequence);
  require_sizes_in_limits(shape);
  validate_heads(shape);
  require_parameters_in_limit(shape);
  if (shape.family == Family::gpt2) {
    validate_gpt2(shape);
  } else {
    require_default(!shape.exact_gelu, "model.exact-gelu", "model.family=llama");
    validate_variant(shape);
    validate_rope(shape);
  }
  require_positive("model.norm-eps", shape.norm_epsilon);
}

std::int64_t LayerLayout::chunks() const {
  return ceil_div(elements, chunk_elements);
}
std::int64_t LayerLayout::padded_elements() const {
  return chunks() * chunk_elements;
}

TensorLayout const& LayerLayout::tensor(std::string const& suffix) const {
  for (TensorLayout const& candidate : tensors) {
    if (candidate.name.ends_with(suffix)) {
      return candidate;
    }
  }
  throw PreconditionError{fmt::format("layer '{}' has no tensor '{}'", name, suffix)};
}

std::vector<LayerLayout> layers_of(ModelShape const& shape) {
  bool const gpt2 = shape.family == Family::gpt2;
  std::int64_t tensors = 0;
  std::vector<LayerLayout> layers;
  LayerBuilder embedding{"embedding", tensors};
  if (gpt2) {
    embedding.matrix("transformer.wte.weight", shape.vocab, shape.hidden, initial_deviation);
    embedding.matrix("transformer.wpe.weight", shape.max_sequence, shape.hidden, initial_deviation);
  } else {
    embedding.matrix("model.embed_tokens.weight", shape.vocab, shape.hidden, initial_deviation);
  }
  layers.push_back(embedding.take());

  for (std::int64_t i = 0; i < shape.layers; ++i) {
    auto block = gpt2 ? gpt2_block(shape, i, tensors) : llama_block(shape, i, tensors);
    block.move_to(layers);
  }

  LayerBuilder head{"head", tensors};
  if (!shape.tied_head) {
    head.matrix("lm_head.weight", shape.vocab, shape.hidden, initial_deviation);
  }
  if (gpt2) {
    head.norm("transformer.ln_f.weight", shape.hidden);
    head.bias("transformer.ln_f.bias", shape.hidden);
  } else {
    head.norm("model.norm.weight", shape.hidden);
  }
  layers.push_back(head.take());
  return layers;
}

std::int64_t count_parameters(std::vector<LayerLayout> const& layers) {
  std::int64_t count = 0;
  for (LayerLayout const& layer : layers) {
    count += layer.elements;
  }
  return count;
}

}  // namespace offstage::state
