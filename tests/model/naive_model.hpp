#pragma once

#include <cmath>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "model/model_fixture.hpp"

namespace offstage::model::test {

using Vector = std::vector<double>;

/// A decoder written down from its equations, one vector at a time, without the kernels and without
/// the model's layout of buffers. A family says what stands before, in and after its blocks.
class NaiveModel {
 public:
  NaiveModel(state::ModelShape const& shape, std::vector<state::LayerLayout> const& layers,
             MemoryParameters<double> const& parameters)
      : shape_{shape}, layers_{layers}, values_{parameters.values} {}
  virtual ~NaiveModel() = default;

  /// One vector after another, rows of the batch in order.
  [[nodiscard]] std::vector<Vector> logits(data::TokenBatch const& batch) const {
    std::vector<Vector> result;
    for (std::int64_t b = 0; b < batch.batch; ++b) {
      for (std::int64_t first = b * batch.sequence; first < (b + 1) * batch.sequence;) {
        auto const of_document = logits(batch, first);
        result.insert(result.end(), of_document.begin(), of_document.end());
        first += std::ssize(of_document);
      }
    }
    return result;
  }

  [[nodiscard]] double loss(data::TokenBatch const& batch) const {
    auto const rows = logits(batch);
    double sum = 0;
    for (std::size_t r = 0; r < rows.size(); ++r) {
      double partition = 0;
      for (double const logit : rows[r]) {
        partition += std::exp(logit);
      }
      sum += std::log(partition) - rows[r][static_cast<std::size_t>(batch.targets[r])];
    }
    return sum / static_cast<double>(rows.size());
  }

 protected:
  [[nodiscard]] virtual Vector embed(std::int64_t token, std::int64_t t) const = 0;
  /// `attn`, `mlp`: the layers with its parameters.
  virtual void block(std::size_t attn, std::size_t mlp, std::vector<Vector>& x) const = 0;
  [[nodiscard]] virtual Vector head(std::size_t layer, Vector const& x) const = 0;

  [[nodiscard]] state::ModelShape const& shape() const { return shape_; }
  [[nodiscard]] Vector row(std::size_t layer, std::string const& name, std::int64_t index) const {
    auto const& tensor = layers_[layer].tensor(name);
    std::int64_t const width = tensor.columns == 0 ? tensor.rows : tensor.columns;
    auto const begin = values_[layer].begin() + tensor.offset + index * width;
    return {begin, begin + width};
  }
  [[nodiscard]] Vector vector(std::size_t layer, std::string const& name) const {
    return row(layer, name, 0);
  }
  /// Every row of a matrix times x.
  [[nodiscard]] Vector rows_times(std::size_t layer, std::string const& name,
                                  Vector const& x) const {
    Vector y;
    for (std::int64_t i = 0; i < layers_[layer].tensor(name).rows; ++i) {
      y.push_back(dot(row(layer, name, i), x));
    }
    return y;
  }

  static double dot(std::span<double const> a, std::span<double const> b) {
    double sum = 0;
    for (std::size_t i = 0; i < a.size(); ++i) {
      sum += a[i] * b[i];
    }
    return sum;
  }
  static void add(Vector& x, Vector const& y) {
    for (std::size_t i = 0; i < x.size(); ++i) {
      x[i] += y[i];
    }
  }

  /// The logits of the document that begins at this row, or of the sequence: it stands alone, and
  /// its positions count from 0.
  [[nodiscard]] std::vector<Vector> logits(data::TokenBatch const& batch,
                                           std::int64_t first) const {
    auto const at = [](auto const& of_rows, std::int64_t row) {
      return of_rows[static_cast<std::size_t>(row)];
    };
    std::vector<Vector> x;
    for (std::int64_t row = first;
         row < std::ssize(batch.tokens) && (row == first || row % batch.sequence != 0) &&
         (batch.begins.empty() || at(batch.begins, row) == at(batch.begins, first));
         ++row) {
      x.push_back(embed(at(batch.tokens, row), row - first));
    }
    for (std::size_t layer = 1; layer + 1 < layers_.size(); layer += 2) {
      block(layer, layer + 1, x);
    }
    for (Vector& last : x) {
      last = head(layers_.size() - 1, last);
    }
    return x;
  }

  /// Position t looks at positions 0..t, or at the last ones of them that its window has.
  [[nodiscard]] Vector attention(Vector const& q, std::vector<Vector> const& k,
                                 std::vector<Vector> const& v, std::size_t t) const {
    auto const D = static_cast<std::size_t>(shape_.head_dim());
    auto const group = static_cast<std::size_t>(shape_.heads / shape_.kv_heads);
    auto const head_of = [&](Vector const& all, std::size_t head) {
      return std::span{all}.subspan(head * D, D);
    };
    Vector out(q.size());
    for (std::size_t head = 0; head < q.size() / D; ++head) {
      Vector weights(t + 1);
      double sum = 0;
      auto const window = static_cast<std::size_t>(shape_.window);
      for (std::size_t s = window > 0 && t >= window ? t + 1 - window : 0; s <= t; ++s) {
        double const score = dot(head_of(q, head), head_of(k[s], head / group));
        weights[s] = std::exp(score / std::sqrt(static_cast<double>(D)));
        sum += weights[s];
      }
      for (std::size_t s = 0; s <= t; ++s) {
        for (std::size_t i = 0; i < D; ++i) {
          out[head * D + i] += weights[s] / sum * head_of(v[s], head / group)[i];
        }
      }
    }
    return out;
  }

 private:
  state::ModelShape shape_;
  std::vector<state::LayerLayout> const& layers_;
  std::vector<Vector> const& values_;
};

}  // namespace offstage::model::test
