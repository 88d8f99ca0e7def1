#pragma once

#include <cstdint>
#include <string>

#include "base/units.hpp"
#include "train/report/metrics_records.hpp"
#include "train/report/storage_totals.hpp"

namespace offstage::config {
struct RunConfig;
}

namespace offstage::train {

/// Where the wall time of a run went.
struct PhaseTimes {
  Seconds forward{}, backward{}, update{}, validation{}, total{};
  Seconds checkpoint{};                    ///< that training stood still for
  Seconds saving{};                        ///< of all saves, what went on under steps included
  Bytes update_bytes{};                    ///< storage traffic of the updates, this rank
  std::int64_t overlapped{};               ///< steps whose update began under backward
  std::int64_t redone{};                   ///< of those, steps that were done again or undone
  Seconds redoing{};                       ///< of these, what came after backward
  std::int64_t clipped{};                  ///< steps whose norm was above optimizer.clip
  Bytes checkpoint_bytes{};                ///< written by this rank
  state::ActivationTraffic activations{};  ///< this rank's
  std::int64_t steps{};
  std::int64_t tokens{};  ///< of this start
  double flops{};         ///< likewise, of the model
  MemoryRecord memory{};
};

/// A sentence on what helps where most steps were clipped and their updates could not begin under
/// backward for that; empty: there is no need. Pure.
[[nodiscard]] std::string advice_on_clipping(PhaseTimes const& times,
                                             config::RunConfig const& config);

/// The end table on rank 0: phase, seconds, share, rate; activations that left; the storage paths;
/// host and device memory against their limits.
void print_end_table(PhaseTimes const& times, StorageTotals const& storage);

}  // namespace offstage::train
