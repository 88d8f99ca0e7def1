#include "kernels/pointwise/gelu.hpp"

#include <type_traits>

#include "base/instantiate.hpp"
#include "kernels/dispatch.hpp"
#include "kernels/host/pointwise_loops.hpp"
#include "kernels/pointwise_checks.hpp"

namespace offstage::kernels {

namespace host {

template <class T>
void gelu_forward(GeluForward<T> const& a) {
  check(a);
  PointwiseLoops<T> const& loops = pointwise_loops<T>();
  auto* const forward = a.exact ? loops.exact_gelu_forward : loops.gelu_forward;
#pragma omp parallel for schedule(static)
  for (std::int64_t r = 0; r < a.rows; ++r) {
    std::int64_t const row = r * a.width;
    forward(a.x.data() + row, a.y.data() + row, a.width);
  }
}

template <class T>
void gelu_backward(GeluBackward<T> const& a) {
  check(a);
  PointwiseLoops<T> const& loops = pointwise_loops<T>();
  auto* const backward = a.exact ? loops.exact_gelu_backward : loops.gelu_backward;
#pragma omp parallel for schedule(static)
  for (std::int64_t r = 0; r < a.rows; ++r) {
    std::int64_t const row = r * a.width;
    backward(a.x.data() + row, a.dy.data() + row, a.dx.data() + row, a.width);
  }
}

OFFSTAGE_INSTANTIATE(OFFSTAGE_RUN_TYPES, gelu_forward)
OFFSTAGE_INSTANTIATE(OFFSTAGE_RUN_TYPES, gelu_backward)

}  // namespace host

template <class T>
void gelu_forward(device::Stream& stream, GeluForward<T> const& a) {
  launch_on<T>(
      stream,
      [a] {
        if constexpr (std::is_same_v<T, double>) {
          ref::gelu_forward(a);
        } else {
          host::gelu_forward(a);
        }
      },
      [&](auto* native) { cuda::gelu_forward(a, native); });
}

template <class T>
void gelu_backward(device::Stream& stream, GeluBackward<T> const& a) {
  launch_on<T>(
      stream,
      [a] {
        if constexpr (std::is_same_v<T, double>) {
          ref::gelu_backward(a);
        } else {
          host::gelu_backward(a);
        }
      },
      [&](auto* native) { cuda::gelu_backward(a, native); });
}

OFFSTAGE_INSTANTIATE(OFFSTAGE_ALL_TYPES, gelu_forward)
OFFSTAGE_INSTANTIATE(OFFSTAGE_ALL_TYPES, gelu_backward)

}  // namespace offstage::kernels
