#pragma once

#include <cstdint>
#include <span>

#include "device/device.hpp"
#include "matmul.hpp"

namespace offstage::model {

/// A linear layer without bias: weight is (out, in), as in Hugging Face files. Each function
/// enqueues one product on `stream`.
struct Linear {
  std::int64_t rows, in, out;

  /// y (rows, out) = x (rows, in) w^T
  template <class T, class Out>
  void forward(device::Stream& stream, std::span<T const> x, std::span<T const> w,
               std::span<Out> y) const {
    using kernels::Transpose;
    kernels::matmul<T, Out>(stream, {.a = x.data(),
                                     .b = w.data(),
                                     .c = y.data(),
                                     .m = rows,
                                     .n = out,
                                     .k = in,
                                     .transpose_a = Transpose::no,
                                     .transpose_b = Transpose::yes});
  }

  /// dx (rows, in) = dy (rows, out) w
  template <class T>
  void backward_input(device::Stream& stream, std::span<T const> dy, std::span<T const> w,
                      std::span<T> dx) const {
    kernels::matmul<T, T>(
        stream, {.a = dy.data(), .b = w.data(), .c = dx.data(), .m = rows, .n = in, .k = out});
  }

  /// dw (out, in) = dy^T x
  template <class T>
  void backward_weight(device::Stream& stream, std::span<T const> dy, std::span<T const> x,
                       std::span<T> dw) const {
    using kernels::Transpose;
    kernels::matmul<T, T>(stream, {.a = dy.data(),
                                   .b = x.data(),
                                   .c = dw.data(),
                                   .m = out,
                                   .n = in,
                                   .k = rows,
                                   .transpose_a = Transpose::yes,
                                   .transpose_b = Transpose::no});
  }
};

}  // namespace offstage::model
