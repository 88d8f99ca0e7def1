#include "train/step/schedule.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/error.hpp"

namespace offstage::train {
namespace {

/// The place of `step` between `begin` (0) and `end` (1).
double progress(std::int64_t step, std::int64_t begin, std::int64_t end) {
  if (step >= end) {
    return 1.0;
  }
  return static_cast<double>(std::max(step - begin, std::int64_t{0})) /
         static_cast<double>(end - begin);
}

/// The steps in which the rate of wsd and cooldown is to fall.
std::int64_t decay_wanted(config::OptimizerConfig const& optimizer, std::int64_t steps) {
  auto const share = optimizer.decay_fraction * static_cast<double>(steps);
  auto const by_share = std::max(std::int64_t{1}, static_cast<std::int64_t>(std::llround(share)));
  return optimizer.decay_steps > 0 ? optimizer.decay_steps : by_share;
}

/// The last step before it falls.
std::int64_t decay_begins(config::OptimizerConfig const& optimizer, std::int64_t steps) {
  return std::max(optimizer.warmup_steps, steps - decay_wanted(optimizer, steps));
}

}  // namespace

double learning_rate(config::OptimizerConfig const& optimizer, std::int64_t steps,
                     std::int64_t step) {
  steps -= optimizer.schedule_begin;
  step -= optimizer.schedule_begin;
  require(step >= 1, "learning_rate: steps count from 1");
  std::int64_t const warmup = optimizer.warmup_steps;
  if (step <= warmup) {
    return optimizer.lr * static_cast<double>(step) / static_cast<double>(warmup);
  }
  double const range = optimizer.lr - optimizer.min_lr;
  switch (optimizer.schedule) {
    case config::RateSchedule::constant:
      break;
    case config::RateSchedule::linear:
      return optimizer.min_lr + range * (1.0 - progress(step, warmup, steps));
    case config::RateSchedule::cosine: {
      double const angle = std::numbers::pi * progress(step, warmup, steps);
      return optimizer.min_lr + range * 0.5 * (1.0 + std::cos(angle));
    }
    case config::RateSchedule::wsd:
      return optimizer.min_lr +
             range * (1.0 - progress(step, decay_begins(optimizer, steps), steps));
    case config::RateSchedule::cooldown:
      return optimizer.min_lr +
             range * (1.0 - std::sqrt(progress(step, decay_begins(optimizer, steps), steps)));
    case config::RateSchedule::inverse_sqrt: {
      double const part = static_cast<double>(warmup) / static_cast<double>(step);
      return std::max(optimizer.min_lr, optimizer.lr * std::sqrt(part));
    }
  }
  return optimizer.lr;
}

void require_begun(config::OptimizerConfig const& optimizer, std::int64_t step) {
  if (step < optimizer.schedule_begin) {
    throw UsageError{fmt::format(
        "optimizer.schedule-begin={} is after step {}, from which this start goes on; use "
        "{} or less, or train without it to step {} first, if a later checkpoint was "
        "passed over",
        optimizer.schedule_begin, step, step, optimizer.schedule_begin)};
  }
}

std::string warning_of_rates(config::OptimizerConfig const& optimizer, std::int64_t steps,
                             std::int64_t done) {
  for (std::int64_t step = done + 1; step <= steps; ++step) {
    if (learning_rate(optimizer, steps, step) > 0.0) {
      return {};
    }
  }
  return done >= steps
             ? std::string{}
             : fmt::format(
                   "no step of this start has a learning rate above 0, so it learns nothing: "
                   "optimizer.schedule={} has come to optimizer.min-lr={} at step {}; use "
                   "optimizer.schedule=constant, or a higher optimizer.min-lr",
                   name_of(optimizer.schedule), optimizer.min_lr, done + 1);
}

std::string warning_of_decay(config::OptimizerConfig const& optimizer, std::int64_t steps,
                             std::int64_t done) {
  bool const falls = optimizer.schedule == config::RateSchedule::wsd ||
                     optimizer.schedule == config::RateSchedule::cooldown;
  std::int64_t const all = steps - optimizer.schedule_begin;
  std::int64_t const wanted = decay_wanted(optimizer, all);
  std::int64_t const left = all - optimizer.warmup_steps;
  return !falls || wanted <= left || done >= steps
             ? std::string{}
             : fmt::format(
                   "optimizer.warmup-steps={} leaves {} of {} steps, and the rate of "
                   "optimizer.schedule={} is to fall in {}: it falls in those that are left",
                   optimizer.warmup_steps, left, all, name_of(optimizer.schedule), wanted);
}

}  // namespace offstage::train
