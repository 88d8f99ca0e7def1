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

/// Uses of a run's wall time.
struct PhaseTimes {
  Seconds forward{}, backward{}, update{}, validation{}, total{};
  Seconds checkpoint{};       ///< time for which training stood still while saves were made
  Seconds before_saves{};     ///< time for which it stood still for updates before them
  Seconds saving{};           ///< time of all saves, with the parts under steps
  Bytes update_bytes{};       ///< storage traffic while steps waited for updates, this rank
  std::int64_t overlapped{};  ///< steps whose update began under backward
  std::int64_t redone{};      ///< steps among these whose update was made again or reverted
  Seconds redoing{};          ///< time of these updates after backward
  std::int64_t clipped{};     ///< steps whose norm was above optimizer.clip
  Bytes checkpoint_bytes{};   ///< written by this rank
  state::ActivationTraffic activations{};  ///< this rank's
  std::int64_t steps{};
  std::int64_t tokens{};  ///< tokens of this start
  double flops{};         ///< the model's operations of this start
  MemoryRecord memory{};
};

/// A sentence of advice if most steps were clipped, so that their updates could not begin under
/// backward; else empty. Pure.
[[nodiscard]] std::string advice_on_clipping(PhaseTimes const& times,
                                             config::RunConfig const& config);

/// Prints the end table on rank 0: phase, seconds, part of the time, rate; activations that left;
/// the storage paths; host and device memory against their limits.
void print_end_table(PhaseTimes const& times, StorageTotals const& storage);

}  // namespace offstage::train
