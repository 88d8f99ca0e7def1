#include "train/offload/make_parameters.hpp"

#include <algorithm>

#include "base/dtype.hpp"
#include "base/instantiate.hpp"
#include "parameters/host_home.hpp"
#include "parameters/node_home.hpp"
#include "parameters/stored_home.hpp"
#include "parameters/streamed_parameters.hpp"
#include "train/memory/memory_demand.hpp"

namespace offstage::train {
namespace {

template <class T>
std::unique_ptr<parameters::ShardHome<T>> make_home(config::RunConfig const& config,
                                                    ParameterParts const& parts) {
  int const rank = parts.link.rank();
  if (parts.node_memory != nullptr) {
    return std::make_unique<parameters::NodeHome<T>>(parts.map, rank, *parts.node_memory,
                                                     parts.device, parts.trace);
  }
  if (config.parameter_home != parameters::Home::storage) {
    return std::make_unique<parameters::HostHome<T>>(parts.map, rank, parts.device);
  }
  // One buffer is left to updates. If every extent has its own, they need none.
  int const wished = parameters::host_extents(depth_demand(config, parts.map, 0));
  int const ahead = std::clamp(parts.buffers - 1, 1, wished);
  return std::make_unique<parameters::StoredHome<T>>(parts.map, rank, parts.subgroups,
                                                     parts.offload.parameters(), ahead,
                                                     parts.device.host_visible());
}

}  // namespace

template <class T>
std::unique_ptr<parameters::WorkingParameters<T>> make_parameters(config::RunConfig const& config,
                                                                  ParameterParts const& parts) {
  if (parts.slots == 0 && parts.node_memory != nullptr) {
    return std::make_unique<parameters::NodeParameters<T>>(
        parts.map, parts.link.rank(), *parts.node_memory, parts.device, parts.trace);
  }
  if (parts.slots == 0) {
    return std::make_unique<parameters::HostParameters<T>>(parts.map, parts.device);
  }
  return std::make_unique<parameters::StreamedParameters<T>>(
      parts.map, parts.link, parts.device, parts.stream, make_home<T>(config, parts),
      parameters::StreamSettings{.slots = parts.slots, .trace = parts.trace});
}

OFFSTAGE_INSTANTIATE(OFFSTAGE_RUN_TYPES, make_parameters)

}  // namespace offstage::train
