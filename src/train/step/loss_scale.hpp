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
  /// Goes on from a checkpoint.
  LossScale(config::LossScaleRules const& rules, double value, std::int64_t good_steps)
      : rules_{rules}, value_{value}, good_steps_{good_steps} {}

  [[nodiscard]] double value() const noexcept { return value_; }
  /// Steps since the last change.
  [[nodiscard]] std::int64_t good_steps() const noexcept { return good_steps_; }

  /// A step was updated. Doubles the scale, up to 2^24, after a window of them.
  void good_step() noexcept;
  /// A gradient was not finite. True if the scale could be halved: the next step may be fine. False
  /// if it is fixed or 1: scaling is not what is wrong.
  [[nodiscard]] bool overflow() noexcept;

 private:
  config::LossScaleRules rules_;
  double value_;
  std::int64_t good_steps_;
};

}  // namespace offstage::train
