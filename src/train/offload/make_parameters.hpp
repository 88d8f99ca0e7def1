#pragma once

#include <memory>
#include <vector>

#include "config/run_config.hpp"
#include "device/device.hpp"
#include "parameters/node_memory.hpp"
#include "parameters/working_parameters.hpp"
#include "platform/trace/trace.hpp"
#include "state/rank_link.hpp"
#include "state/shard.hpp"
#include "train/offload/offload.hpp"

namespace offstage::train {

/// Parts from which a rank's working copy is made. Parts given by reference must outlive it.
struct ParameterParts {
  state::ShardMap const& map;
  state::RankLink& link;
  device::Device& device;
  device::Stream& stream;  ///< the model's
  std::vector<state::Subgroup> const& subgroups;
  Offload& offload;
  parameters::NodeMemory* node_memory{};  ///< null unless parameters.home=node
  int slots{};    ///< layers on the device at a time, on all ranks; 0: layers are used in place
  int buffers{};  ///< buffers of the offload's parameters, if they live on storage
  trace::Trace* trace{};
};

/// Makes a working copy that does not live on the device, as parameters.home says. It is not filled
/// yet.
/// Errors: UsageError of the device.
template <class T>
[[nodiscard]] std::unique_ptr<parameters::WorkingParameters<T>> make_parameters(
    config::RunConfig const& config, ParameterParts const& parts);

}  // namespace offstage::train
