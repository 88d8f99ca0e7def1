#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "base/dtype.hpp"
#include "base/error.hpp"
#include "base/random.hpp"
#include "device/device.hpp"
#include "model/transformer.hpp"
#include "state/exchange.hpp"
#include "state/model_shape.hpp"

namespace offstage::model::test {

/// Small, with every feature: grouped queries, two blocks, odd sizes.
inline state::ModelShape tiny_shape(bool tied_head) {
  return {.layers = 2,
          .hidden = 16,
          .heads = 4,
          .kv_heads = 2,
          .ffn_hidden = 22,
          .vocab = 13,
          .max_sequence = 16,
          .tied_head = tied_head};
}

/// With biases on q, k and v, as Qwen2 has them.
inline state::ModelShape tiny_qwen2() {
  auto shape = tiny_shape(true);
  shape.qkv_bias = true;
  return shape;
}

/// With norms of q and k, and heads that are no parts of the hidden size, as Qwen3 has them.
inline state::ModelShape tiny_qwen3() {
  auto shape = tiny_shape(true);
  shape.set_head_dim(12);
  shape.qk_norm = state::QkNorm::head;
  return shape;
}

/// With scaled RoPE: of its two frequencies the first stays and the second is blended.
inline state::ModelShape tiny_llama3() {
  auto shape = tiny_shape(false);
  shape.rope_theta = 100.0;
  shape.rope_scaling = state::RopeScaling::llama3;
  shape.rope_original_sequence = 126;  // 20 and 2 turns
  return shape;
}

/// With a window of less than a sequence, as Mistral has it, and linear scaling of RoPE.
inline state::ModelShape tiny_mistral() {
  auto shape = tiny_shape(false);
  shape.window = 3;
  shape.rope_scaling = state::RopeScaling::linear;
  shape.rope_factor = 2.0;
  return shape;
}

/// Heads of 6 have three frequencies, which YaRN keeps, stretches by half and stretches: see
/// RopeTables in the tests of kernels for the bounds of its ramp.
inline state::ModelShape tiny_yarn() {
  auto shape = tiny_shape(false);
  shape.set_head_dim(6);
  shape.rope_theta = 1000.0;
  shape.rope_scaling = state::RopeScaling::yarn;
  shape.rope_original_sequence = 126;  // 20 turns of the first
  shape.rope_low_frequency = 0.5;
  shape.rope_high_frequency = 4.0;
  shape.rope_attention_factor = 0.75;
  return shape;
}

/// With norms of what layers add, and of all of q and all of k.
inline state::ModelShape tiny_olmo2() {
  auto shape = tiny_shape(false);
  shape.qk_norm = state::QkNorm::all;
  shape.norms_after = true;
  return shape;
}

inline state::ModelShape tiny_gpt2(bool tied_head) {
  auto shape = tiny_shape(tied_head);
  shape.family = state::Family::gpt2;
  shape.kv_heads = shape.heads;
  return shape;
}

/// GPT-2 with GELU itself, as in Cerebras-GPT.
inline state::ModelShape tiny_exact_gpt2() {
  auto shape = tiny_gpt2(true);
  shape.exact_gelu = true;
  return shape;
}

/// What becomes of the activations: all as one fate of products says.
inline std::vector<BlockFates> all_blocks(state::ModelShape const& shape, BlockFates const& fates) {
  return {static_cast<std::size_t>(shape.layers), fates};
}

struct NamedShape {
  std::string name;
  state::ModelShape shape;
};
inline std::vector<NamedShape> all_tiny_shapes() {
  return {
      {"Llama", tiny_shape(false)},  {"LlamaTied", tiny_shape(true)}, {"Qwen2", tiny_qwen2()},
      {"Qwen3", tiny_qwen3()},       {"Llama3", tiny_llama3()},       {"Mistral", tiny_mistral()},
      {"Yarn", tiny_yarn()},         {"Olmo2", tiny_olmo2()},         {"Gpt2", tiny_gpt2(false)},
      {"Gpt2Tied", tiny_gpt2(true)}, {"ExactGpt2", tiny_exact_gpt2()}};
}
/// Names the instances of tests that run over all of them.
inline std::string name_of(::testing::TestParamInfo<NamedShape> const& info) {
  return info.param.name;
}

inline data::TokenBatch random_batch(std::int64_t batch, std::int64_t sequence, std::int64_t vocab,
                                     std::uint64_t seed) {
  data::TokenBatch result{.batch = batch, .sequence = sequence, .tokens = {}, .targets = {}};
  for (std::int64_t i = 0; i < batch * sequence; ++i) {
    auto const words = philox(seed, 7, static_cast<std::uint64_t>(i));
    auto const id = [&](std::uint32_t word) {
      return static_cast<std::int32_t>(word % static_cast<std::uint32_t>(vocab));
    };
    result.tokens.push_back(id(words[0]));
    result.targets.push_back(id(words[1]));
  }
  return result;
}

/// With documents of 1 to 4 tokens, which lie differently in each sequence, and for each `turn`.
inline data::TokenBatch with_documents(data::TokenBatch batch, std::int64_t turn = 0) {
  for (std::int64_t b = 0; b < batch.batch; ++b) {
    std::int32_t begin = 0;
    for (std::int32_t t = 0; t < batch.sequence; ++t) {
      begin = t - begin > (t + b + turn) % 4 ? t : begin;
      batch.begins.push_back(begin);
    }
  }
  return batch;
}

/// Parameters in memory. A layer is handed out as a copy whose padding is NaN and which turns NaN
/// on release, so that a model that reads either shows it.
template <class T>
class MemoryParameters final : public state::ParameterSource<T> {
 public:
  explicit MemoryParameters(std::vector<state::LayerLayout> const& layers) {
    for (auto const& layer : layers) {
      values.emplace_back(static_cast<std::size_t>(layer.elements));
      padded_.push_back(static_cast<std::size_t>(layer.padded_elements()));
    }
  }

