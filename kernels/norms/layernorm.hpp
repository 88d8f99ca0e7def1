#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/dtype.hpp"
#include "device/device.hpp"

struct CUstream_st;  // lets host code name a stream without a CUDA header

namespace offstage::kernels {

/// y = (x - mean(x)) / sqrt(variance(x) + epsilon) * weight + bias, per row; the variance divides
/// by width. If `delta` is not empty, sum = x + delta (rounded to T) comes first and takes the
/// place of x: the residual sum of a transformer block.
template <class T>
struct LayernormForward {
  std::span<T const> x;      ///< (rows, width)
  std::span<T const> delta;  ///< (rows, width) or empty
  std::span<T> sum;          ///< (rows, width), may be the same memory as x; empty if delta is
  std::span<T const> weight, bias;       ///< (width)
  std::span<T> y;                        ///< (rows, width)
  std::span<Real<T>> mean;               ///< (rows), kept for backward
  std::span<Real<T>> inverse_deviation;  ///< (rows), kept for backward
  std::int64_t rows, width;
  double epsilon;
};

/// dx += gradient through the norm (the gradient of the residual path is in dx already);
/// d_weight and d_bias = sums over rows, in fixed blocks combined in order: the bits do not depend
/// on the number of threads.
template <class T>
struct LayernormBackward {
  std::span<T const> x;                        ///< (rows, width), after the residual sum
  std::span<T const> weight;                   ///< (width)
  std::span<T const> dy;                       ///< (rows, width)
  std::span<Real<T> const> mean;               ///< (rows)
  std::span<Real<T> const> inverse_deviation;  ///< (rows)
  std::span<T> dx;                             ///< (rows, width), in and out
  std::span<T> d_weight, d_bias;               ///< (width), overwritten
  std::int64_t rows, width;
};

/// Source:  Ba, Kiros & Hinton, arXiv:1607.06450.
/// Memory, order, exactness, types, errors: as in rmsnorm.hpp.
namespace ref {
template <class T>
void layernorm_forward(LayernormForward<T> const&);
template <class T>
void layernorm_backward(LayernormBackward<T> const&);
}  // namespace ref
namespace host {
template <class T>
void layernorm_forward(LayernormForward<T> const&);
template <class T>
void layernorm_backward(LayernormBackward<T> const&);
}  // namespace host
namespace cuda {
template <class T>
void layernorm_forward(LayernormForward<T> const&, CUstream_st* stream);
/// `scratch`: FP32 sums of blocks of rows. Errors: also PreconditionError if there is no room for
/// them.
template <class T>
void layernorm_backward(LayernormBackward<T> const&, std::span<std::byte> scratch,
                        CUstream_st* stream);
}  // namespace cuda
template <class T>
void layernorm_forward(device::Stream&, LayernormForward<T> const&);
template <class T>
void layernorm_backward(device::Stream&, LayernormBackward<T> const&);

}  // namespace offstage::kernels
