#pragma once

#include <cstdint>
#include <string>

#include "config/run_config.hpp"

namespace offstage::train {

/// The learning rate of step `step`, counted from 1. It depends on these arguments alone. With
/// schedule_begin B it is that of step - B in a run of steps - B; B is below `step`. Warm-up
/// rises linearly to `lr` over warmup_steps. Then constant: lr; linear, cosine: from lr to min_lr
/// at step `steps`; wsd: lr, and over the last decay_steps, or decay_fraction of the steps,
/// linearly to min_lr; cooldown: as wsd, but by 1 - sqrt of the part that is over (Source: Hägele
/// et al., arXiv 2405.18392); inverse_sqrt: lr sqrt(warmup_steps / step), and min_lr at least, for
/// warmup_steps above 0 (Source: Vaswani et al., arXiv 1706.03762, equation 3).
[[nodiscard]] double learning_rate(config::OptimizerConfig const& optimizer, std::int64_t steps,
                                   std::int64_t step);

/// Checks that the schedule has begun before the first step of a start that goes on from `step`.
/// Errors: UsageError.
void require_begun(config::OptimizerConfig const& optimizer, std::int64_t step);

/// The warning of a start after step `done` whose steps all have rate 0, so that it learns nothing.
/// Empty if a step has a higher rate, or there is no step. Pure.
[[nodiscard]] std::string warning_of_rates(config::OptimizerConfig const& optimizer,
                                           std::int64_t steps, std::int64_t done);

/// The warning that warm-up leaves fewer steps to the fall of wsd's and cooldown's rate than
/// wanted; empty if it does not, or no step follows `done`. Pure.
[[nodiscard]] std::string warning_of_decay(config::OptimizerConfig const& optimizer,
                                           std::int64_t steps, std::int64_t done);

}  // namespace offstage::train
