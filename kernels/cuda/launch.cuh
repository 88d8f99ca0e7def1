#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

#include "platform/cuda/check.hpp"

/// What a kernel is made of beyond C++: its launch and its shared memory. Written once, because without nvcc the
/// same sources are compiled for the CPU (tests/cuda_on_cpu), where tests run them.
#ifdef __CUDACC__

namespace offstage::kernels::cuda {
namespace {

/// Blocks of a launch, threads of each, and the bytes that shared_memory() gives it.
struct Grid {
  dim3 blocks;
  dim3 threads;
  std::size_t shared_bytes = 0;
};

/// What a block gets without asking for more: 48 KiB, less room for what kernels declare themselves.
constexpr std::size_t usual_shared_bytes = 32 * 1024;

/// Queues the kernel. Errors: CudaError, for a launch that cannot be.
template <class... Parameters, class... Arguments>
void launch(void (*kernel)(Parameters...), Grid const& grid, CUstream_st* stream,
            Arguments... arguments) {
  if (grid.shared_bytes > usual_shared_bytes) {
    offstage::cuda::check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                               static_cast<int>(grid.shared_bytes)));
  }
  kernel<<<grid.blocks, grid.threads, grid.shared_bytes, stream>>>(
      static_cast<Parameters>(arguments)...);
  offstage::cuda::check(cudaGetLastError());
}

/// The block's own Grid::shared_bytes, aligned to 128 bytes.
__device__ inline std::byte* shared_memory() {
  extern __shared__ __align__(128) std::byte offstage_shared_memory[];
  return offstage_shared_memory;
}

}  // namespace
}  // namespace offstage::kernels::cuda

#endif
