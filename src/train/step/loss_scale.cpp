#include "train/step/loss_scale.hpp"

namespace offstage::train {
namespace {

constexpr double smallest = 1.0;
/// The largest scale. Beyond it even gradients of 1e-3 overflow.
constexpr double largest = 16'777'216.0;

}  // namespace

void LossScale::good_step() noexcept {
  if (!rules_.dynamic) {
    return;
  }
  ++good_steps_;
  if (good_steps_ >= rules_.window && value_ < largest) {
    value_ *= 2.0;
    good_steps_ = 0;
  }
}

bool LossScale::overflow() noexcept {
  if (!rules_.dynamic || value_ <= smallest) {
    return false;
  }
  value_ /= 2.0;
  good_steps_ = 0;
  return true;
}

}  // namespace offstage::train
