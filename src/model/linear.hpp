#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "device/device.hpp"
#include "kernels/linear/bias.hpp"
#include "kernels/linear/matmul.hpp"
#include "model/tensors.hpp"

namespace offstage::model {

/// Order of a weight w in Hugging Face files: out_in is y = x w^T, in_out is y = x w.
enum class WeightLayout { out_in, in_out };
[[nodiscard]] inline WeightLayout weight_layout(state::Family family) {
  return family == state::Family::gpt2 ? WeightLayout::in_out : WeightLayout::out_in;
}

/// A linear layer, with a bias if its tensors have one. Each function enqueues one product on
/// `stream`; backward also enqueues a pass over the rows for the bias. A layer whose rows of y and
/// dy are not dense has no bias.
struct Linear {
  std::int64_t rows, in, out;
  WeightLayout layout;
  std::int64_t out_pitch = 0;  ///< elements from one row of y and dy to the next; 0: out

  /// y (rows, out) = x (rows, in) w + bias.
  template <class T>
  void forward(device::Stream& stream, std::span<T const> x, LinearTensors<T const> const& w,
               std::span<T> y) const {
    multiply<T, T>(stream, x, w.weight, y, w.bias);
  }

  /// The same with results of another type; `bias` may be empty.
  template <class T, class Out>
  void multiply(device::Stream& stream, std::span<T const> x, std::span<T const> weight,
                std::span<Out> y, std::span<Out const> bias = {}) const {
    auto product = forward_product<T, Out>();
    product.a = x.data();
    product.b = weight.data();
    product.c = y.data();
    product.bias = bias.empty() ? nullptr : bias.data();
    kernels::matmul<T, Out>(stream, product);
  }

  /// dx (rows, in) = dy (rows, out) w^T.
  template <class T>
  void backward_input(device::Stream& stream, std::span<T const> dy, std::span<T const> weight,
                      std::span<T> dx) const {
    auto product = input_product<T>();
    product.a = dy.data();
    product.b = weight.data();
    product.c = dx.data();
    kernels::matmul<T, T>(stream, product);
  }

  /// dw = x^T dy, stored as w is; the gradient of the bias is the sum over rows of dy.
  template <class T>
  void backward_weight(device::Stream& stream, std::span<T const> dy, std::span<T const> x,
                       LinearTensors<T> const& dw) const {
    add_weight<T, T>(stream, dy, x, dw.weight, false);
    if (!dw.bias.empty()) {
      kernels::bias_backward<T>(stream, {.dy = dy, .d_bias = dw.bias, .rows = rows, .width = out});
    }
  }

  /// dw = x^T dy, or dw += x^T dy where `add` (Sum is float or double then).
  template <class T, class Sum>
  void add_weight(device::Stream& stream, std::span<T const> dy, std::span<T const> x,
                  std::span<Sum> dw, bool add) const {
    auto product = weight_product<T, Sum>();
    bool const by_out = layout == WeightLayout::out_in;
    product.a = by_out ? dy.data() : x.data();
    product.b = by_out ? x.data() : dy.data();
    product.c = dw.data();
    product.add = add;
    kernels::matmul<T, Sum>(stream, product);
  }

  /// Host memory in which cores widen operands (kernels::host::widened_bytes), of the product that
  /// takes most.
  template <class T>
  [[nodiscard]] Bytes widened_bytes() const {
    return std::max({kernels::host::widened_bytes(forward_product<T, T>()),
                     kernels::host::widened_bytes(input_product<T>()),
                     kernels::host::widened_bytes(weight_product<T, T>())});
  }

  // The products without their addresses.
  template <class T, class Out>
  [[nodiscard]] kernels::Matmul<T, Out> forward_product() const {
    return {.a = nullptr,
            .b = nullptr,
            .c = nullptr,
            .m = rows,
            .n = out,
            .k = in,
            .transpose_b = transposed_if(WeightLayout::out_in),
            .c_pitch = out_pitch};
  }
  template <class T>
  [[nodiscard]] kernels::Matmul<T, T> input_product() const {
    return {.a = nullptr,
            .b = nullptr,
            .c = nullptr,
            .m = rows,
            .n = in,
            .k = out,
            .transpose_b = transposed_if(WeightLayout::in_out),
            .a_pitch = out_pitch};
  }
  template <class T, class Sum>
  [[nodiscard]] kernels::Matmul<T, Sum> weight_product() const {
    bool const by_out = layout == WeightLayout::out_in;
    return {.a = nullptr,
            .b = nullptr,
            .c = nullptr,
            .m = by_out ? out : in,
            .n = by_out ? in : out,
            .k = rows,
            .transpose_a = kernels::Transpose::yes,
            .a_pitch = by_out ? out_pitch : 0,
            .b_pitch = by_out ? 0 : out_pitch};
  }

 private:
  [[nodiscard]] kernels::Transpose transposed_if(WeightLayout stored) const {
    return layout == stored ? kernels::Transpose::yes : kernels::Transpose::no;
  }
};

}  // namespace offstage::model
