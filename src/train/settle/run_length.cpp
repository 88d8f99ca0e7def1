#include "train/settle/run_length.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/error.hpp"
#include "base/units.hpp"

namespace offstage::train {

std::int64_t steps_of_epochs(config::TrainConfig const& train, std::int64_t windows,
                             std::int64_t done, std::int64_t tokens) {
  auto const all = std::llround(train.epochs * static_cast<double>(windows));
  auto const left = std::max<std::int64_t>(0, all - tokens / train.sequence);
  return std::max<std::int64_t>(1, done + ceil_div(left, train.global_batch));
}

void settle_length(config::RunConfig& config, std::int64_t windows) {
  if (config.train.epochs == 0.0) {
    return;
  }
  config.train.steps = steps_of_epochs(config.train, windows, 0, 0);
  try {
    config::validate(config);
  } catch (UsageError const& error) {
    throw UsageError{fmt::format("{} (train.steps={:g}epochs)", error.what(), config.train.epochs)};
  }
}

}  // namespace offstage::train
