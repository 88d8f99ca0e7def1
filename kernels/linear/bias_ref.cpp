#include "kernels/linear/bias.hpp"

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

template void bias_forward(BiasForward<double> const&);
template void bias_forward(BiasForward<float> const&);
template void bias_forward(BiasForward<bfloat16> const&);
template void bias_forward(BiasForward<float16> const&);
template void bias_backward(BiasBackward<double> const&);
template void bias_backward(BiasBackward<float> const&);
template void bias_backward(BiasBackward<bfloat16> const&);
template void bias_backward(BiasBackward<float16> const&);

}  // namespace offstage::kernels::ref
