#pragma once

#include <span>

#include "base/dtype.hpp"
#include "device/device.hpp"

namespace offstage::kernels {

/// x <- x + y, summed in FP32 (double for double) and rounded to T. Same length, no overlap.
template <class T>
struct Add {
  std::span<T> x;
  std::span<T const> y;
};

/// Memory, order, types, errors: as in rmsnorm.hpp.
namespace ref {
template <class T>
void add(Add<T> const&);
}
namespace host {
template <class T>
void add(Add<T> const&);
}
template <class T>
void add(device::Stream&, Add<T> const&);

}  // namespace offstage::kernels
