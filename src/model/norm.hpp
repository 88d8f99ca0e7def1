#pragma once

#include <cstdint>
#include <span>

#include "base/dtype.hpp"
#include "device/device.hpp"
#include "kernels/norms/layernorm.hpp"
#include "kernels/norms/rmsnorm.hpp"
#include "kernels/pointwise/add.hpp"
#include "model/dims.hpp"
#include "model/slab.hpp"
#include "model/tensors.hpp"

namespace offstage::model {

/// Statistics of each row, which backward needs.
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

/// The sum that a norm makes first: the residual stream before, and the last product's addition to
/// it.
template <class T>
struct Residual {
  std::span<T const> before;  ///< (B, T, C)
  std::span<T const> delta;   ///< (B, T, C); both empty if the sum is there already
};

/// A norm: LayerNorm in gpt2, RMSNorm in llama. Each function enqueues one kernel on `stream`.
struct Norm {
  state::Family family;
  std::int64_t rows, width;
  double epsilon;
  bool after = false;  ///< the norm is of a layer's addition, not of its input

  /// Makes a layer's input: x = before + delta unless these are empty, and y = the norm of x unless
  /// the norm comes after the layer.
  template <class T>
  void take_in(device::Stream& stream, Residual<T> const& residual, std::span<T> x,
               NormTensors<T const> const& w, std::span<T> y,
               NormStatistics<T> const& statistics) const {
    auto const& [before, delta] = residual;
    if (!after) {
      forward<T>(stream, residual, x, w, y, statistics);
    } else if (!delta.empty()) {
      kernels::add<T>(stream, {.x = before, .y = delta, .sum = x, .rows = rows, .width = width});
    }
  }

  /// Computes x = before + delta unless these are empty, then y = the norm of x, which may be
  /// `before`.
  template <class T>
  void forward(device::Stream& stream, Residual<T> const& residual, std::span<T> x,
               NormTensors<T const> const& w, std::span<T> y,
               NormStatistics<T> const& statistics) const {
    auto const& [before, delta] = residual;
    std::span<T const> const from = delta.empty() ? x : before;
    auto const sum = delta.empty() ? std::span<T>{} : x;
    if (family == state::Family::gpt2) {
      kernels::layernorm_forward<T>(stream, {.x = from,
                                             .delta = delta,
                                             .sum = sum,
                                             .weight = w.weight,
                                             .bias = w.bias,
                                             .y = y,
                                             .mean = statistics.mean,
                                             .inverse_deviation = statistics.inverse,
                                             .rows = rows,
                                             .width = width,
                                             .epsilon = epsilon});
    } else {
      kernels::rmsnorm_forward<T>(stream, {.x = from,
                                           .delta = delta,
                                           .sum = sum,
                                           .weight = w.weight,
                                           .y = y,
                                           .inverse_rms = statistics.inverse,
                                           .rows = rows,
                                           .width = width,
                                           .epsilon = epsilon});
    }
  }

  /// Adds the gradient through the norm to dx, which without `add` is overwritten (RMSNorm alone).
  /// dw is overwritten.
  template <class T>
  void backward(device::Stream& stream, std::span<T const> x, NormTensors<T const> const& w,
                std::span<T const> dy, NormStatistics<T> const& statistics, std::span<T> dx,
                NormTensors<T> const& dw, bool add = true) const {
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
                                            .width = width,
                                            .add = add});
    }
  }
};

}  // namespace offstage::model
