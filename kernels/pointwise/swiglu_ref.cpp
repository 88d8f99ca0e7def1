#include "kernels/pointwise/swiglu.hpp"

#include <cmath>

#include "base/instantiate.hpp"
#include "kernels/pointwise_checks.hpp"

namespace offstage::kernels::ref {

template <class T>
void swiglu_forward(SwigluForward<T> const& a) {
  check(a);
  for (std::int64_t r = 0; r < a.rows; ++r) {
    std::span<T const> const gate = a.gate_up.subspan(2 * r * a.width, a.width);
    std::span<T const> const up = a.gate_up.subspan((2 * r + 1) * a.width, a.width);
    for (std::int64_t i = 0; i < a.width; ++i) {
      Real<T> const g = load(gate[i]);
      a.y[r * a.width + i] = store<T>(g / (1 + std::exp(-g)) * load(up[i]));
    }
  }
}

template <class T>
void swiglu_backward(SwigluBackward<T> const& a) {
  check(a);
  for (std::int64_t r = 0; r < a.rows; ++r) {
    for (std::int64_t i = 0; i < a.width; ++i) {
      std::int64_t const gate = 2 * r * a.width + i;
      std::int64_t const up = gate + a.width;
      Real<T> const g = load(a.gate_up[gate]);
      Real<T> const u = load(a.gate_up[up]);
      Real<T> const dy = load(a.dy[r * a.width + i]);
      Real<T> const sigmoid = 1 / (1 + std::exp(-g));
      a.d_gate_up[gate] = store<T>(dy * u * sigmoid * (1 + g * (1 - sigmoid)));
      a.d_gate_up[up] = store<T>(dy * g * sigmoid);
    }
  }
}

OFFSTAGE_INSTANTIATE(OFFSTAGE_ALL_TYPES, swiglu_forward)
OFFSTAGE_INSTANTIATE(OFFSTAGE_ALL_TYPES, swiglu_backward)

}  // namespace offstage::kernels::ref
