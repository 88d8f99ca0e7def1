#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/units.hpp"
#include "config/run_config.hpp"
#include "plan/memory.hpp"
#include "train/memory/device_demand.hpp"

namespace offstage::train {

/// Bytes of a rank by the place in which they live.
struct MemoryRow {
  std::string what;
  Bytes device{}, host{}, storage{};
};

/// Facts on which the plan of a run depends, for the rank with most.
struct MemoryFacts {
  plan::MemoryPlan plan;
  DeviceDemand device;
  std::int64_t shard_elements{};
  Bytes gradient_bytes{};      ///< bytes of an element of the accumulated gradient
  Bytes parameter_bytes{};     ///< bytes of an element of the working copy
  Bytes stored_activations{};  ///< bytes of activations on storage
  std::int64_t spare_slots{};  ///< extents that may have a second version on storage
};

/// A row for each kind of data that a run keeps, except for those that take no memory.
[[nodiscard]] std::vector<MemoryRow> memory_rows(config::RunConfig const& config,
                                                 MemoryFacts const& facts);

struct MemoryLimits {
  Bytes device{};  ///< 0: no limit
  Bytes host{};    ///< limit of a rank
};
/// The rows under a head, with their sums and the limits. A run's header and `offstage plan` show
/// the same table. Storage has its limits by path, which are shown elsewhere.
[[nodiscard]] std::vector<std::string> memory_table(std::vector<MemoryRow> const& rows,
                                                    MemoryLimits const& limits);

}  // namespace offstage::train
