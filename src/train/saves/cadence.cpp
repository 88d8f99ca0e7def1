#include "train/saves/cadence.hpp"

#include <fmt/chrono.h>

#include <chrono>
#include <filesystem>

#include "base/log.hpp"

namespace offstage::train {
namespace {

std::optional<Seconds> time_left(config::RunConfig const& config) {
  if (!config.job || !config.job->end) {
    return std::nullopt;
  }
  return *config.job->end - slurm::TimePoint::clock::now();
}

}  // namespace

bool take_stop_file(config::RunConfig const& config) {
  std::error_code ignored;
  return std::filesystem::remove(std::filesystem::path{config.run_dir} / "STOP", ignored);
}

Cadence::Cadence(config::RunConfig const& config, mpi::Communicator const& comm,
                 StopSignals const& signals)
    : config_{config}, comm_{comm}, signals_{signals}, pace_{config, time_left(config)} {}

Decision Cadence::after(std::int64_t step) const {
  bool const signalled = comm_.maximum(static_cast<std::int64_t>(signals_.received())) != 0;
  Decision decision;
  if (comm_.rank() == 0) {
    Stop const asked = step < config_.train.steps && take_stop_file(config_) ? Stop::file
                       : signalled                                           ? Stop::signal
                                                                             : Stop::none;
    decision = pace_.after(step, now(), asked);
    say(step, decision.stop);
  }
  return comm_.broadcast_value(decision, 0);
}

void Cadence::say(std::int64_t step, Stop stop) const {
  if (stop == Stop::job_end) {
    log::dated("the job ends at {:%H:%M:%S}; {}, train.time-margin is {}: stopping after step {}",
               fmt::localtime(slurm::TimePoint::clock::to_time_t(*config_.job->end)),
               pace_.figures(), format_duration(config_.train.time_margin), step);
  } else if (stop == Stop::max_time) {
    log::dated("train.max-time={} is near; {}: stopping after step {}",
               format_duration(config_.train.max_time), pace_.figures(), step);
  }
}

}  // namespace offstage::train
