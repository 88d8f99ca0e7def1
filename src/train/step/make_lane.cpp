#include "train/step/make_lane.hpp"

#include "base/error.hpp"

namespace offstage::train {

// Slots of its own let an update go on under the next forward; activations' memory does not. Only the device
// knows whether there is room for them: other programs may take of the same GPU.
std::unique_ptr<update::DeviceLane> make_lane(config::RunConfig const& config,
                                              UpdateShape const& shape, device::Device& device,
                                              std::span<std::byte> idle, trace::Trace* trace,
                                              device::MemoryCounter* memory) {
  if (!needs_lane(config, device.host_visible())) {
    return nullptr;
  }
  auto settings = lane_settings(config, shape);
  try {
    return std::make_unique<update::DeviceLane>(device, settings, trace, memory);
  } catch (UsageError const&) {
    settings.lent = idle;
    return std::make_unique<update::DeviceLane>(device, settings, trace, memory);
  }
}

}  // namespace offstage::train
