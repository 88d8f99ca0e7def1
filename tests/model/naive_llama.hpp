#pragma once

#include <algorithm>
#include <cstddef>
#include <numbers>

#include "model/naive_model.hpp"

namespace offstage::model::test {

/// LLaMA, with the biases of Qwen2, the norms of Qwen3 and OLMo 2, windows, and the RoPE scaling of
/// LLaMA 3 where the shape has them.
class NaiveLlama final : public NaiveModel {
 public:
  using NaiveModel::NaiveModel;

 private:
  [[nodiscard]] Vector embed(std::int64_t token, std::int64_t) const override {
    return row(0, "embed_tokens.weight", token);
  }

  void block(std::size_t attn, std::size_t mlp, std::vector<Vector>& x) const override {
    std::vector<Vector> q, k, v;
    for (std::size_t t = 0; t < x.size(); ++t) {
      Vector const normed = before(attn, "input_layernorm.weight", x[t]);
      rotate(q.emplace_back(normed_heads(attn, "q_norm", projection(attn, "q_proj", normed))), t);
      rotate(k.emplace_back(normed_heads(attn, "k_norm", projection(attn, "k_proj", normed))), t);
      v.push_back(projection(attn, "v_proj", normed));
    }
    for (std::size_t t = 0; t < x.size(); ++t) {
      add(x[t], after(attn, "post_attention_layernorm.weight",
                      rows_times(attn, "o_proj.weight", attention(q[t], k, v, t))));
      Vector const normed = before(mlp, "post_attention_layernorm.weight", x[t]);
      Vector gate = rows_times(mlp, "gate_proj.weight", normed);
      Vector const up = rows_times(mlp, "up_proj.weight", normed);
      for (std::size_t i = 0; i < gate.size(); ++i) {
        gate[i] *= up[i] / (1 + std::exp(-gate[i]));
      }
      add(x[t], after(mlp, "post_feedforward_layernorm.weight",
                      rows_times(mlp, "down_proj.weight", gate)));
    }
  }

  /// Norm of what a layer takes, or of what it adds, where the model has it there.
  [[nodiscard]] Vector before(std::size_t layer, std::string const& name, Vector const& x) const {
    return shape().norms_after ? x : norm(layer, name, x);
  }
  [[nodiscard]] Vector after(std::size_t layer, std::string const& name, Vector const& x) const {
    return shape().norms_after ? norm(layer, name, x) : x;
  }

  [[nodiscard]] Vector head(std::size_t layer, Vector const& x) const override {
    Vector const normed = norm(layer, "norm.weight", x);
    return shape().tied_head ? rows_times(0, "embed_tokens.weight", normed)
                             : rows_times(layer, "lm_head.weight", normed);
  }

  [[nodiscard]] Vector projection(std::size_t layer, std::string const& name,
                                  Vector const& x) const {
    Vector y = rows_times(layer, name + ".weight", x);
    if (shape().qkv_bias) {
      add(y, vector(layer, name + ".bias"));
    }
    return y;
  }

  [[nodiscard]] Vector norm(std::size_t layer, std::string const& name, Vector x) const {
    double const rms = std::sqrt(dot(x, x) / static_cast<double>(x.size()) + shape().norm_epsilon);
    Vector const weight = vector(layer, name);
    for (std::size_t i = 0; i < x.size(); ++i) {
      x[i] *= weight[i] / rms;
    }
    return x;
  }

  /// Heads through the norm, in a model that has it: one by one, or all together.
  [[nodiscard]] Vector normed_heads(std::size_t layer, std::string const& name, Vector x) const {
    if (shape().qk_norm == state::QkNorm::none) {
      return x;
    }
    if (shape().qk_norm == state::QkNorm::all) {
      return norm(layer, name + ".weight", x);
    }
    auto const D = static_cast<std::ptrdiff_t>(shape().head_dim());
    for (auto head = x.begin(); head != x.end(); head += D) {
      std::ranges::copy(norm(layer, name + ".weight", {head, head + D}), head);
    }
    return x;
  }

  /// Rotates the pairs (i, i + D / 2) of each head by t times their frequency.
  void rotate(Vector& heads, std::size_t t) const {
    auto const D = static_cast<std::size_t>(shape().head_dim());
    for (std::size_t head = 0; head < heads.size(); head += D) {
      for (std::size_t i = 0; i < D / 2; ++i) {
        double const angle = static_cast<double>(t) * frequency(i);
        double& low = heads[head + i];
        double& high = heads[head + i + D / 2];
        double const rotated = low * std::cos(angle) - high * std::sin(angle);
        high = shape().rope_attention_factor * (high * std::cos(angle) + low * std::sin(angle));
        low = shape().rope_attention_factor * rotated;
      }
    }
  }

  /// YaRN: from i = 1 on half, from 2 on all of the stretching; tiny_yarn() is made so.
  [[nodiscard]] double stretched_by_yarn(std::size_t i, double plain) const {
    double const part = std::min(1.0, static_cast<double>(i) / 2);
    return part * plain / shape().rope_factor + (1 - part) * plain;
  }

  /// theta^(-2 i / D), which LLaMA 3 scales case by case of the wavelength.
  [[nodiscard]] double frequency(std::size_t i) const {
    auto const& s = shape();
    double const plain =
        std::pow(s.rope_theta, -2.0 * static_cast<double>(i) / static_cast<double>(s.head_dim()));
    if (s.rope_scaling == state::RopeScaling::none) {
      return plain;
    }
    if (s.rope_scaling == state::RopeScaling::linear) {
      return plain / s.rope_factor;
    }
    if (s.rope_scaling == state::RopeScaling::yarn) {
      return stretched_by_yarn(i, plain);
    }
    auto const length = static_cast<double>(s.rope_original_sequence);
    double const wavelength = 2 * std::numbers::pi / plain;
    if (wavelength < length / s.rope_high_frequency) {
      return plain;
    }
    if (wavelength > length / s.rope_low_frequency) {
      return plain / s.rope_factor;
    }
    double const smooth = (length / wavelength - s.rope_low_frequency) /
                          (s.rope_high_frequency - s.rope_low_frequency);
    return (1 - smooth) * plain / s.rope_factor + smooth * plain;
  }
};

}  // namespace offstage::model::test
