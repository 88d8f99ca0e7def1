#pragma once

#include <cstddef>
#include <string>

#include "base/units.hpp"

namespace offstage::cuda {

/// The GPUs that this process can use, or why there are none.
struct Gpus {
  enum class Absence {
    none,       ///< there are some
    no_driver,  ///< nothing here was made to compute on a GPU, or this program was not
    no_device,  ///< the driver is well and shows none
    unusable    ///< a driver is there, and it is too old or fails
  };
  int count{};
  Absence absence = Absence::none;
  /// The program or its environment is the cause: other nodes would be no better.
  bool everywhere{};
  /// In words, with both versions where the driver is too old; empty if there are some.
  std::string why{};
};
[[nodiscard]] Gpus find_gpus();

/// Asks CUDA for as many work queues as it has, unless the environment says how many. Streams that
/// share a queue wait for each other: of the 8 that it has otherwise, a rank with up to 12 streams
/// would let transfers wait behind the model's kernels. Not under MPS, whose server has room for 60
/// processes with 2 queues each, and for fewer with more. To be called before other threads and the
/// first use of CUDA. Source: CUDA C++ Programming Guide, "CUDA Environment Variables",
/// CUDA_DEVICE_MAX_CONNECTIONS (1 to 32); Multi-Process Service, "Client-Server Connection Limits".
void ask_for_work_queues() noexcept;

/// The compute capability that products of 16-bit types on tensor cores need.
constexpr int least_major = 8;

/// Properties that decide whether Offstage can compute on a GPU.
struct Capability {
  int major{};
  int minor{};
  std::size_t shared_bytes{};  ///< shared memory that a block gets if it asks for it
};
/// Shared memory of a block with which every operation has a kernel: the GPUs of capability 8.6,
/// 8.9 and 12.0 have no more.
constexpr std::size_t least_shared_bytes = std::size_t{99} * 1024;
/// `name`: of the GPU, for the error. Errors: UsageError: below capability 8.0, which products of
/// 16-bit types on tensor cores need, or with less shared memory.
void require_capable(std::string const& name, Capability const& gpu);

/// Memory of a GPU.
struct GpuMemory {
  Bytes free{};
  Bytes total{};
};
/// The memory of this GPU, which becomes the calling thread's current one. A process that has not
/// used the GPU yet opens it, which takes some of that.
/// Errors: CudaError; IoError if another process holds it, as its mode lets one alone do.
[[nodiscard]] GpuMemory memory_of(int index);

}  // namespace offstage::cuda
