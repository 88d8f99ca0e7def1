#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "base/error.hpp"
#include "device/device.hpp"
#include "kernels/linear/bias.hpp"

namespace offstage::kernels {

enum class Transpose { no, yes };

/// C (m, n) = op(A) (m, k) op(B) (k, n) + bias, or C += op(A) op(B), all row-major: A is stored (m,
/// k), or (k, m) if transposed; B is stored (k, n), or (n, k) if transposed. A pitch is the number
/// of elements from one stored row to the next, 0 where rows are dense; whatever lies between rows
/// has no influence and stays as it is.
template <class T, class Out = T>
struct Matmul {
  T const* a;
  T const* b;
  Out* c;
  std::int64_t m, n, k;
  Transpose transpose_a = Transpose::no;
  Transpose transpose_b = Transpose::no;
  Out const* bias = nullptr;  ///< (n), added to every row of C, which must be dense; null: none
  std::int64_t a_pitch = 0, b_pitch = 0, c_pitch = 0;
  bool add = false;  ///< C is added to; Out is float or double, and there is no bias

  /// The length of a row as it is stored.
  [[nodiscard]] std::int64_t a_row() const { return transpose_a == Transpose::no ? k : m; }
  [[nodiscard]] std::int64_t b_row() const { return transpose_b == Transpose::no ? n : k; }
  /// From one row to the next.
  [[nodiscard]] std::int64_t a_stride() const { return a_pitch == 0 ? a_row() : a_pitch; }
  [[nodiscard]] std::int64_t b_stride() const { return b_pitch == 0 ? b_row() : b_pitch; }
  [[nodiscard]] std::int64_t c_stride() const { return c_pitch == 0 ? n : c_pitch; }
};

/// The types of a Matmul: the operands', then Out (base/instantiate.hpp). Double is for ref alone.
#define OFFSTAGE_PRODUCT_TYPES(INSTANTIATE, ...) \
  INSTANTIATE(__VA_ARGS__, float, float)         \
  INSTANTIATE(__VA_ARGS__, bfloat16, bfloat16)   \
  INSTANTIATE(__VA_ARGS__, bfloat16, float)      \
  INSTANTIATE(__VA_ARGS__, float16, float16)     \
  INSTANTIATE(__VA_ARGS__, float16, float)
#define OFFSTAGE_ALL_PRODUCT_TYPES(INSTANTIATE, ...) \
  OFFSTAGE_PRODUCT_TYPES(INSTANTIATE, __VA_ARGS__)   \
  INSTANTIATE(__VA_ARGS__, double, double)

template <class T, class Out>
void require_sizes(Matmul<T, Out> const& product) {
  require(product.m >= 0 && product.n >= 0 && product.k >= 0, "matmul: negative size");
  require(product.a_stride() >= product.a_row() && product.b_stride() >= product.b_row() &&
              product.c_stride() >= product.n,
          "matmul: a pitch is less than a row");
  require(product.bias == nullptr || product.c_stride() == product.n,
          "matmul: with a bias the rows of C must be dense");
  require(!product.add || (product.bias == nullptr && sizeof(Out) >= sizeof(float)),
          "matmul: what is added to is FP32, and has no bias");
}

/// Floating-point operations: a product and a sum for each of m n k; the bias is not counted.
template <class T, class Out>
[[nodiscard]] double flops_of(Matmul<T, Out> const& product) {
  return 2.0 * static_cast<double>(product.m) * static_cast<double>(product.n) *
         static_cast<double>(product.k);
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
/// Exact:   sums run in FP32 (double for double) and are rounded once; ref and host then add the
///          bias and round again, as bias.hpp does. Host products are oneDNN's: equal bits for
///          equal shape, pitches, thread count, instruction set and library; but loops of our own
///          multiply an A of one row by a transposed B, and vectors whose elements are apart in
///          memory. Where the CPU has no
///          bf16 product, and for float16 always, tiles of the operands are widened, multiplied in
///          FP32 and rounded; they take at most 8 MiB. Products of cuda are cuBLASLt's, without
///          TF32: equal bits for equal shape, pitches, alignment of addresses (up to 256 bytes),
///          GPU model and library. The bias is added to the sum before it is rounded, or as on the
///          host where cuBLASLt cannot for this shape.
/// Types:   <float>, <bfloat16>, <bfloat16, float>, <float16>, <float16, float>, <double> (the last
///          is always ref).
/// Adding:  the old entry is one more summand of the FP32 sum, the last one on the host where
///          operands are not widened.
/// Errors:  PreconditionError for negative sizes, a pitch of less than a row, a bias for a C that
///          is not dense or is added to, adding to 16 bits, and for double on cuda; Error if oneDNN
///          refuses, or if memory ends, where the system says so (platform/memory/room.hpp);
///          CudaError if cuBLASLt does.
namespace ref {
template <class T, class Out>
void matmul(Matmul<T, Out> const& product);
}
namespace host {
template <class T, class Out>
void matmul(Matmul<T, Out> const& product);

/// The library that multiplies, and its version: "oneDNN 2.6.0".
[[nodiscard]] std::string matmul_library();

/// Memory of the tiles in which operands of 16 bits are widened; 0 where the CPU multiplies them.
/// Each thread that multiplies keeps those of its largest product. No address is read.
template <class T, class Out>
[[nodiscard]] Bytes widened_bytes(Matmul<T, Out> const& product);

/// Memory that oneDNN takes for FP32 sums of all of C while it computes such a product of 16 bits;
/// 0 if it takes none. It does for sizes that its newer kernels leave out, such as a C of 50257
/// rows. No address is read.
template <class T, class Out>
[[nodiscard]] Bytes sum_bytes(Matmul<T, Out> const& product);
}  // namespace host
namespace cuda {
/// `stream`: of the cuda backend. Types: as above but for double.
template <class T, class Out>
void matmul(device::Stream& stream, Matmul<T, Out> const& product);
}  // namespace cuda
template <class T, class Out>
void matmul(device::Stream& stream, Matmul<T, Out> const& product);

}  // namespace offstage::kernels
