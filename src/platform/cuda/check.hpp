#pragma once

#include <source_location>
#include <string>

#include "base/error.hpp"
#include "base/units.hpp"

namespace offstage::cuda {

class CudaError : public Error {
 public:
  explicit CudaError(std::string const& message,
                     std::source_location where = std::source_location::current());
};

/// Throws CudaError unless `code` is cudaSuccess. Takes the number so that the header stands
/// without the CUDA toolkit.
void check(int code, std::source_location where = std::source_location::current());

/// GPUs that this process can use; 0 without a driver or where CUDA was not compiled in.
[[nodiscard]] int device_count() noexcept;

/// What this GPU, which becomes the calling thread's current one, has free now. A process that has not used it yet
/// opens it, which takes some of that. Errors: CudaError.
[[nodiscard]] Bytes free_bytes(int index);

}  // namespace offstage::cuda
