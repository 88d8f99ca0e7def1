#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <source_location>

#include "platform/cuda/check.hpp"
#include "platform/cuda/gpus.hpp"

/// Parts of a kernel beyond C++: its launch and its shared memory. They are written once, because
/// without nvcc the same sources are compiled for the CPU (tests/cuda_on_cpu), where tests run
/// them.
namespace offstage::kernels::cuda {
namespace {

/// Blocks of a launch, threads of each, and the bytes that shared_memory() gives it. `where`: what
/// an error names, the call that makes the grid or, of a function that returns one, that
/// function's.
struct Grid {
  Grid(dim3 of_blocks, dim3 of_threads, std::size_t shared = 0,
       std::source_location at = std::source_location::current())
      : blocks{of_blocks}, threads{of_threads}, shared_bytes{shared}, where{at} {}

  dim3 blocks;
  dim3 threads;
  std::size_t shared_bytes;
  std::source_location where;
};

/// The shared memory that a block can have on the calling thread's current device.
inline std::size_t most_shared_bytes() {
  int device{};
  int bytes{};
  offstage::cuda::check(cudaGetDevice(&device));
  offstage::cuda::check(
      cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device));
  return static_cast<std::size_t>(bytes);
}

/// Whether a block can have so much of it, what its kernel declares included.
inline bool has_room(std::size_t shared_bytes) {
  return shared_bytes <= offstage::cuda::least_shared_bytes || shared_bytes <= most_shared_bytes();
}

#ifdef __CUDACC__

/// Shared memory that a block gets without asking for more: 48 KiB, less room for what kernels
/// declare themselves.
constexpr std::size_t usual_shared_bytes = 32 * 1024;

/// Queues the kernel. Errors: CudaError that names it, for a launch that cannot be.
template <class... Parameters, class... Arguments>
void launch(void (*kernel)(Parameters...), Grid const& grid, CUstream_st* stream,
            Arguments... arguments) {
  offstage::cuda::Launch const call{reinterpret_cast<void const*>(kernel), stream, grid.where};
  if (grid.shared_bytes > usual_shared_bytes) {
    call.check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                    static_cast<int>(grid.shared_bytes)));
  }
  kernel<<<grid.blocks, grid.threads, grid.shared_bytes, stream>>>(
      static_cast<Parameters>(arguments)...);
  call.finish();
}

/// The block's own Grid::shared_bytes, aligned to 128 bytes.
__device__ inline std::byte* shared_memory() {
  extern __shared__ __align__(128) std::byte offstage_shared_memory[];
  return offstage_shared_memory;
}

#endif

}  // namespace
}  // namespace offstage::kernels::cuda
