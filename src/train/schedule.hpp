#pragma once

#include <cstdint>

#include "train/run_config.hpp"

namespace offstage::train {

/// Learning rate of step `step`, counted from 1. Warm-up rises linearly to `lr` over warmup_steps;
/// then constant: lr; linear, cosine: from lr to min_lr at step `steps`; wsd: lr, and over the last
/// decay_fraction of the steps linearly to min_lr. A function of these arguments alone.
[[nodiscard]] double learning_rate(OptimizerConfig const& optimizer, std::int64_t steps,
                                   std::int64_t step);

}  // namespace offstage::train
