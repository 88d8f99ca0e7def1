#include "kernels/norms/layernorm.hpp"

#include <cmath>
#include <vector>

#include "base/instantiate.hpp"
#include "kernels/pointwise_checks.hpp"

namespace offstage::kernels::ref {

template <class T>
void layernorm_forward(LayernormForward<T> const& a) {
  check(a);
  auto const width = static_cast<Real<T>>(a.width);
  for (std::int64_t r = 0; r < a.rows; ++r) {
    std::span<T const> const x = (a.delta.empty() ? a.x : a.sum).subspan(r * a.width, a.width);
    Real<T> sum = 0;
    for (std::int64_t i = 0; i < a.width; ++i) {
      if (!a.delta.empty()) {
        std::int64_t const at = r * a.width + i;
        a.sum[at] = store<T>(load(a.x[at]) + load(a.delta[at]));
      }
      sum += load(x[i]);
    }
    Real<T> const mean = sum / width;
    Real<T> squares = 0;
    for (T const value : x) {
      squares += (load(value) - mean) * (load(value) - mean);
    }
    Real<T> const inverse = 1 / std::sqrt(squares / width + static_cast<Real<T>>(a.epsilon));
    a.mean[r] = mean;
    a.inverse_deviation[r] = inverse;
    for (std::int64_t i = 0; i < a.width; ++i) {
      a.y[r * a.width + i] =
          store<T>((load(x[i]) - mean) * inverse * load(a.weight[i]) + load(a.bias[i]));
    }
  }
}

template <class T>
void layernorm_backward(LayernormBackward<T> const& a) {
  check(a);
  auto const width = static_cast<Real<T>>(a.width);
  std::vector<Real<T>> d_weight(a.width);
  std::vector<Real<T>> d_bias(a.width);
  for (std::int64_t r = 0; r < a.rows; ++r) {
    std::int64_t const row = r * a.width;
    Real<T> const inverse = a.inverse_deviation[r];
    auto const normed = [&](std::int64_t i) { return (load(a.x[row + i]) - a.mean[r]) * inverse; };
    // g is the gradient of the normed row. Its mean and its part along the normed row do not reach
    // x: neither a shift nor a stretch of x changes y.
    auto const g = [&](std::int64_t i) { return load(a.weight[i]) * load(a.dy[row + i]); };
    Real<T> shift = 0;
    Real<T> stretch = 0;
    for (std::int64_t i = 0; i < a.width; ++i) {
      shift += g(i);
      stretch += g(i) * normed(i);
      d_weight[i] += load(a.dy[row + i]) * normed(i);
      d_bias[i] += load(a.dy[row + i]);
    }
    for (std::int64_t i = 0; i < a.width; ++i) {
      Real<T> const through = inverse * (g(i) - shift / width - normed(i) * (stretch / width));
      a.dx[row + i] = store<T>(load(a.dx[row + i]) + through);
    }
  }
  for (std::int64_t i = 0; i < a.width; ++i) {
    a.d_weight[i] = store<T>(d_weight[i]);
    a.d_bias[i] = store<T>(d_bias[i]);
  }
}

OFFSTAGE_INSTANTIATE(OFFSTAGE_ALL_TYPES, layernorm_forward)
OFFSTAGE_INSTANTIATE(OFFSTAGE_ALL_TYPES, layernorm_backward)

}  // namespace offstage::kernels::ref
