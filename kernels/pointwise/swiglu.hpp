#pragma once

#include <cstdint>
#include <span>

#include "base/dtype.hpp"
#include "device/device.hpp"

struct CUstream_st;  // lets host code name a stream without a CUDA header

namespace offstage::kernels {

/// y = silu(gate) * up, silu(g) = g / (1 + exp(-g)).
template <class T>
struct SwigluForward {
  std::span<T const> gate_up;  ///< (rows, 2 width): a row is gate (width), then up (width)
  std::span<T> y;              ///< (rows, width)
  std::int64_t rows, width;
};

template <class T>
struct SwigluBackward {
  std::span<T const> gate_up;  ///< (rows, 2 width)
  std::span<T const> dy;       ///< (rows, width)
  std::span<T> d_gate_up;      ///< (rows, 2 width); may be the same memory as gate_up
  std::int64_t rows, width;
};

/// Source:  Shazeer, arXiv:2002.05202.
/// Memory, order, types, errors: as in rmsnorm.hpp.
namespace ref {
template <class T>
void swiglu_forward(SwigluForward<T> const&);
template <class T>
void swiglu_backward(SwigluBackward<T> const&);
}  // namespace ref
namespace host {
template <class T>
void swiglu_forward(SwigluForward<T> const&);
template <class T>
void swiglu_backward(SwigluBackward<T> const&);
}  // namespace host
namespace cuda {
template <class T>
void swiglu_forward(SwigluForward<T> const&, CUstream_st* stream);
template <class T>
void swiglu_backward(SwigluBackward<T> const&, CUstream_st* stream);
}  // namespace cuda
template <class T>
void swiglu_forward(device::Stream&, SwigluForward<T> const&);
template <class T>
void swiglu_backward(device::Stream&, SwigluBackward<T> const&);

}  // namespace offstage::kernels
