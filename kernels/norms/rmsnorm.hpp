#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/dtype.hpp"
#include "device/device.hpp"

struct CUstream_st;  // lets host code name a stream without a CUDA header

namespace offstage::kernels {

/// Rows of a norm that are parts of longer rows, as heads of queries are: `groups` of them lie side
/// by side, and the first of the next `groups` begins `pitch` elements after their first.
struct RowPlaces {
  std::int64_t groups = 1;
  std::int64_t pitch = 0;  ///< 0: groups * width, so that all rows follow each other

  /// Elements before row r.
  [[nodiscard]] constexpr std::int64_t begin(std::int64_t r, std::int64_t width) const {
    return pitch == 0 ? r * width : r / groups * pitch + r % groups * width;
  }
  /// Elements from the first row's first to the last row's last.
  [[nodiscard]] constexpr std::int64_t extent(std::int64_t rows, std::int64_t width) const {
    return rows == 0 ? 0 : begin(rows - 1, width) + width;
  }
};

/// y = x / sqrt(mean(x^2) + epsilon) * weight, per row. If `delta` is not empty, sum = x + delta
/// (rounded to T) comes first and takes the place of x: the residual sum of a transformer block.
template <class T>
struct RmsnormForward {
  std::span<T const> x;       ///< (rows, width)
  std::span<T const> delta;   ///< (rows, width) or empty
  std::span<T> sum;           ///< (rows, width), may be the same memory as x; empty if delta is
  std::span<T const> weight;  ///< (width)
  std::span<T> y;             ///< (rows, width)
  std::span<Real<T>> inverse_rms;  ///< (rows), kept for backward
  std::int64_t rows, width;
  double epsilon;
  RowPlaces places{};  ///< places of x, y, delta and sum, whose lengths are then its extent
};

/// dx += gradient through the norm (the gradient of the residual path is in dx already), or dx =
/// it; d_weight = sum over rows. Sums over rows run in fixed blocks combined in order: the bits do
/// not depend on the number of threads.
template <class T>
struct RmsnormBackward {
  std::span<T const> x;                  ///< (rows, width), after the residual sum
  std::span<T const> weight;             ///< (width)
  std::span<T const> dy;                 ///< (rows, width)
  std::span<Real<T> const> inverse_rms;  ///< (rows)
  std::span<T> dx;                       ///< (rows, width), in and out; may be dy unless `add`
  std::span<T> d_weight;                 ///< (width), overwritten
  std::int64_t rows, width;
  bool add = true;     ///< false: dx is overwritten
  RowPlaces places{};  ///< places of x, dy and dx, whose lengths are then its extent
};

/// Source:  Zhang & Sennrich, arXiv:1910.07467.
/// Memory:  ref and host take host addresses, cuda and the dispatching overloads device addresses;
///          the latter enqueue on `stream`, the former return when done. What cuda sums over rows
///          goes through scratch memory, which it owns until its work is done.
/// Exact:   arithmetic in FP32 (double for double), each result rounded to T once. cuda gives the
///          same bits every time, but not those of host: sums have another order, exp() is the
///          GPU's, and a 16-bit NaN has the GPU's bits.
/// Types:   float, bfloat16, float16; double in ref and in the overload, which then calls ref.
/// Errors:  PreconditionError if a view has the wrong length, scratch memory is too small, or for
///          double on cuda; CudaError if a launch fails.
namespace ref {
template <class T>
void rmsnorm_forward(RmsnormForward<T> const&);
template <class T>
void rmsnorm_backward(RmsnormBackward<T> const&);
}  // namespace ref
namespace host {
template <class T>
void rmsnorm_forward(RmsnormForward<T> const&);
template <class T>
void rmsnorm_backward(RmsnormBackward<T> const&);
}  // namespace host
namespace cuda {
template <class T>
void rmsnorm_forward(RmsnormForward<T> const&, CUstream_st* stream);
/// `scratch`: FP32 sums of blocks of rows. Errors: also PreconditionError if there is no room for
/// them.
template <class T>
void rmsnorm_backward(RmsnormBackward<T> const&, std::span<std::byte> scratch, CUstream_st* stream);
}  // namespace cuda
template <class T>
void rmsnorm_forward(device::Stream&, RmsnormForward<T> const&);
template <class T>
void rmsnorm_backward(device::Stream&, RmsnormBackward<T> const&);

}  // namespace offstage::kernels
