#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/log.hpp"
#include "base/units.hpp"

namespace offstage::train {

/// How far a run has come.
struct ProgressFigures {
  std::int64_t step{}, steps{};
  double loss{};           ///< the step's own, nats per token
  double smoothed_loss{};  ///< the running mean
  double tokens_per_second{};
  Seconds left{};
};

/// The parts of a line for log::write_status that has at most `width` columns. On a narrow terminal
/// the bar becomes shorter first; then the speed goes, the bar with its percentage, the loss, the
/// time left and the step, in this order. The loss is the mean, or the step's own where that is not
/// finite. With `colours` the bar is made of coloured blanks. Pure.
[[nodiscard]] std::vector<log::Styled> progress_line(ProgressFigures const& progress,
                                                     std::size_t width, bool colours);

}  // namespace offstage::train
