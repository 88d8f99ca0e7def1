#pragma once

#include <source_location>
#include <string>

#include "base/error.hpp"

struct CUstream_st;

namespace offstage::cuda {

/// Names the GPU of this process in its errors: "GPU 0000:17:00.0 (NVIDIA A100) on node7". Called
/// before other threads.
void name_own_gpu(std::string words);
/// The same words; "the GPU" if it has no name yet.
[[nodiscard]] std::string const& own_gpu() noexcept;

/// An error of CUDA or its libraries, with the GPU's name. A cause that no other node has ends the
/// job with 74, one that all have with 64, the rest with 1.
class CudaError : public Error {
 public:
  explicit CudaError(std::string const& message,
                     std::source_location where = std::source_location::current(),
                     ExitCode code = ExitCode::other);
};

/// Throws CudaError unless `code` is cudaSuccess. Takes the number so that the header stands
/// without the CUDA toolkit.
void check(int code, std::source_location where = std::source_location::current());

/// While one of these exists, every launch of the process returns when its work is done, so that
/// what fails is what is named (device.check=launches). A launch knows its stream by the handle
/// alone, so the process counts them.
/// Threads: any.
class WaitForLaunches {
 public:
  WaitForLaunches() noexcept;
  ~WaitForLaunches();
  WaitForLaunches(WaitForLaunches const&) = delete;
  WaitForLaunches& operator=(WaitForLaunches const&) = delete;
};
[[nodiscard]] bool launches_wait() noexcept;

/// One launch of a kernel, made between construction and finish(): what fails is named by the
/// kernel and by `where`, the place of the launch with the function that makes it.
class Launch {
 public:
  /// `kernel`: its address on the host.
  Launch(void const* kernel, CUstream_st* stream, std::source_location where);
  /// Launch of a library's kernels, which `name` says in words.
  Launch(std::string name, CUstream_st* stream,
         std::source_location where = std::source_location::current());
  /// Throws CudaError unless `code` is cudaSuccess.
  void check(int code) const;
  /// Errors: CudaError: the launch failed, or the kernel did if launches are waited for. (Else that
  /// shows later.)
  void finish() const;

 private:
  void const* kernel_;
  CUstream_st* stream_;
  std::source_location where_;
  /// Known before: a kernel that has failed takes all calls with it; empty: asked for later.
  std::string name_;
};

}  // namespace offstage::cuda
