#include "kernels/linear/bias.hpp"

#include <type_traits>

#include "base/instantiate.hpp"
#include "kernels/dispatch.hpp"
#include "kernels/host/pointwise_loops.hpp"
#include "kernels/host/row_sums.hpp"
#include "kernels/pointwise_checks.hpp"

namespace offstage::kernels {

namespace host {

template <class T>
void bias_forward(BiasForward<T> const& a) {
  check(a);
  PointwiseLoops<T> const& loops = pointwise_loops<T>();
#pragma omp parallel for schedule(static)
  for (std::int64_t r = 0; r < a.rows; ++r) {
    T* const y = a.y.data() + r * a.width;
    loops.add(y, a.bias.data(), y, a.width);
  }
}

template <class T>
void bias_backward(BiasBackward<T> const& a) {
  check(a);
  PointwiseLoops<T> const& loops = pointwise_loops<T>();
  auto const sums = sum_over_rows(a.rows, a.width, [&](std::int64_t r, float* partial) {
    loops.accumulate(a.dy.data() + r * a.width, partial, a.width);
  });
  for (std::int64_t i = 0; i < a.width; ++i) {
    a.d_bias[i] = store<T>(sums[i]);
  }
}

OFFSTAGE_INSTANTIATE(OFFSTAGE_RUN_TYPES, bias_forward)
OFFSTAGE_INSTANTIATE(OFFSTAGE_RUN_TYPES, bias_backward)

}  // namespace host

template <class T>
void bias_forward(device::Stream& stream, BiasForward<T> const& a) {
  launch_on<T>(
      stream,
      [a] {
        if constexpr (std::is_same_v<T, double>) {
          ref::bias_forward(a);
        } else {
          host::bias_forward(a);
        }
      },
      [&](auto* native) { cuda::bias_forward(a, native); });
}

template <class T>
void bias_backward(device::Stream& stream, BiasBackward<T> const& a) {
  launch_on<T>(
      stream,
      [a] {
        if constexpr (std::is_same_v<T, double>) {
          ref::bias_backward(a);
        } else {
          host::bias_backward(a);
        }
      },
      [&](auto* native) { cuda::bias_backward(a, stream.scratch(), native); });
}

OFFSTAGE_INSTANTIATE(OFFSTAGE_ALL_TYPES, bias_forward)
OFFSTAGE_INSTANTIATE(OFFSTAGE_ALL_TYPES, bias_backward)

}  // namespace offstage::kernels
