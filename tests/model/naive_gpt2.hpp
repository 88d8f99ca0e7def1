#pragma once

#include <algorithm>
#include <numbers>

#include "model/naive_model.hpp"

namespace offstage::model::test {

/// GPT-2.
class NaiveGpt2 final : public NaiveModel {
 public:
  using NaiveModel::NaiveModel;

 private:
  [[nodiscard]] Vector embed(std::int64_t token, std::int64_t t) const override {
    Vector x = row(0, "wte.weight", token);
    add(x, row(0, "wpe.weight", t));
    return x;
  }

  void block(std::size_t attn, std::size_t mlp, std::vector<Vector>& x) const override {
    std::vector<Vector> q, k, v;
    for (Vector const& in : x) {
      Vector const qkv = linear(attn, "attn.c_attn", norm(attn, "ln_1", in));
      auto const third = [&](int part) {
        auto const begin = qkv.begin() + part * shape().hidden;
        return Vector{begin, begin + shape().hidden};
      };
      q.push_back(third(0));
      k.push_back(third(1));
      v.push_back(third(2));
    }
    for (std::size_t t = 0; t < x.size(); ++t) {
      add(x[t], linear(attn, "attn.c_proj", attention(q[t], k, v, t)));
      Vector hidden = linear(mlp, "mlp.c_fc", norm(mlp, "ln_2", x[t]));
      std::ranges::transform(hidden, hidden.begin(), shape().exact_gelu ? exact_gelu : gelu);
      add(x[t], linear(mlp, "mlp.c_proj", hidden));
    }
  }

  [[nodiscard]] Vector head(std::size_t layer, Vector const& x) const override {
    Vector const normed = norm(layer, "ln_f", x);
    return shape().tied_head ? rows_times(0, "wte.weight", normed)
                             : rows_times(layer, "lm_head.weight", normed);
  }

  /// x W + b: row i of W holds the weights that x[i] goes out with.
  [[nodiscard]] Vector linear(std::size_t layer, std::string const& name, Vector const& x) const {
    Vector y = vector(layer, name + ".bias");
    for (std::size_t i = 0; i < x.size(); ++i) {
      Vector outgoing = row(layer, name + ".weight", static_cast<std::int64_t>(i));
      for (double& weight : outgoing) {
        weight *= x[i];
      }
      add(y, outgoing);
    }
    return y;
  }

  [[nodiscard]] Vector norm(std::size_t layer, std::string const& name, Vector x) const {
    auto const width = static_cast<double>(x.size());
    double mean = 0;
    for (double const value : x) {
      mean += value / width;
    }
    double variance = 0;
    for (double const value : x) {
      variance += (value - mean) * (value - mean) / width;
    }
    Vector const weight = vector(layer, name + ".weight");
    Vector const bias = vector(layer, name + ".bias");
    for (std::size_t i = 0; i < x.size(); ++i) {
      x[i] = (x[i] - mean) / std::sqrt(variance + shape().norm_epsilon) * weight[i] + bias[i];
    }
    return x;
  }

  static double gelu(double x) {
    double const inner = std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * std::pow(x, 3));
    return 0.5 * x * (1 + std::tanh(inner));
  }
  static double exact_gelu(double x) { return 0.5 * x * (1 + std::erf(x / std::numbers::sqrt2)); }
};

}  // namespace offstage::model::test
