#include "kernels/linear/bias.hpp"

#include "base/instantiate.hpp"
#include "kernels/pointwise_checks.hpp"

namespace offstage::kernels::ref {

template <class T>
void bias_forward(BiasForward<T> const& a) {
  check(a);
  for (std::int64_t r = 0; r < a.rows; ++r) {
    for (std::int64_t i = 0; i < a.width; ++i) {
      T& y = a.y[r * a.width + i];
      y = store<T>(load(y) + load(a.bias[i]));
    }
  }
}

template <class T>
void bias_backward(BiasBackward<T> const& a) {
  check(a);
  for (std::int64_t i = 0; i < a.width; ++i) {
    Real<T> sum = 0;
    for (std::int64_t r = 0; r < a.rows; ++r) {
      sum += load(a.dy[r * a.width + i]);
    }
    a.d_bias[i] = store<T>(sum);
  }
}

OFFSTAGE_INSTANTIATE(OFFSTAGE_ALL_TYPES, bias_forward)
OFFSTAGE_INSTANTIATE(OFFSTAGE_ALL_TYPES, bias_backward)

}  // namespace offstage::kernels::ref
