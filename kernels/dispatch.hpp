#pragma once

#include <type_traits>
#include <utility>

#include "base/error.hpp"
#include "device/device.hpp"

struct CUstream_st;  // lets host code name a stream without a CUDA header

namespace offstage::kernels {

#ifdef OFFSTAGE_HAVE_CUDA
constexpr bool have_cuda = true;
#else
constexpr bool have_cuda = false;
#endif

/// Queues `host()` on the host backend, where it counts as so much work; on cuda calls `cuda(native
/// stream)`, which is instantiated only where it is linked. T: the elements' type.
/// Errors: PreconditionError for double on cuda; UsageError if CUDA was not compiled in.
template <class T, class Host, class Cuda>
void launch_on(device::Stream& stream, Host host, Cuda const& cuda, device::Work work = {}) {
  if (stream.kind() == device::Kind::host) {
    stream.enqueue(std::move(host), work);
  } else if constexpr (std::is_same_v<T, double>) {
    throw PreconditionError{"double is for the FP64 reference, which runs on the host alone"};
  } else if constexpr (have_cuda) {
    cuda(static_cast<CUstream_st*>(stream.native()));
  } else {
    throw UsageError{"CUDA was not compiled in; write device.kind=host, or build with nvcc"};
  }
}

}  // namespace offstage::kernels
