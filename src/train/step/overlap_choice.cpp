#include "train/step/overlap_choice.hpp"

#include <utility>

namespace offstage::train {
namespace {

/// Plain steps at the start. The first of all has cold caches and does not count.
constexpr int plain_steps = 2;
/// The weight of the newest figure.
constexpr double newest = 0.25;
constexpr double newest_redo = 0.1;
/// Plain steps after which overlap is tried again, whatever was measured.
constexpr int try_again = 64;
/// Overlap is on again if it would gain this much.
constexpr double clear_gain = 0.05;

}  // namespace

OverlapChoice::OverlapChoice(config::Switch policy, bool possible) noexcept
    : policy_{policy}, possible_{possible}, on_{possible && policy == config::Switch::on} {}

void OverlapChoice::Mean::follow(double now) noexcept {
  value = value > 0.0 ? (1.0 - newest) * value + newest * now : now;
}

void OverlapChoice::update_ended(Seconds before) noexcept {
  if (auto step = std::exchange(ended_, std::nullopt)) {
    step->seconds += before;
    learn(*step);
  }
}

void OverlapChoice::learn(Step const& step) noexcept {
  if (policy_ != config::Switch::automatic || !possible_) {
    return;
  }
  ++steps_;
  redone_share_ += newest_redo * ((step.redone ? 1.0 : 0.0) - redone_share_);
  if (steps_ == 1) {
    return;
  }
  Mean& mean = !step.overlapped ? plain_ : step.redone ? redone_ : clean_;
  mean.follow(step.seconds.count());
  if (steps_ < plain_steps) {
    return;
  }
  if (clean_.value == 0.0 && (redone_.value == 0.0 || !step.redone)) {
    on_ = true;  // to find out its gain; a step whose update is made again may gain, too
    return;
  }
  // Times not measured yet: a clean step takes at worst as long as a plain one, and a redone one as
  // long as both updates.
  double const clean = clean_.value > 0.0 ? clean_.value : plain_.value;
  double const redone = redone_.value > 0.0 ? redone_.value : 2.0 * plain_.value;
  double const overlapped = (1.0 - redone_share_) * clean + redone_share_ * redone;
  on_ = overlapped < plain_.value * (on_ ? 1.0 : 1.0 - clear_gain);
  // The result of one bad step must not hold for ever.
  plain_since_ = step.overlapped ? 0 : plain_since_ + 1;
  if (plain_since_ >= try_again) {
    on_ = true;
    clean_ = redone_ = {};
  }
}

}  // namespace offstage::train
