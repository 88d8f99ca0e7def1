#include "kernels/pointwise/swiglu.hpp"

#include <type_traits>

#include "base/instantiate.hpp"
#include "kernels/dispatch.hpp"
#include "kernels/host/pointwise_loops.hpp"
#include "kernels/pointwise_checks.hpp"

namespace offstage::kernels {

namespace host {

template <class T>
void swiglu_forward(SwigluForward<T> const& a) {
  check(a);
  PointwiseLoops<T> const& loops = pointwise_loops<T>();
#pragma omp parallel for schedule(static)
  for (std::int64_t r = 0; r < a.rows; ++r) {
    T const* const gate = a.gate_up.data() + 2 * r * a.width;
    loops.swiglu_forward(gate, gate + a.width, a.y.data() + r * a.width, a.width);
  }
}

template <class T>
void swiglu_backward(SwigluBackward<T> const& a) {
  check(a);
  PointwiseLoops<T> const& loops = pointwise_loops<T>();
#pragma omp parallel for schedule(static)
  for (std::int64_t r = 0; r < a.rows; ++r) {
    T const* const gate = a.gate_up.data() + 2 * r * a.width;
    T* const d_gate = a.d_gate_up.data() + 2 * r * a.width;
    loops.swiglu_backward(gate, gate + a.width, a.dy.data() + r * a.width, d_gate, d_gate + a.width,
                          a.width);
  }
}

OFFSTAGE_INSTANTIATE(OFFSTAGE_RUN_TYPES, swiglu_forward)
OFFSTAGE_INSTANTIATE(OFFSTAGE_RUN_TYPES, swiglu_backward)

}  // namespace host

template <class T>
void swiglu_forward(device::Stream& stream, SwigluForward<T> const& a) {
  launch_on<T>(
      stream,
      [a] {
        if constexpr (std::is_same_v<T, double>) {
          ref::swiglu_forward(a);
        } else {
          host::swiglu_forward(a);
        }
      },
      [&](auto* native) { cuda::swiglu_forward(a, native); });
}

template <class T>
void swiglu_backward(device::Stream& stream, SwigluBackward<T> const& a) {
  launch_on<T>(
      stream,
      [a] {
        if constexpr (std::is_same_v<T, double>) {
          ref::swiglu_backward(a);
        } else {
          host::swiglu_backward(a);
        }
      },
      [&](auto* native) { cuda::swiglu_backward(a, native); });
}

OFFSTAGE_INSTANTIATE(OFFSTAGE_ALL_TYPES, swiglu_forward)
OFFSTAGE_INSTANTIATE(OFFSTAGE_ALL_TYPES, swiglu_backward)

}  // namespace offstage::kernels
