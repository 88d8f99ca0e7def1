#include "update/step_gate.hpp"

#include <limits>

#include "base/watch.hpp"

namespace offstage::update {

StepGate::StepGate(std::int64_t subgroups, kernels::OptimizerStep const& presumed,
                   double most_squares)
    : complete_(static_cast<std::size_t>(subgroups)),
      presumed_{presumed},
      most_squares_{most_squares} {}

StepGate::StepGate(kernels::OptimizerStep const& step)
    : presumed_{step}, most_squares_{std::numeric_limits<double>::infinity()}, confirmed_{true} {}

void StepGate::complete(std::int64_t subgroup, double squares) {
  {
    std::scoped_lock const lock{mutex_};
    complete_.at(static_cast<std::size_t>(subgroup)) = true;
    squares_ += squares;
  }
  changed_.notify_all();
}

std::optional<kernels::OptimizerStep> StepGate::pass(std::int64_t subgroup, Stake stake) {
  Waiting const waiting{"the gradient of a subgroup, or the norm of all", subgroup};
  std::unique_lock lock{mutex_};
  auto const may_pass = [&] {
    // Not "greater": a sum that is no number fails the presumption too.
    bool const presumed = stake == Stake::trial && squares_ <= most_squares_;
    auto const index = static_cast<std::size_t>(subgroup);
    return (index >= complete_.size() || complete_[index]) && (confirmed_ || presumed);
  };
  changed_.wait(lock, [&] { return cancelled_ || may_pass(); });
  if (cancelled_) {
    return std::nullopt;
  }
  return presumed_;
}

void StepGate::confirm() {
  {
    std::scoped_lock const lock{mutex_};
    confirmed_ = true;
  }
  changed_.notify_all();
}

void StepGate::cancel() noexcept {
  {
    std::scoped_lock const lock{mutex_};
    cancelled_ = true;
  }
  changed_.notify_all();
}

bool StepGate::confirmed() const {
  std::scoped_lock const lock{mutex_};
  return confirmed_;
}

bool StepGate::cancelled() const {
  std::scoped_lock const lock{mutex_};
  return cancelled_;
}

}  // namespace offstage::update
