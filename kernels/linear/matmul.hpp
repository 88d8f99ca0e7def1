#pragma once

#include <cstddef>
#include <cstdint>

#include "base/error.hpp"
#include "device/device.hpp"
#include "kernels/linear/bias.hpp"

namespace offstage::kernels {

enum class Transpose { no, yes };

/// C (m, n) = op(A) (m, k) op(B) (k, n) + bias, all row-major and dense: A is stored (m, k), or (k, m) if
/// transposed; B is stored (k, n), or (n, k) if transposed.
template <class T, class Out = T>
struct Matmul {
  T const* a;
  T const* b;
  Out* c;
  std::int64_t m, n, k;
  Transpose transpose_a = Transpose::no;
  Transpose transpose_b = Transpose::no;
  Out const* bias = nullptr;  ///< (n), added to every row of C; null: none
};

template <class T, class Out>
void require_sizes(Matmul<T, Out> const& product) {
  require(product.m >= 0 && product.n >= 0 && product.k >= 0, "matmul: negative size");
}

/// The bias by itself, for a product that was computed without.
template <class T, class Out>
[[nodiscard]] BiasForward<Out> bias_of(Matmul<T, Out> const& product) {
  return {.y = {product.c, static_cast<std::size_t>(product.m * product.n)},
          .bias = {product.bias, static_cast<std::size_t>(product.n)},
          .rows = product.m,
          .width = product.n};
}

/// Memory:  ref and host take host addresses; cuda and the dispatching overload device addresses.
/// Order:   ref and host return when done; cuda and the overload enqueue on `stream`.
/// Exact:   sums run in FP32 (double for double) and are rounded once; ref and host then add the bias and
///          round again, as bias.hpp does. Host products are oneDNN's: equal bits for equal shape, thread
///          count, instruction set and library. Where the CPU has no bf16 product, and for float16 always,
///          tiles of the operands are widened, multiplied in FP32 and rounded; they take at most 8 MiB.
///          Products of cuda are cuBLASLt's, without TF32: equal bits for equal shape, alignment of
///          addresses (up to 256 bytes), GPU model and library. The bias is added to the sum before it is
///          rounded, or as on the host where cuBLASLt cannot for this shape.
/// Types:   <float>, <bfloat16>, <bfloat16, float>, <float16>, <float16, float>, <double> (the last
///          is always ref).
/// Errors:  PreconditionError for negative sizes, and for double on cuda; Error if oneDNN refuses; CudaError if
///          cuBLASLt does.
namespace ref {
template <class T, class Out>
void matmul(Matmul<T, Out> const& product);
}
namespace host {
template <class T, class Out>
void matmul(Matmul<T, Out> const& product);
}
namespace cuda {
/// `stream`: of the cuda backend. Types: as above but for double.
template <class T, class Out>
void matmul(device::Stream& stream, Matmul<T, Out> const& product);
}  // namespace cuda
template <class T, class Out>
void matmul(device::Stream& stream, Matmul<T, Out> const& product);

}  // namespace offstage::kernels
