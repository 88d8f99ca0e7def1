#include "kernels/norms/layernorm.hpp"

#include <type_traits>
#include <vector>

#include "base/instantiate.hpp"
#include "kernels/dispatch.hpp"
#include "kernels/host/pointwise_loops.hpp"
#include "kernels/host/row_sums.hpp"
#include "kernels/pointwise_checks.hpp"

namespace offstage::kernels {

namespace host {

template <class T>
void layernorm_forward(LayernormForward<T> const& a) {
  check(a);
  PointwiseLoops<T> const& loops = pointwise_loops<T>();
#pragma omp parallel for schedule(static)
  for (std::int64_t r = 0; r < a.rows; ++r) {
    std::int64_t const row = r * a.width;
    auto const [mean, inverse_deviation] = loops.layernorm_forward(
        a.x.data() + row, a.delta.empty() ? nullptr : a.delta.data() + row,
        a.delta.empty() ? nullptr : a.sum.data() + row, a.weight.data(), a.bias.data(),
        a.y.data() + row, a.width, static_cast<float>(a.epsilon));
    a.mean[r] = mean;
    a.inverse_deviation[r] = inverse_deviation;
  }
}

template <class T>
void layernorm_backward(LayernormBackward<T> const& a) {
  check(a);
  PointwiseLoops<T> const& loops = pointwise_loops<T>();
  auto const sums = sum_over_rows(a.rows, 2 * a.width, [&](std::int64_t r, float* partial) {
    std::int64_t const row = r * a.width;
    loops.layernorm_backward(a.x.data() + row, a.weight.data(), a.dy.data() + row,
                             {a.mean[r], a.inverse_deviation[r]}, a.dx.data() + row, partial,
                             partial + a.width, a.width);
  });
  for (std::int64_t i = 0; i < a.width; ++i) {
    a.d_weight[i] = store<T>(sums[i]);
    a.d_bias[i] = store<T>(sums[a.width + i]);
  }
}

OFFSTAGE_INSTANTIATE(OFFSTAGE_RUN_TYPES, layernorm_forward)
OFFSTAGE_INSTANTIATE(OFFSTAGE_RUN_TYPES, layernorm_backward)

}  // namespace host

template <class T>
void layernorm_forward(device::Stream& stream, LayernormForward<T> const& a) {
  launch_on<T>(
      stream,
      [a] {
        if constexpr (std::is_same_v<T, double>) {
          ref::layernorm_forward(a);
        } else {
          host::layernorm_forward(a);
        }
      },
      [&](auto* native) { cuda::layernorm_forward(a, native); });
}

template <class T>
void layernorm_backward(device::Stream& stream, LayernormBackward<T> const& a) {
  launch_on<T>(
      stream,
      [a] {
        if constexpr (std::is_same_v<T, double>) {
          ref::layernorm_backward(a);
        } else {
          host::layernorm_backward(a);
        }
      },
      [&](auto* native) { cuda::layernorm_backward(a, stream.scratch(), native); });
}

OFFSTAGE_INSTANTIATE(OFFSTAGE_ALL_TYPES, layernorm_forward)
OFFSTAGE_INSTANTIATE(OFFSTAGE_ALL_TYPES, layernorm_backward)

}  // namespace offstage::kernels
