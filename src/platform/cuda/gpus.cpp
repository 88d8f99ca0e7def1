#include "platform/cuda/gpus.hpp"

#include <fmt/format.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/error.hpp"
#include "base/watch.hpp"
#include "platform/cuda/check.hpp"

#ifdef OFFSTAGE_HAVE_CUDA
#include <cuda_runtime_api.h>
#endif

namespace offstage::cuda {

void require_capable(std::string const& name, Capability const& gpu) {
  if (gpu.major < least_major) {
    throw UsageError{
        fmt::format("{} has compute capability {}.{}, and 8.0 is the least that offstage computes "
                    "on (A100, RTX "
                    "30 and what followed); set device.kind=host, or ask for other GPUs",
                    name, gpu.major, gpu.minor)};
  }
  if (gpu.shared_bytes < least_shared_bytes) {
    throw UsageError{
        fmt::format("{} gives a block {} of shared memory, and {} are needed; set device.kind=host",
                    name, format_bytes(static_cast<Bytes>(gpu.shared_bytes)),
                    format_bytes(static_cast<Bytes>(least_shared_bytes)))};
  }
}

#ifdef OFFSTAGE_HAVE_CUDA

namespace {

/// Of CUDA as it numbers itself: "13.0" of 13000.
std::string version_text(int version) {
  return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

/// 0: there is no driver.
int driver_version() {
  int version{};
  return cudaDriverGetVersion(&version) == cudaSuccess ? version : 0;
}

Gpus none_after(cudaError_t error) {
  if (error == cudaErrorNoDevice) {
    return {.absence = Gpus::Absence::no_device,
            .why =
                "no GPU is to be seen here (nvidia-smi -L lists them; CUDA_VISIBLE_DEVICES may "
                "hide them)"};
  }
  if (error == cudaErrorStubLibrary) {
    return {.absence = Gpus::Absence::unusable,
            .everywhere = true,
            .why =
                "the libcuda.so.1 that is found here is a stub to link with; take its directory "
                "out of LD_LIBRARY_PATH"};
  }
  int const driver = driver_version();
  if (driver == 0) {  // which CUDA counts as one that is too old
    return {.absence = Gpus::Absence::no_driver,
            .why = "there is no NVIDIA driver here (a container gets it by apptainer --nv)"};
  }
  if (error == cudaErrorInsufficientDriver) {
    return {.absence = Gpus::Absence::unusable,
            .everywhere = true,
            .why = fmt::format("the NVIDIA driver here knows CUDA up to {}, and this program was "
                               "built with {}; update the driver, or build with CUDA {}",
                               version_text(driver), version_text(CUDART_VERSION),
                               version_text(driver))};
  }
  return {.absence = Gpus::Absence::unusable,
          .why = fmt::format("the NVIDIA driver here (of CUDA {}) does not work: {}; look at "
                             "nvidia-smi, and whether /dev/nvidia-uvm is there",
                             version_text(driver), cudaGetErrorString(error))};
}

}  // namespace

Gpus find_gpus() {
  Waiting const busy{"the start of the NVIDIA driver"};
  int count{};
  auto const error = cudaGetDeviceCount(&count);
  if (error == cudaSuccess && count > 0) {
    return {.count = count};
  }
  static_cast<void>(cudaGetLastError());  // or the next launch would report it
  return none_after(error == cudaSuccess ? cudaErrorNoDevice : error);
}

GpuMemory memory_of(int index) {
  Waiting const busy{"the start of GPU", index};
  std::size_t available{};
  std::size_t total{};
  auto code = cudaSetDevice(index);
  if (code == cudaSuccess) {
    code = cudaMemGetInfo(&available, &total);
  }
  if (code == cudaErrorDevicesUnavailable) {
    throw IoError{fmt::format(
        "{} does not let this process in ({}): where its compute mode is exclusive, one process "
        "alone holds it, and ranks share it by MPS only; see nvidia-smi -q -d COMPUTE",
        own_gpu(), cudaGetErrorString(code))};
  }
  check(code);
  return {.free = static_cast<Bytes>(available), .total = static_cast<Bytes>(total)};
}

#else

Gpus find_gpus() {
  return {.absence = Gpus::Absence::no_driver,
          .everywhere = true,
          .why = "CUDA was not compiled in (build with nvcc)"};
}

GpuMemory memory_of(int /*index*/) {
  throw CudaError{"not compiled in"};
}

#endif

void ask_for_work_queues() noexcept {
  bool const mps =
      getenv("CUDA_MPS_PIPE_DIRECTORY") != nullptr || access("/tmp/nvidia-mps/control", F_OK) == 0;
  if (!mps) {
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
  }
}

}  // namespace offstage::cuda
