#include "train/memory/update_shape.hpp"

#include <algorithm>
#include <cmath>

#include "plan/places_in_turn.hpp"
#include "update/gradients/held_gradients.hpp"

namespace offstage::train {
namespace {

/// Workers for a state in host memory, where nothing is fetched or flushed: two keep one side of
/// the update busy, and four both sides.
constexpr int host_workers = 2;
constexpr int shared_workers = 4;

/// Returns whether the device updates, or may update.
bool takes_part(config::RunConfig const& config) {
  return config.share.device_share.value_or(1.0) > 0.0 || config.share.device_resident > 0.0;
}

/// Elements that the device updates at most.
std::int64_t most_updated(config::RunConfig const& config, UpdateShape const& shape) {
  auto const elements = static_cast<double>(shape.elements);
  double const resident = elements * config.share.device_resident;
  double const updated = resident + (elements - resident) * config.share.device_share.value_or(1.0);
  // The device's share is whole subgroups.
  auto const most = static_cast<std::int64_t>(std::ceil(updated)) + shape.subgroup_elements;
  return std::min(most, shape.elements);
}

Bytes most_gradients(config::RunConfig const& config, UpdateShape const& shape) {
  if (shape.sums_on_device) {
    return shape.elements * shape.held_bytes();
  }
  return most_updated(config, shape) * shape.gradient_bytes;
}

}  // namespace

std::int64_t UpdateShape::held_elements(Bytes held) const {
  Bytes const norms = update::HeldGradients::norm_bytes(elements);
  return std::max<Bytes>(0, held - norms) / held_bytes();
}

std::int64_t UpdateShape::staying_elements(Bytes held) const {
  std::int64_t const room = held_elements(held);
  return room - reserved_in_turn(room);
}

std::int64_t UpdateShape::reserved_in_turn(std::int64_t room) const {
  return room < elements ? std::min(room, plan::largest_block(blocks, elements)) : 0;
}

bool needs_lane(config::RunConfig const& config, bool host_visible) {
  bool const parameters_travel = !host_visible && config.parameter_home == parameters::Home::device;
  return parameters_travel || config.share.device_resident > 0.0 ||
         config.share.device_share.value_or(host_visible ? 0.0 : 1.0) > 0.0;
}

int update_workers(config::RunConfig const& config, plan::MemoryPlan const& memory,
                   bool host_visible) {
  if (memory.buffers > 0) {
    return memory.buffers;
  }
  return needs_lane(config, host_visible) ? shared_workers : host_workers;
}

update::DeviceLaneSettings lane_settings(config::RunConfig const& config,
                                         UpdateShape const& shape) {
  update::DeviceLaneSettings settings;
  settings.chunk = std::min(config.share.device_chunk, shape.subgroup_elements);
  // The cores' parameters have places of their own.
  settings.buffers = takes_part(config) ? settings.buffers : 0;
  settings.layout = config.optimizer.layout();
  settings.gradient_bytes = shape.gradient_bytes;
  settings.parameter_bytes = shape.parameter_bytes;
  settings.parameters_on_host = config.parameter_home != parameters::Home::device;
  return settings;
}

void lend(update::DeviceLaneSettings& lane, std::span<std::byte> idle,
          config::RunConfig const& config) {
  lane.lent = {};
  Bytes const all = update::DeviceLane::device_bytes(lane);
  Bytes const own = config.overlap == config::Switch::on ? all / std::max(1, lane.buffers) : 0;
  lane.lent = idle.first(static_cast<std::size_t>(std::min(std::ssize(idle), all - own)));
}

Bytes gradient_room(config::RunConfig const& config, UpdateShape const& shape, bool host_visible,
                    Bytes free) {
  if (host_visible || config.flushes_fp32() || !(takes_part(config) || shape.sums_on_device)) {
    return 0;
  }
  return std::min(most_gradients(config, shape), config.share.device_gradients.value_or(free));
}

Bytes given_gradients(config::RunConfig const& config, UpdateShape const& shape,
                      bool host_visible) {
  Bytes const room = gradient_room(config, shape, host_visible, 0);
  return room > 0 ? room + update::HeldGradients::norm_bytes(shape.elements) : 0;
}

}  // namespace offstage::train
