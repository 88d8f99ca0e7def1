#pragma once

#include <cstdint>
#include <span>

#include "base/dtype.hpp"
#include "device/device.hpp"

struct CUstream_st;  // lets host code name a stream without a CUDA header

namespace offstage::kernels {

/// sum = x + y: the residual sum of a block that no norm follows.
template <class T>
struct Add {
  std::span<T const> x;  ///< (rows, width)
  std::span<T const> y;  ///< (rows, width)
  std::span<T> sum;      ///< (rows, width), may be the memory of x or y
  std::int64_t rows, width;
};

/// Exact: the sum in FP32 (double for double), rounded to T: the same bits on all devices.
/// Memory, order, types, errors: as in rmsnorm.hpp.
namespace ref {
template <class T>
void add(Add<T> const&);
}
namespace host {
template <class T>
void add(Add<T> const&);
}
namespace cuda {
template <class T>
void add(Add<T> const&, CUstream_st* stream);
}  // namespace cuda
template <class T>
void add(device::Stream&, Add<T> const&);

}  // namespace offstage::kernels
