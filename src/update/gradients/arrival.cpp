#include "update/gradients/arrival.hpp"

#include "base/watch.hpp"

namespace offstage::update {

std::span<std::byte const> GradientArrival::wait() const {
  if (way_.arrived != nullptr) {
    Waiting const waiting{"the gradient from the device, of layer", layer_};
    way_.arrived->wait();
    if (way_.trace != nullptr && way_.moved > 0) {
      way_.trace->span("gradients to host", "copy", way_.begun->when(), way_.arrived->when(),
                       layer_, way_.moved);
    }
    if (way_.memory != nullptr) {
      way_.memory->used(device::MemoryCounter::User::layer_gradient, way_.taken_bytes, way_.taken,
                        way_.arrived->when());
    }
  }
  return part_.memory().first(static_cast<std::size_t>(bytes_));
}

}  // namespace offstage::update
