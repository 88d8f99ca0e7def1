#include "platform/cuda/check.hpp"

#include <atomic>
#include <utility>

#ifdef OFFSTAGE_HAVE_CUDA
#include <cuda_runtime_api.h>
#include <cxxabi.h>
#include <fmt/format.h>

#include <cstdlib>
#include <memory>

#include "base/version.hpp"
#endif

namespace offstage::cuda {
namespace {

std::atomic<int> waiting{0};

std::string& name_of_own() {
  static std::string name = "the GPU";
  return name;
}

}  // namespace

void name_own_gpu(std::string words) {
  name_of_own() = std::move(words);
}

std::string const& own_gpu() noexcept {
  return name_of_own();
}

CudaError::CudaError(std::string const& message, std::source_location where, ExitCode code)
    : Error{code, "CUDA: " + message + " at " + where.file_name() + ":" +
                      std::to_string(where.line()) + " (" + own_gpu() + ")"} {}

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

/// Errors of a build whose code this GPU or its driver does not take.
bool is_of_build(int code) {
  switch (code) {
    case cudaErrorNoKernelImageForDevice:
    case cudaErrorInvalidDeviceFunction:
    case cudaErrorUnsupportedPtxVersion:
    case cudaErrorJitCompilerNotFound:
    case cudaErrorJitCompilationDisabled:
      return true;
    default:
      return false;
  }
}

/// Errors of hardware that fails.
bool is_of_hardware(int code) {
  return code == cudaErrorECCUncorrectable || code == cudaErrorDevicesUnavailable;
}

ExitCode exit_code_of(int code) {
  return is_of_build(code)      ? ExitCode::usage
         : is_of_hardware(code) ? ExitCode::io
                                : ExitCode::other;
}

std::string text_of(int code) {
  std::string const text = cudaGetErrorString(static_cast<cudaError_t>(code));
  if (is_of_build(code)) {
    return fmt::format(
        "{} (this build has code for {}; build with "
        "-DCMAKE_CUDA_ARCHITECTURES=native, or for a newer GPU with a newer CUDA "
        "toolkit)",
        text, gpu_architectures());
  }
  if (is_of_hardware(code)) {
    return text +
           " (dmesg names an Xid where the GPU failed; Slurm: --exclude leaves its node out)";
  }
  if (is_of_kernel(code) && !launches_wait()) {
    return text +
           " (device.check=launches finds the kernel; dmesg names an Xid if the GPU itself failed)";
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
    throw CudaError{text_of(code), where, exit_code_of(code)};
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
                    where_, exit_code_of(code)};
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
