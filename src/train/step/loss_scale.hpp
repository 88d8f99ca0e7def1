#pragma once

#include <cstdint>

#include "config/run_config.hpp"

namespace offstage::train {

/// The factor that keeps fp16 gradients above the smallest fp16 number: backward starts from the
/// loss times value(), the update divides by it.
/// Source: Micikevicius et al., arXiv:1710.03740, section 3.2.
class LossScale {
 public:
  explicit LossScale(config::LossScaleRules const& rules) : LossScale{rules, rules.start, 0} {}
  /// Goes on with the values of a checkpoint.
  LossScale(config::LossScaleRules const& rules, double value, std::int64_t good_steps)
      : rules_{rules}, value_{value}, good_steps_{good_steps} {}

  [[nodiscard]] double value() const noexcept { return value_; }
  /// Steps since the last change.
  [[nodiscard]] std::int64_t good_steps() const noexcept { return good_steps_; }

  /// Counts a step with an update. Doubles the scale, up to 2^24, after a window of such steps.
  void good_step() noexcept;
  /// Halves the scale after a gradient that was not finite. Returns true if it could, so that the
  /// next step may be fine. Returns false if the scale is fixed or 1, so that scaling is not the
  /// cause.
  [[nodiscard]] bool overflow() noexcept;

 private:
  config::LossScaleRules rules_;
  double value_;
  std::int64_t good_steps_;
};

}  // namespace offstage::train
