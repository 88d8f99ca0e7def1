#include "model/slab.hpp"

#include <algorithm>
#include <array>

namespace offstage::model {
namespace {

constexpr std::array<std::byte, 64 * KiB> zeros{};

}  // namespace

void zero(device::Stream& stream, std::span<std::byte> memory) {
  while (!memory.empty()) {
    std::size_t const bytes = std::min(memory.size(), zeros.size());
    stream.copy(memory.data(), zeros.data(), static_cast<Bytes>(bytes),
                device::Copy::host_to_device);
    memory = memory.subspan(bytes);
  }
}

}  // namespace offstage::model
