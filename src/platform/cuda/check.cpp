#include "platform/cuda/check.hpp"

#ifdef OFFSTAGE_HAVE_CUDA
#include <cuda_runtime_api.h>

#include <cstddef>
#endif

namespace offstage::cuda {

CudaError::CudaError(std::string const& message, std::source_location where)
    : Error{ExitCode::other,
            "CUDA: " + message + " at " + where.file_name() + ":" + std::to_string(where.line())} {}

#ifdef OFFSTAGE_HAVE_CUDA
void check(int code, std::source_location where) {
  if (code != cudaSuccess) {
    throw CudaError{cudaGetErrorString(static_cast<cudaError_t>(code)), where};
  }
}

int device_count() noexcept {
  int count{};
  // Without a driver this is an error, which means: no GPU.
  return cudaGetDeviceCount(&count) == cudaSuccess ? count : 0;
}

Bytes free_bytes(int index) {
  std::size_t available{};
  std::size_t total{};
  check(cudaSetDevice(index));
  check(cudaMemGetInfo(&available, &total));
  return static_cast<Bytes>(available);
}
#else
void check(int code, std::source_location where) {
  if (code != 0) {
    throw CudaError{"not compiled in", where};
  }
}

int device_count() noexcept {
  return 0;
}

Bytes free_bytes(int /*index*/) {
  throw CudaError{"not compiled in"};
}
#endif

}  // namespace offstage::cuda
