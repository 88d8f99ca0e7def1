#include "train/memory/update_demand.hpp"

#include <algorithm>
#include <cmath>

#include "train/memory/memory_demand.hpp"

namespace offstage::train {
namespace {

/// Elements whose state an update reads from storage, and writes back.
std::int64_t fetched(config::RunConfig const& config, UpdateShape const& shape,
                     plan::MemoryPlan const& memory) {
  if (config.paths.empty() || memory.cached >= memory.subgroups) {
    return 0;
  }
  // In an order that never turns, the extents used last are wanted last.
  bool const thrashes = evicted_first(config) == plan::Evict::oldest &&
                        config.storage.order == plan::UpdateOrder::ascending;
  std::int64_t const kept = thrashes ? 0 : memory.cached * memory.subgroup_elements;
  std::int64_t const waiting = shape.elements - std::llround(config.share.device_resident *
                                                             static_cast<double>(shape.elements));
  return std::max<std::int64_t>(0, waiting - kept);
}

}  // namespace

plan::StorageTraffic storage_traffic(config::RunConfig const& config, UpdateShape const& shape,
                                     plan::MemoryPlan const& memory) {
  plan::StorageTraffic traffic;
  traffic.read =
      static_cast<Bytes>(std::llround(config.optimizer.layout().bytes_per_element() *
                                      static_cast<double>(fetched(config, shape, memory))));
  traffic.written = traffic.read;
  if (config.parameter_home == parameters::Home::storage) {
    traffic.written += shape.parameter_bytes * shape.elements;
  }
  if (config.flushes_fp32()) {
    traffic.spilled = shape.elements;
  } else if (memory.gradient_buffers > 0) {
    traffic.spilled = std::max<std::int64_t>(
        0, shape.elements - memory.gradients_cached * memory.subgroup_elements);
  }
  return traffic;
}

plan::UpdateDemand update_demand(config::RunConfig const& config, UpdateShape const& shape,
                                 bool host_visible) {
  return {.elements = shape.elements,
          .resident = config.share.device_resident,
          .state_bytes =
              config.optimizer.layout().bytes_per_element() +
              static_cast<double>(config.optimizer.split_parameter ? shape.parameter_bytes : 0),
          .gradient_bytes = shape.gradient_bytes,
          .parameter_bytes = shape.parameter_bytes,
          .chunk = lane_settings(config, shape).chunk,
          .direct_copy = host_visible || config.parameter_home != parameters::Home::device,
          .transfers = config.share.transfers,
          .storage = shape.storage};
}

}  // namespace offstage::train
