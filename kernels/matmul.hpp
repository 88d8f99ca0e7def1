#pragma once

#include <cstdint>

#include "device/device.hpp"

namespace offstage::kernels {

enum class Transpose { no, yes };

/// C (m, n) = op(A) (m, k) op(B) (k, n), all row-major and dense: A is stored (m, k), or (k, m) if
/// transposed; B is stored (k, n), or (n, k) if transposed.
template <class T, class Out = T>
struct Matmul {
  T const* a;
  T const* b;
  Out* c;
  std::int64_t m, n, k;
  Transpose transpose_a = Transpose::no;
  Transpose transpose_b = Transpose::no;
};

/// Memory:  ref and host take host addresses; the dispatching overload device addresses.
/// Order:   ref and host return when done; the overload enqueues on `stream`.
/// Exact:   sums run in FP32 (double for double) and are rounded once. Host products are oneDNN's:
///          equal bits for equal shape, thread count, instruction set and library. Where the CPU
///          has no bf16 product, and for float16 always, tiles of the operands are widened, multiplied
///          in FP32 and rounded; they take at most 8 MiB.
/// Types:   <float>, <bfloat16>, <bfloat16, float>, <float16>, <float16, float>, <double> (the last
///          is always ref).
/// Errors:  PreconditionError for negative sizes; Error if oneDNN refuses.
namespace ref {
template <class T, class Out>
void matmul(Matmul<T, Out> const& product);
}
namespace host {
template <class T, class Out>
void matmul(Matmul<T, Out> const& product);
}
template <class T, class Out>
void matmul(device::Stream& stream, Matmul<T, Out> const& product);

}  // namespace offstage::kernels
