#pragma once

#include <cstdint>
#include <span>

#include "base/dtype.hpp"
#include "device/device.hpp"
#include "layernorm.hpp"
#include "model/dims.hpp"
#include "model/slab.hpp"
#include "model/tensors.hpp"
#include "rmsnorm.hpp"

namespace offstage::model {

/// What backward needs of each row.
template <class T>
struct NormStatistics {
  std::span<Real<T>> mean;     ///< (B, T), empty in an RMSNorm
  std::span<Real<T>> inverse;  ///< (B, T) 1 / rms, or 1 / standard deviation
};

template <class T>
[[nodiscard]] NormStatistics<T> lay_out_statistics(Dims const& dims, Slab& slab) {
  bool const has_mean = dims.family == state::Family::gpt2;
  auto const mean = slab.take<Real<T>>(has_mean ? dims.rows() : 0);
  return {.mean = mean, .inverse = slab.take<Real<T>>(dims.rows())};
}

/// LayerNorm in gpt2, RMSNorm in llama; each function enqueues one kernel on `stream`.
struct Norm {
  state::Family family;
  std::int64_t rows, width;
  double epsilon;

  /// x += delta unless that is empty, then y = the norm of x.
  template <class T>
  void forward(device::Stream& stream, std::span<T> x, std::span<T const> delta,
               NormTensors<T const> const& w, std::span<T> y,
               NormStatistics<T> const& statistics) const {
    if (family == state::Family::gpt2) {
      kernels::layernorm_forward<T>(stream, {.x = x,
                                             .delta = delta,
                                             .weight = w.weight,
                                             .bias = w.bias,
                                             .y = y,
                                             .mean = statistics.mean,
                                             .inverse_deviation = statistics.inverse,
                                             .rows = rows,
                                             .width = width,
                                             .epsilon = epsilon});
    } else {
      kernels::rmsnorm_forward<T>(stream, {.x = x,
                                           .delta = delta,
                                           .weight = w.weight,
                                           .y = y,
                                           .inverse_rms = statistics.inverse,
                                           .rows = rows,
                                           .width = width,
                                           .epsilon = epsilon});
    }
  }

  /// dx += the gradient through the norm; dw is overwritten.
  template <class T>
  void backward(device::Stream& stream, std::span<T const> x, NormTensors<T const> const& w,
                std::span<T const> dy, NormStatistics<T> const& statistics, std::span<T> dx,
                NormTensors<T> const& dw) const {
    if (family == state::Family::gpt2) {
      kernels::layernorm_backward<T>(stream, {.x = x,
                                              .weight = w.weight,
                                              .dy = dy,
                                              .mean = statistics.mean,
                                              .inverse_deviation = statistics.inverse,
                                              .dx = dx,
                                              .d_weight = dw.weight,
                                              .d_bias = dw.bias,
                                              .rows = rows,
                                              .width = width});
    } else {
      kernels::rmsnorm_backward<T>(stream, {.x = x,
                                            .weight = w.weight,
                                            .dy = dy,
                                            .inverse_rms = statistics.inverse,
                                            .dx = dx,
                                            .d_weight = dw.weight,
                                            .rows = rows,
                                            .width = width});
    }
  }
};

}  // namespace offstage::model
