#include "platform/cuda/check.hpp"

#include <atomic>
#include <utility>

#ifdef OFFSTAGE_HAVE_CUDA
#include <cuda_runtime_api.h>
#include <cxxabi.h>
#include <fmt/format.h>

#include <cstdlib>
#include <memory>
#endif

namespace offstage::cuda {
namespace {

std::atomic<int> waiting{0};

}  // namespace

CudaError::CudaError(std::string const& message, std::source_location where)
    : Error{ExitCode::other,
            "CUDA: " + message + " at " + where.file_name() + ":" + std::to_string(where.line())} {}

WaitForLaunches::WaitForLaunches() noexcept {
  ++waiting;
}

WaitForLaunches::~WaitForLaunches() {
  --waiting;
}

bool launches_wait() noexcept {
  return waiting > 0;
}

#ifdef OFFSTAGE_HAVE_CUDA

namespace {

/// Errors of a kernel that ran, which every later call reports.
bool is_of_kernel(int code) {
  switch (code) {
    case cudaErrorIllegalAddress:
    case cudaErrorLaunchTimeout:
    case cudaErrorAssert:
    case cudaErrorHardwareStackError:
    case cudaErrorIllegalInstruction:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorLaunchFailure:
      return true;
    default:
      return false;
  }
}

std::string text_of(int code) {
  std::string const text = cudaGetErrorString(static_cast<cudaError_t>(code));
  if (code == cudaErrorNoKernelImageForDevice || code == cudaErrorInvalidDeviceFunction) {
    return text + " (this build has code for other GPUs: CMAKE_CUDA_ARCHITECTURES)";
  }
  if (is_of_kernel(code) && !launches_wait()) {
    return text + " (device.check=launches finds the kernel)";
  }
  return text;
}

/// "a kernel" if CUDA does not tell.
std::string name_of(void const* kernel) {
  char const* mangled{};
#if CUDART_VERSION >= 12030
  if (cudaFuncGetName(&mangled, kernel) != cudaSuccess) {
    static_cast<void>(cudaGetLastError());  // or the launch would report it
    mangled = nullptr;
  }
#endif
  if (mangled == nullptr) {
    return "a kernel";
  }
  int status{};
  std::unique_ptr<char, void (*)(void*)> const plain{
      abi::__cxa_demangle(mangled, nullptr, nullptr, &status), std::free};
  return status == 0 ? plain.get() : mangled;
}

}  // namespace

void check(int code, std::source_location where) {
  if (code != cudaSuccess) {
    throw CudaError{text_of(code), where};
  }
}

Launch::Launch(void const* kernel, CUstream_st* stream, std::source_location where)
    : kernel_{kernel}, stream_{stream}, where_{where} {
  if (launches_wait()) {
    name_ = name_of(kernel);
  }
}

Launch::Launch(std::string name, CUstream_st* stream, std::source_location where)
    : kernel_{}, stream_{stream}, where_{where}, name_{std::move(name)} {}

void Launch::check(int code) const {
  if (code != cudaSuccess) {
    std::string const text = text_of(code);
    throw CudaError{fmt::format("{}: {}, launched by {}", name_.empty() ? name_of(kernel_) : name_,
                                text, where_.function_name()),
                    where_};
  }
}

void Launch::finish() const {
  check(cudaGetLastError());
  if (launches_wait()) {
    check(cudaStreamSynchronize(stream_));
  }
}

#else

void check(int code, std::source_location where) {
  if (code != 0) {
    throw CudaError{"not compiled in", where};
  }
}

Launch::Launch(void const* kernel, CUstream_st* stream, std::source_location where)
    : kernel_{kernel}, stream_{stream}, where_{where} {}

Launch::Launch(std::string name, CUstream_st* stream, std::source_location where)
    : kernel_{}, stream_{stream}, where_{where}, name_{std::move(name)} {}

void Launch::check(int code) const {
  offstage::cuda::check(code, where_);
}

void Launch::finish() const {
  check(1);
}

#endif

}  // namespace offstage::cuda