  [[nodiscard]] std::span<T const> acquire(int layer) override {
    acquired.push_back(layer);
    auto const& source = values[static_cast<std::size_t>(layer)];
    auto& slot = held_[layer];
    require(slot.empty(), "a layer is acquired twice");
    slot.assign(padded_[static_cast<std::size_t>(layer)], nan());
    std::ranges::copy(source, slot.begin());
    most_held = std::max(most_held, held_.size());
    return slot;
  }
  void release(int layer, std::shared_ptr<device::Event> done) override {
    if (done) {
      done->wait();
    }
    std::ranges::fill(held_.at(layer), nan());
    graveyard_.push_back(std::move(held_.at(layer)));
    held_.erase(layer);
    if (graveyard_.size() > 4) {
      graveyard_.erase(graveyard_.begin());
    }
  }
  [[nodiscard]] std::size_t held() const { return held_.size(); }
  [[nodiscard]] bool holds(int layer) const { return held_.contains(layer); }

  std::vector<std::vector<T>> values;  ///< per layer, without padding
  std::vector<int> acquired;
  std::size_t most_held = 0;

 private:
  static T nan() { return store<T>(std::numeric_limits<Real<T>>::quiet_NaN()); }

  std::vector<std::size_t> padded_;
  std::map<int, std::vector<T>> held_;
  std::vector<std::vector<T>> graveyard_;
};

/// Keeps what the model sends.
template <class T>
class MemoryGradients final : public state::GradientSink<T> {
 public:
  /// `stream`: that of the model.
  explicit MemoryGradients(device::Stream& stream) : stream_{stream} {}
  std::shared_ptr<device::Event> add(int layer, std::span<T const> gradient) override {
    stream_.synchronize();
    added.push_back(layer);
    values[layer].assign(gradient.begin(), gradient.end());
    return nullptr;
  }

  std::vector<int> added;
  std::map<int, std::vector<T>> values;  ///< per layer, padding included

 private:
  device::Stream& stream_;
};

/// A model with everything it needs. Parameters depend on the seed alone and are bf16 numbers, so
/// that models of all types start from equal values.
template <class T>
struct TestModel {
  explicit TestModel(state::ModelShape const& model_shape,
                     RunShape const& run = {.batch = 2, .sequence = 5}, double deviation = 0.3,
                     std::uint64_t seed = 1, device::Emulation const& emulation = {})
      : shape{model_shape},
        layers{state::layers_of(model_shape)},
        device{device::make_host_device(0, emulation)},
        stream{device->make_calling_stream("test")},
        parameters{layers},
        gradients{*stream},
        model{model_shape, run, *device, *stream} {
    for (std::size_t layer = 0; layer < layers.size(); ++layer) {
      for (auto const& tensor : layers[layer].tensors) {
        double const mean = tensor.initial.kind == state::Initial::Kind::ones ? 1.0 : 0.0;
        for (std::int64_t i = 0; i < tensor.elements(); ++i) {
          double const value =
              mean +
              deviation * static_cast<double>(normal(seed, static_cast<std::uint64_t>(tensor.index),
                                                     static_cast<std::uint64_t>(i)));
          parameters.values[layer][static_cast<std::size_t>(tensor.offset + i)] =
              store<T>(load(to_bf16(static_cast<float>(value))));
        }
      }
    }
  }

  double step(data::TokenBatch const& batch) {
    double const loss = model.forward(batch, parameters);
    model.backward(parameters, gradients);
    return loss;
  }
  /// Of one layer, without padding, as numbers.
  [[nodiscard]] std::vector<double> gradient(std::size_t layer) const {
    auto const& all = gradients.values.at(static_cast<int>(layer));
    std::vector<double> result(static_cast<std::size_t>(layers[layer].elements));
    std::transform(all.begin(), all.begin() + layers[layer].elements, result.begin(),
                   [](T value) { return static_cast<double>(load(value)); });
    return result;
  }

  state::ModelShape shape;
  std::vector<state::LayerLayout> layers;
  std::unique_ptr<device::Device> device;
  std::unique_ptr<device::Stream> stream;
  MemoryParameters<T> parameters;
  MemoryGradients<T> gradients;
  Transformer<T> model;
};

}  // namespace offstage::model::test
