#include "kernels/norms/rmsnorm.hpp"

#include <type_traits>

#include "base/instantiate.hpp"
#include "kernels/dispatch.hpp"
#include "kernels/host/pointwise_loops.hpp"
#include "kernels/host/row_sums.hpp"
#include "kernels/pointwise_checks.hpp"

namespace offstage::kernels {

namespace host {

template <class T>
void rmsnorm_forward(RmsnormForward<T> const& a) {
  check(a);
  PointwiseLoops<T> const& loops = pointwise_loops<T>();
#pragma omp parallel for schedule(static)
  for (std::int64_t r = 0; r < a.rows; ++r) {
    std::int64_t const row = a.places.begin(r, a.width);
    a.inverse_rms[r] =
        loops.rmsnorm_forward(a.x.data() + row, a.delta.empty() ? nullptr : a.delta.data() + row,
                              a.delta.empty() ? nullptr : a.sum.data() + row, a.weight.data(),
                              a.y.data() + row, a.width, static_cast<float>(a.epsilon));
  }
}

template <class T>
void rmsnorm_backward(RmsnormBackward<T> const& a) {
  check(a);
  PointwiseLoops<T> const& loops = pointwise_loops<T>();
  auto const sums = sum_over_rows(a.rows, a.width, [&](std::int64_t r, float* partial) {
    std::int64_t const row = a.places.begin(r, a.width);
    loops.rmsnorm_backward(a.x.data() + row, a.weight.data(), a.dy.data() + row, a.inverse_rms[r],
                           a.dx.data() + row, partial, a.width, a.add);
  });
  for (std::int64_t i = 0; i < a.width; ++i) {
    a.d_weight[i] = store<T>(sums[i]);
  }
}

OFFSTAGE_INSTANTIATE(OFFSTAGE_RUN_TYPES, rmsnorm_forward)
OFFSTAGE_INSTANTIATE(OFFSTAGE_RUN_TYPES, rmsnorm_backward)

}  // namespace host

template <class T>
void rmsnorm_forward(device::Stream& stream, RmsnormForward<T> const& a) {
  launch_on<T>(
      stream,
      [a] {
        if constexpr (std::is_same_v<T, double>) {
          ref::rmsnorm_forward(a);
        } else {
          host::rmsnorm_forward(a);
        }
      },
      [&](auto* native) { cuda::rmsnorm_forward(a, native); });
}

template <class T>
void rmsnorm_backward(device::Stream& stream, RmsnormBackward<T> const& a) {
  launch_on<T>(
      stream,
      [a] {
        if constexpr (std::is_same_v<T, double>) {
          ref::rmsnorm_backward(a);
        } else {
          host::rmsnorm_backward(a);
        }
      },
      [&](auto* native) { cuda::rmsnorm_backward(a, stream.scratch(), native); });
}

OFFSTAGE_INSTANTIATE(OFFSTAGE_ALL_TYPES, rmsnorm_forward)
OFFSTAGE_INSTANTIATE(OFFSTAGE_ALL_TYPES, rmsnorm_backward)

}  // namespace offstage::kernels
