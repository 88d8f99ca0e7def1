#pragma once

#include <cmath>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "model/model_fixture.hpp"

namespace offstage::model::test {

using Vector = std::vector<double>;

/// The loss of LLaMA written down from its equations, one vector at a time, without the kernels and
/// without the model's layout of buffers.
class NaiveLlama {
 public:
  NaiveLlama(state::ModelShape const& shape, std::vector<state::LayerLayout> const& layers,
             MemoryParameters<double> const& parameters)
      : shape_{shape}, layers_{layers}, values_{parameters.values} {}

  [[nodiscard]] double loss(data::TokenBatch const& batch) const {
    double sum = 0;
    for (std::int64_t b = 0; b < batch.batch; ++b) {
      std::vector<Vector> x;
      for (std::int64_t t = 0; t < batch.sequence; ++t) {
        auto const token = batch.tokens[static_cast<std::size_t>(b * batch.sequence + t)];
        x.push_back(row(0, "embed_tokens.weight", token));
      }
      for (std::size_t layer = 1; layer + 1 < layers_.size(); ++layer) {
        block(layer, x);
      }
      std::size_t const head = layers_.size() - 1;
      for (std::size_t t = 0; t < x.size(); ++t) {
        Vector const normed = norm(head, "norm.weight", x[t]);
        Vector const logits = shape_.tied_head ? linear(0, "embed_tokens.weight", normed)
                                               : linear(head, "lm_head.weight", normed);
        double partition = 0;
        for (double const logit : logits) {
          partition += std::exp(logit);
        }
        auto const target = batch.targets[static_cast<std::size_t>(b * batch.sequence) + t];
        sum += std::log(partition) - logits[static_cast<std::size_t>(target)];
      }
    }
    return sum / static_cast<double>(batch.tokens.size());
  }

 private:
  [[nodiscard]] Vector row(std::size_t layer, std::string const& name, std::int64_t index) const {
    auto const& tensor = layers_[layer].tensor(name);
    std::int64_t const width = tensor.columns == 0 ? tensor.rows : tensor.columns;
    auto const begin = values_[layer].begin() + tensor.offset + index * width;
    return {begin, begin + width};
  }
  [[nodiscard]] Vector linear(std::size_t layer, std::string const& name, Vector const& x) const {
    Vector y;
    for (std::int64_t i = 0; i < layers_[layer].tensor(name).rows; ++i) {
      y.push_back(dot(row(layer, name, i), x));
    }
    return y;
  }
  [[nodiscard]] Vector norm(std::size_t layer, std::string const& name, Vector x) const {
    double const rms = std::sqrt(dot(x, x) / static_cast<double>(x.size()) + shape_.norm_epsilon);
    Vector const weight = row(layer, name, 0);
    for (std::size_t i = 0; i < x.size(); ++i) {
      x[i] *= weight[i] / rms;
    }
    return x;
  }
  static double dot(std::span<double const> a, std::span<double const> b) {
    double sum = 0;
    for (std::size_t i = 0; i < a.size(); ++i) {
      sum += a[i] * b[i];
    }
    return sum;
  }

  /// Rotates the pairs (i, i + D / 2) of each head by t theta^(-2 i / D).
  void rotate(Vector& heads, std::size_t t) const {
    auto const D = static_cast<std::size_t>(shape_.head_dim());
    for (std::size_t head = 0; head < heads.size(); head += D) {
      for (std::size_t i = 0; i < D / 2; ++i) {
        double const angle =
            static_cast<double>(t) *
            std::pow(shape_.rope_theta, -2.0 * static_cast<double>(i) / static_cast<double>(D));
        double& low = heads[head + i];
        double& high = heads[head + i + D / 2];
        double const rotated = low * std::cos(angle) - high * std::sin(angle);
        high = high * std::cos(angle) + low * std::sin(angle);
        low = rotated;
      }
    }
  }

  void block(std::size_t layer, std::vector<Vector>& x) const {
    std::vector<Vector> q, k, v;
    for (std::size_t t = 0; t < x.size(); ++t) {
      Vector const normed = norm(layer, "input_layernorm.weight", x[t]);
      rotate(q.emplace_back(linear(layer, "q_proj.weight", normed)), t);
      rotate(k.emplace_back(linear(layer, "k_proj.weight", normed)), t);
      v.push_back(linear(layer, "v_proj.weight", normed));
    }
    for (std::size_t t = 0; t < x.size(); ++t) {
      add(x[t], linear(layer, "o_proj.weight", attention(q[t], k, v, t)));
      Vector const normed = norm(layer, "post_attention_layernorm.weight", x[t]);
      Vector gate = linear(layer, "gate_proj.weight", normed);
      Vector const up = linear(layer, "up_proj.weight", normed);
      for (std::size_t i = 0; i < gate.size(); ++i) {
        gate[i] *= up[i] / (1 + std::exp(-gate[i]));
      }
      add(x[t], linear(layer, "down_proj.weight", gate));
    }
  }

  /// Position t looks at positions 0..t.
  [[nodiscard]] Vector attention(Vector const& q, std::vector<Vector> const& k,
                                 std::vector<Vector> const& v, std::size_t t) const {
    auto const D = static_cast<std::size_t>(shape_.head_dim());
    auto const group = static_cast<std::size_t>(shape_.heads / shape_.kv_heads);
    auto const head_of = [&](Vector const& all, std::size_t head) {
      return std::span{all}.subspan(head * D, D);
    };
    Vector out(q.size());
    for (std::size_t head = 0; head < q.size() / D; ++head) {
      Vector weights;
      double sum = 0;
      for (std::size_t s = 0; s <= t; ++s) {
        double const score = dot(head_of(q, head), head_of(k[s], head / group));
        weights.push_back(std::exp(score / std::sqrt(static_cast<double>(D))));
        sum += weights.back();
      }
      for (std::size_t s = 0; s <= t; ++s) {
        for (std::size_t i = 0; i < D; ++i) {
          out[head * D + i] += weights[s] / sum * head_of(v[s], head / group)[i];
        }
      }
    }
    return out;
  }
  static void add(Vector& x, Vector const& y) {
    for (std::size_t i = 0; i < x.size(); ++i) {
      x[i] += y[i];
    }
  }

  state::ModelShape shape_;
  std::vector<state::LayerLayout> const& layers_;
  std::vector<Vector> const& values_;
};

}  // namespace offstage::model::test
