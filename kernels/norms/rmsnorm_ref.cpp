#include "kernels/norms/rmsnorm.hpp"

#include <cmath>
#include <vector>

#include "base/instantiate.hpp"
#include "kernels/pointwise_checks.hpp"

namespace offstage::kernels::ref {

template <class T>
void rmsnorm_forward(RmsnormForward<T> const& a) {
  check(a);
  for (std::int64_t r = 0; r < a.rows; ++r) {
    std::int64_t const row = a.places.begin(r, a.width);
    std::span<T const> const x = (a.delta.empty() ? a.x : a.sum).subspan(row, a.width);
    Real<T> sum = 0;
    for (std::int64_t i = 0; i < a.width; ++i) {
      if (!a.delta.empty()) {
        std::int64_t const at = row + i;
        a.sum[at] = store<T>(load(a.x[at]) + load(a.delta[at]));
      }
      sum += load(x[i]) * load(x[i]);
    }
    Real<T> const mean = sum / static_cast<Real<T>>(a.width);
    Real<T> const inverse = 1 / std::sqrt(mean + static_cast<Real<T>>(a.epsilon));
    a.inverse_rms[r] = inverse;
    for (std::int64_t i = 0; i < a.width; ++i) {
      a.y[row + i] = store<T>(load(x[i]) * inverse * load(a.weight[i]));
    }
  }
}

template <class T>
void rmsnorm_backward(RmsnormBackward<T> const& a) {
  check(a);
  std::vector<Real<T>> d_weight(a.width);
  for (std::int64_t r = 0; r < a.rows; ++r) {
    std::int64_t const row = a.places.begin(r, a.width);
    Real<T> const inverse = a.inverse_rms[r];
    Real<T> dot = 0;
    for (std::int64_t i = 0; i < a.width; ++i) {
      dot += load(a.weight[i]) * load(a.dy[row + i]) * load(a.x[row + i]);
    }
    // d(1 / rms) / dx_i = -x_i / (width rms^3)
    Real<T> const pull = dot * inverse * inverse * inverse / static_cast<Real<T>>(a.width);
    for (std::int64_t i = 0; i < a.width; ++i) {
      Real<T> const dy = load(a.dy[row + i]);
      Real<T> const x = load(a.x[row + i]);
      Real<T> const before = a.add ? load(a.dx[row + i]) : Real<T>{};
      a.dx[row + i] = store<T>(before + (inverse * load(a.weight[i]) * dy - pull * x));
      d_weight[i] += dy * x * inverse;
    }
  }
  for (std::int64_t i = 0; i < a.width; ++i) {
    a.d_weight[i] = store<T>(d_weight[i]);
  }
}

OFFSTAGE_INSTANTIATE(OFFSTAGE_ALL_TYPES, rmsnorm_forward)
OFFSTAGE_INSTANTIATE(OFFSTAGE_ALL_TYPES, rmsnorm_backward)

}  // namespace offstage::kernels::ref
