#include "train/step/make_lane.hpp"

#include "base/error.hpp"

namespace offstage::train {

// With places of its own for chunks, an update can go on under the next forward; in activations'
// memory it cannot. Only the device knows whether there is room, because other programs may use the
// same GPU.
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
