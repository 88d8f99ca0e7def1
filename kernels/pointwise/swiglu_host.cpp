#include "kernels/pointwise/swiglu.hpp"

#include <type_traits>

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

template void swiglu_forward(SwigluForward<float> const&);
template void swiglu_forward(SwigluForward<bfloat16> const&);
template void swiglu_forward(SwigluForward<float16> const&);
template void swiglu_backward(SwigluBackward<float> const&);
template void swiglu_backward(SwigluBackward<bfloat16> const&);
template void swiglu_backward(SwigluBackward<float16> const&);

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

template void swiglu_forward(device::Stream&, SwigluForward<double> const&);
template void swiglu_forward(device::Stream&, SwigluForward<float> const&);
template void swiglu_forward(device::Stream&, SwigluForward<bfloat16> const&);
template void swiglu_forward(device::Stream&, SwigluForward<float16> const&);
template void swiglu_backward(device::Stream&, SwigluBackward<double> const&);
template void swiglu_backward(device::Stream&, SwigluBackward<float> const&);
template void swiglu_backward(device::Stream&, SwigluBackward<bfloat16> const&);
template void swiglu_backward(device::Stream&, SwigluBackward<float16> const&);

}  // namespace offstage::kernels
