#include "platform/topology/topology.hpp"

#ifdef OFFSTAGE_HAVE_CUDA
#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <array>
#include <cctype>

#include "base/watch.hpp"
#endif

namespace offstage::topology {

#ifdef OFFSTAGE_HAVE_CUDA
namespace {

/// CUDA writes hexadecimal digits in capitals, sysfs and hwloc do not.
std::string bus_of(int ordinal) {
  std::array<char, 32> text{};
  if (cudaDeviceGetPCIBusId(text.data(), static_cast<int>(text.size()), ordinal) != cudaSuccess) {
    return {};
  }
  std::string bus = text.data();
  for (char& letter : bus) {
    letter = static_cast<char>(std::tolower(static_cast<unsigned char>(letter)));
  }
  return bus;
}

/// Otherwise the next launch would report it.
void forget_error() {
  static_cast<void>(cudaGetLastError());
}

std::string hexadecimal(cudaUUID_t const& uuid) {
  std::string text;
  for (char const byte : uuid.bytes) {
    text += fmt::format("{:02x}", static_cast<unsigned char>(byte));
  }
  return text;
}

}  // namespace

std::vector<VisibleGpu> visible_gpus() {
  Waiting const busy{"the properties of GPUs"};
  std::vector<VisibleGpu> gpus;
  int count{};
  // Without a driver this is an error, which means: no GPU.
  if (cudaGetDeviceCount(&count) != cudaSuccess) {
    forget_error();
    return gpus;
  }
  for (int ordinal = 0; ordinal < count; ++ordinal) {
    cudaDeviceProp properties{};
    std::string const bus = bus_of(ordinal);
    if (!bus.empty() && cudaGetDeviceProperties(&properties, ordinal) == cudaSuccess) {
      gpus.push_back(
          {ordinal, bus, properties.name, hexadecimal(properties.uuid), properties.major});
    } else {
      forget_error();
    }
  }
  return gpus;
}
#else
std::vector<VisibleGpu> visible_gpus() {
  return {};
}
#endif

}  // namespace offstage::topology
