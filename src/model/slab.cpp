#include "model/slab.hpp"

#include <algorithm>
#include <array>

namespace offstage::model {
namespace {

constexpr std::array<std::byte, 64 * KiB> zeros{};

}  // namespace

void zero(device::Stream& stream, std::span<std::byte> memory) {
  if (memory.empty()) {
    return;
  }
  std::size_t done = std::min(memory.size(), zeros.size());
  stream.copy(memory.data(), zeros.data(), static_cast<Bytes>(done), device::Copy::host_to_device);
  while (done < memory.size()) {  // the link to the host is for others
    std::size_t const bytes = std::min(done, memory.size() - done);
    stream.copy(memory.data() + done, memory.data(), static_cast<Bytes>(bytes),
                device::Copy::device_to_device);
    done += bytes;
  }
}

}  // namespace offstage::model
