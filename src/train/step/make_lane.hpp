#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "config/run_config.hpp"
#include "device/device.hpp"
#include "device/memory_counter.hpp"
#include "platform/trace/trace.hpp"
#include "train/memory/update_shape.hpp"
#include "update/device_lane.hpp"

namespace offstage::train {

/// Makes the lane of a run's updates on the device. Returns null if no update needs one: then the
/// cores update, and write new parameters where they are read. `idle`: device memory that no one
/// uses while an update computes; chunk buffers are taken from it if the device has no room for its
/// own.
/// Errors: UsageError of the device.
[[nodiscard]] std::unique_ptr<update::DeviceLane> make_lane(
    config::RunConfig const& config, UpdateShape const& shape, device::Device& device,
    std::span<std::byte> idle, trace::Trace* trace = nullptr,
    device::MemoryCounter* memory = nullptr);

}  // namespace offstage::train
