#pragma once

#include "config/run_config.hpp"
#include "plan/memory.hpp"
#include "plan/share.hpp"
#include "train/memory/update_shape.hpp"

namespace offstage::train {

/// What an update moves on a rank's storage paths: the state that is neither resident nor cached,
/// there and back; the gradients that have no place in host memory; and all parameters, where those
/// live on storage. Once the cache has settled: an update after a start or after one that was taken
/// back may differ.
[[nodiscard]] plan::StorageTraffic storage_traffic(config::RunConfig const& config,
                                                   UpdateShape const& shape,
                                                   plan::MemoryPlan const& memory);

/// What an update asks of a rank's resources: for the run itself and for `offstage plan`. No
/// gradients are held. `host_visible`: the device's memory is the host's.
[[nodiscard]] plan::UpdateDemand update_demand(config::RunConfig const& config,
                                               UpdateShape const& shape, bool host_visible);

}  // namespace offstage::train
