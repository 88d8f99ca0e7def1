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

/// Facts on which the plan of a run rests, of the rank with most.
struct MemoryFacts {
  plan::MemoryPlan plan;
  DeviceDemand device;
  std::int64_t shard_elements{};
  Bytes gradient_bytes{};      ///< of an element of the accumulated gradient
  Bytes parameter_bytes{};     ///< of one of the working copy
  Bytes stored_activations{};  ///< on storage
  std::int64_t spare_slots{};  ///< extents that may have a second version on storage
};

/// A row for each kind of thing that a run keeps, those that take nothing left out.
[[nodiscard]] std::vector<MemoryRow> memory_rows(config::RunConfig const& config,
                                                 MemoryFacts const& facts);

struct MemoryLimits {
  Bytes device{};  ///< 0: none
  Bytes host{};    ///< of a rank
};
/// The rows under a head, with their sums and the limits: the same before a run and of `offstage
/// plan`. Storage has its limits by path, which are said elsewhere.
[[nodiscard]] std::vector<std::string> memory_table(std::vector<MemoryRow> const& rows,
                                                    MemoryLimits const& limits);

}  // namespace offstage::train
