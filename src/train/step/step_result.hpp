#pragma once

#include <cstdint>

#include "base/units.hpp"
#include "state/exchange.hpp"
#include "train/offload/storage_step.hpp"
#include "train/step/share_step.hpp"

namespace offstage::train {

/// The outcome of one step, the same on all ranks but for times and traffic.
struct StepResult {
  double loss{};
  double grad_norm{};              ///< norm of the mean gradient, before clipping
  bool skipped{};                  ///< loss or norm was not finite: nothing was changed
  bool clipped{};                  ///< the gradient was scaled down; false if skipped
  std::int64_t counted_targets{};  ///< targets of all ranks that are not ignored
  Seconds forward{}, backward{}, update{};
  /// This rank's storage traffic, of all tiers, while the step waited for its update.
  Bytes update_bytes{};
  Seconds stood_still{};  ///< in the call of set_before_update; part of none of these
  bool disturbed{};       ///< something went on beside the step
  StorageStep storage{};  ///< this rank's
  ShareStep share{};      ///< this rank's
  state::ActivationTraffic activations{};  ///< this rank's
};

}  // namespace offstage::train
