#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/dtype.hpp"
#include "device/device.hpp"

struct CUstream_st;  // lets host code name a stream without a CUDA header

namespace offstage::kernels {

/// y <- y + bias in every row, rounded to T.
template <class T>
struct BiasForward {
  std::span<T> y;           ///< (rows, width), in and out
  std::span<T const> bias;  ///< (width)
  std::int64_t rows, width;
};

/// d_bias = sum of dy over rows, in fixed blocks combined in order: the bits do not depend on the
/// number of threads.
template <class T>
struct BiasBackward {
  std::span<T const> dy;  ///< (rows, width)
  std::span<T> d_bias;    ///< (width), overwritten
  std::int64_t rows, width;
};

/// Memory, order, exactness, types, errors: as in rmsnorm.hpp.
namespace ref {
template <class T>
void bias_forward(BiasForward<T> const&);
template <class T>
void bias_backward(BiasBackward<T> const&);
}  // namespace ref
namespace host {
template <class T>
void bias_forward(BiasForward<T> const&);
template <class T>
void bias_backward(BiasBackward<T> const&);
}  // namespace host
namespace cuda {
template <class T>
void bias_forward(BiasForward<T> const&, CUstream_st* stream);
/// `scratch`: FP32 sums of blocks of rows. Errors: also PreconditionError if there is no room for
/// them.
template <class T>
void bias_backward(BiasBackward<T> const&, std::span<std::byte> scratch, CUstream_st* stream);
}  // namespace cuda
template <class T>
void bias_forward(device::Stream&, BiasForward<T> const&);
template <class T>
void bias_backward(device::Stream&, BiasBackward<T> const&);

}  // namespace offstage::kernels
