#include "train/cadence.hpp"

#include <algorithm>
#include <filesystem>

namespace offstage::train {

char const* reason_of(Stop stop) {
  switch (stop) {
    case Stop::signal:
      return "a signal came";
    case Stop::file:
      return "STOP was found in run.dir";
    case Stop::time:
      return "train.max-time is near";
    case Stop::none:
      break;
  }
  return "";
}

bool take_stop_file(RunConfig const& config) {
  std::error_code ignored;
  return std::filesystem::remove(std::filesystem::path{config.run_dir} / "STOP", ignored);
}

void Cadence::step_took(Seconds seconds) {
  longest_step_ = std::max(longest_step_, seconds);
}

void Cadence::validation_took(Seconds seconds) {
  longest_validation_ = std::max(longest_validation_, seconds);
}

void Cadence::save_took(Seconds seconds) {
  longest_save_ = std::max(longest_save_, seconds);
  last_save_ = now();
}

bool Cadence::validation_follows(std::int64_t step) const {
  std::int64_t const every = config_.train.valid_every;
  return !config_.data.valid.empty() &&
         (step == config_.train.steps || (every > 0 && step % every == 0));
}

Stop Cadence::stop_wanted(std::int64_t step) const {
  auto wanted = Stop::none;
  if (comm_.rank() == 0) {
    Seconds const next_end = now() + longest_step_ + longest_save_ +
                             (validation_follows(step + 1) ? longest_validation_ : Seconds{});
    if (config_.train.max_time.count() > 0.0 && next_end > config_.train.max_time) {
      wanted = Stop::time;
    } else if (take_stop_file(config_)) {
      wanted = Stop::file;
    }
  }
  auto const signalled = comm_.maximum(static_cast<std::int64_t>(signals_.received()));
  wanted = comm_.broadcast_value(wanted, 0);
  return wanted == Stop::none && signalled != 0 ? Stop::signal : wanted;
}

bool Cadence::save_is_due(std::int64_t step, Stop stop) const {
  if (stop != Stop::none || step == config_.train.steps) {
    return true;
  }
  CheckpointConfig const& checkpoint = config_.checkpoint;
  if (checkpoint.every_steps > 0) {
    return step % checkpoint.every_steps == 0;
  }
  bool const due =
      checkpoint.every_time.count() > 0.0 && now() - last_save_ >= checkpoint.every_time;
  return comm_.broadcast_value(due, 0);
}

}  // namespace offstage::train
