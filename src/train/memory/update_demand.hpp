#pragma once

#include "config/run_config.hpp"
#include "plan/memory.hpp"
#include "plan/share.hpp"
#include "train/memory/update_shape.hpp"

namespace offstage::train {

/// Traffic of an update on a rank's storage paths: the state that is neither resident nor cached,
/// there and back; the gradients that have no place in host memory; and all parameters, if they
/// live on storage. It holds once the cache has settled: an update after a start, or after one that
/// was reverted, may differ.
[[nodiscard]] plan::StorageTraffic storage_traffic(config::RunConfig const& config,
                                                   UpdateShape const& shape,
                                                   plan::MemoryPlan const& memory);

/// Demand of an update on a rank's resources, for the run itself and for `offstage plan`. It is
/// without held gradients. `host_visible`: the device's memory is the host's.
[[nodiscard]] plan::UpdateDemand update_demand(config::RunConfig const& config,
                                               UpdateShape const& shape, bool host_visible);

}  // namespace offstage::train
