#include "state/model_shape.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/chunk.hpp"
#include "base/error.hpp"
#include "base/units.hpp"

namespace offstage::state {
namespace {

constexpr double initial_deviation = 0.02;
constexpr std::int64_t max_layers = 1'000'000;
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

/// Each product stays within the limit, and so do later sums of a few of them within 64 bits.
void require_sizes_in_limits(ModelShape const& shape) {
  if (shape.layers > max_layers) {
    throw UsageError{fmt::format("model.layers={} must be at most {}", shape.layers, max_layers)};
  }
  require_product("model.hidden", shape.hidden, "model.hidden", shape.hidden);
  require_product("model.ffn-hidden", shape.ffn_hidden, "model.hidden", shape.hidden);
  require_product("model.vocab", shape.vocab, "model.hidden", shape.hidden);
}

void require_parameters_in_limit(ModelShape const& shape) {
  std::int64_t const attention = 2 * (shape.hidden + shape.kv_heads * shape.head_dim());
  std::int64_t const block = shape.hidden * (attention + 3 * shape.ffn_hidden + 2);
  std::int64_t const ends = shape.hidden * (shape.vocab * (shape.tied_head ? 1 : 2) + 1);
  if (ends > max_parameters || block > (max_parameters - ends) / shape.layers) {
    throw UsageError{fmt::format(
        "model.layers={}, model.hidden={}, model.ffn-hidden={} and model.vocab={} make more than "
        "the limit of {} parameters (2^50); lower one of them",
        shape.layers, shape.hidden, shape.ffn_hidden, shape.vocab, max_parameters)};
  }
}

/// "4 or 8": the divisors of `whole` on both sides of a number that is none.
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

/// Lays tensors out one behind the other; the caller adds the decayed ones first.
class LayerBuilder {
 public:
  LayerBuilder(std::string name, std::int64_t& tensors) : tensors_{tensors} {
    layer_.name = std::move(name);
  }

  void matrix(std::string name, std::int64_t rows, std::int64_t columns, double deviation) {
    append(std::move(name), rows, columns, true, {Initial::Kind::normal, deviation});
    layer_.decayed_elements = layer_.elements;
  }
  void norm(std::string name, std::int64_t width) {
    append(std::move(name), width, 0, false, {Initial::Kind::ones, 0.0});
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

}  // namespace

void validate(ModelShape const& shape) {
  require_positive("model.layers", shape.layers);
  require_positive("model.hidden", shape.hidden);
  require_positive("model.heads", shape.heads);
  require_positive("model.kv-heads", shape.kv_heads);
  require_positive("model.ffn-hidden", shape.ffn_hidden);
  require_positive("model.vocab", shape.vocab);
  require_positive("model.max-sequence", shape.max_sequence);
  require_sizes_in_limits(shape);
  if (shape.hidden % shape.heads != 0) {
    throw UsageError{fmt::format("model.heads={} does not divide model.hidden={}; use {}",
                                 shape.heads, shape.hidden,
                                 nearest_divisors(shape.hidden, shape.heads))};
  }
  if (shape.head_dim() % 2 != 0) {
    throw UsageError{fmt::format(
        "model.heads={} leaves an odd head size of {}; model.hidden / model.heads must be even",
        shape.heads, shape.head_dim())};
  }
  if (shape.heads % shape.kv_heads != 0) {
    throw UsageError{fmt::format("model.kv-heads={} does not divide model.heads={}; use {}",
                                 shape.kv_heads, shape.heads,
                                 nearest_divisors(shape.heads, shape.kv_heads))};
  }
  require_parameters_in_limit(shape);
  if (!(shape.rope_theta > 0.0)) {
    throw UsageError{fmt::format("model.rope-theta={} must be above 0", shape.rope_theta)};
  }
  if (!(shape.norm_epsilon > 0.0)) {
    throw UsageError{fmt::format("model.norm-eps={} must be above 0", shape.norm_epsilon)};
  }
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
  std::int64_t const width = shape.hidden;
  std::int64_t const query_width = shape.heads * shape.head_dim();
  std::int64_t const key_width = shape.kv_heads * shape.head_dim();
  // The two products that end in the residual sum start smaller the deeper the model is (GPT-2).
  double const residual = initial_deviation / std::sqrt(2.0 * static_cast<double>(shape.layers));

  std::int64_t tensors = 0;
  std::vector<LayerLayout> layers;
  LayerBuilder embedding{"embedding", tensors};
  embedding.matrix("model.embed_tokens.weight", shape.vocab, width, initial_deviation);
  layers.push_back(embedding.take());

  for (std::int64_t i = 0; i < shape.layers; ++i) {
    LayerBuilder block{fmt::format("block {}", i), tensors};
    auto const name = [i](char const* part) {
      return fmt::format("model.layers.{}.{}.weight", i, part);
    };
    block.matrix(name("self_attn.q_proj"), query_width, width, initial_deviation);
    block.matrix(name("self_attn.k_proj"), key_width, width, initial_deviation);
    block.matrix(name("self_attn.v_proj"), key_width, width, initial_deviation);
    block.matrix(name("self_attn.o_proj"), width, query_width, residual);
    block.matrix(name("mlp.gate_proj"), shape.ffn_hidden, width, initial_deviation);
    block.matrix(name("mlp.up_proj"), shape.ffn_hidden, width, initial_deviation);
    block.matrix(name("mlp.down_proj"), width, shape.ffn_hidden, residual);
    block.norm(name("input_layernorm"), width);
    block.norm(name("post_attention_layernorm"), width);
    layers.push_back(block.take());
  }

  LayerBuilder head{"head", tensors};
  if (!shape.tied_head) {
    head.matrix("lm_head.weight", shape.vocab, width, initial_deviation);
  }
  head.norm("model.norm.weight", width);
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
