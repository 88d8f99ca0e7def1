#pragma once

#include <cstdint>
#include <span>

#include "device/device.hpp"
#include "kernels/pointwise/gelu.hpp"
#include "kernels/pointwise/swiglu.hpp"
#include "state/model_shape.hpp"

namespace offstage::model {

/// The activation between the MLP's products: GELU in gpt2, SwiGLU in llama. Each function enqueues
/// one kernel on `stream`.
struct Activation {
  state::Family family;
  bool exact_gelu;  ///< gpt2's
  std::int64_t rows, width;

  /// Computes `hidden` (rows, width) from `up` (rows, Dims::up()).
  template <class T>
  void forward(device::Stream& stream, std::span<T const> up, std::span<T> hidden) const {
    if (family == state::Family::gpt2) {
      kernels::gelu_forward<T>(
          stream, {.x = up, .y = hidden, .rows = rows, .width = width, .exact = exact_gelu});
    } else {
      kernels::swiglu_forward<T>(stream,
                                 {.gate_up = up, .y = hidden, .rows = rows, .width = width});
    }
  }

  /// Overwrites `up` with its gradient.
  template <class T>
  void backward(device::Stream& stream, std::span<T> up, std::span<T const> d_hidden) const {
    if (family == state::Family::gpt2) {
      kernels::gelu_backward<T>(
          stream,
          {.x = up, .dy = d_hidden, .dx = up, .rows = rows, .width = width, .exact = exact_gelu});
    } else {
      kernels::swiglu_backward<T>(
          stream, {.gate_up = up, .dy = d_hidden, .d_gate_up = up, .rows = rows, .width = width});
    }
  }
};

}  // namespace offstage::model
