#pragma once

#include <cstdint>
#include <span>

#include "base/dtype.hpp"
#include "device/device.hpp"

struct CUstream_st;  // lets host code name a stream without a CUDA header

namespace offstage::kernels {

/// exact: y = x P(X <= x), where X has the standard normal distribution: GELU itself ("gelu").
/// Otherwise y = x / 2 (1 + tanh u), u = sqrt(2 / pi) (x + 0.044715 x^3): GPT-2's approximation
/// ("gelu_new"). Computed as x / (1 + exp(-2 u)), which is the same number and has no cancellation.
template <class T>
struct GeluForward {
  std::span<T const> x;  ///< (rows, width)
  std::span<T> y;        ///< (rows, width)
  std::int64_t rows, width;
  bool exact = false;
};

template <class T>
struct GeluBackward {
  std::span<T const> x;   ///< (rows, width)
  std::span<T const> dy;  ///< (rows, width)
  std::span<T> dx;        ///< (rows, width), overwritten; may be the same memory as x
  std::int64_t rows, width;
  bool exact = false;
};

/// Source:  Hendrycks & Gimpel, arXiv:1606.08415, section 2.
/// Memory, order, exactness, types, errors: as in rmsnorm.hpp.
namespace ref {
template <class T>
void gelu_forward(GeluForward<T> const&);
template <class T>
void gelu_backward(GeluBackward<T> const&);
}  // namespace ref
namespace host {
template <class T>
void gelu_forward(GeluForward<T> const&);
template <class T>
void gelu_backward(GeluBackward<T> const&);
}  // namespace host
namespace cuda {
template <class T>
void gelu_forward(GeluForward<T> const&, CUstream_st* stream);
template <class T>
void gelu_backward(GeluBackward<T> const&, CUstream_st* stream);
}  // namespace cuda
template <class T>
void gelu_forward(device::Stream&, GeluForward<T> const&);
template <class T>
void gelu_backward(device::Stream&, GeluBackward<T> const&);

}  // namespace offstage::kernels
