#include "train/step/make_lane.hpp"

#include "base/error.hpp"

namespace offstage::train {

// With places of its own for chunks, an update can go on under the next forward; in activations'
// memory it cannot. Other programs may have taken what the device says is free.
std::unique_ptr<update::DeviceLane> make_lane(config::RunConfig const& config,
                                              UpdateShape const& shape, device::Device& device,
                                              std::span<std::byte> idle, trace::Trace* trace,
                                              device::MemoryCounter* memory) {
  if (!needs_lane(config, device.host_visible())) {
    return nullptr;
  }
  auto settings = lane_settings(config, shape);
  Bytes const free =
      device.capacity() - device.used() - given_gradients(config, shape, device.host_visible());
  if (update::DeviceLane::device_bytes(settings) > free) {
    lend(settings, idle, config);
  }
  try {
    return std::make_unique<update::DeviceLane>(device, settings, trace, memory);
  } catch (UsageError const&) {
    lend(settings, idle, config);
    return std::make_unique<update::DeviceLane>(device, settings, trace, memory);
  }
}

}  // namespace offstage::train
