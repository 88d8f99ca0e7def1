#include "train/saves/cadence.hpp"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <chrono>
#include <filesystem>

#include "base/error.hpp"
#include "base/log.hpp"
#include "base/users.hpp"
#include "platform/slurm/squeue.hpp"

namespace offstage::train {
namespace {

/// Taken from train.time-margin at worst.
constexpr Seconds squeue_patience{5.0};

std::optional<Seconds> time_left(std::optional<slurm::TimePoint> end) {
  return end ? std::optional<Seconds>{*end - slurm::TimePoint::clock::now()} : std::nullopt;
}

std::filesystem::path stop_file(config::RunConfig const& config) {
  return std::filesystem::path{config.run_dir} / "STOP";
}

bool has_stop_file(config::RunConfig const& config) {
  std::error_code ignored;
  return std::filesystem::exists(stop_file(config), ignored);
}

std::tm local(slurm::TimePoint time) {
  return fmt::localtime(slurm::TimePoint::clock::to_time_t(time));
}

}  // namespace

bool take_stop_file(config::RunConfig const& config) {
  std::error_code ignored;
  return std::filesystem::remove(stop_file(config), ignored);
}

void require_no_stop_file(config::RunConfig const& config) {
  if (std::string const path = stop_file(config).string(); has_stop_file(config)) {
    throw IoError{fmt::format(
        "run.dir: {} cannot be removed{}; have it removed, else each start stops after one step",
        path, foreign_words(path))};
  }
}

Cadence::Cadence(config::RunConfig const& config, mpi::Communicator const& comm,
                 StopSignals const& signals)
    : config_{config},
      comm_{comm},
      signals_{signals},
      job_end_{config.job ? config.job->end : std::nullopt},
      pace_{config, time_left(job_end_)} {}

Stop Cadence::asked() const {
  bool const signalled = comm_.maximum(static_cast<std::int64_t>(signals_.received())) != 0;
  return comm_.rank() == 0 && has_stop_file(config_) ? Stop::file
         : signalled                                 ? Stop::signal
                                                     : Stop::none;
}

Decision Cadence::after(std::int64_t step) {
  Stop const wanted = asked();
  Decision decision;
  if (comm_.rank() == 0) {
    decision = pace_.after(step, now(), wanted);
    if (decision.stop == Stop::job_end && has_more_time()) {
      decision = pace_.after(step, now(), wanted);
    }
    conclude(step, decision.stop);
  }
  return comm_.broadcast_value(decision, 0);
}

bool Cadence::will_stop(std::int64_t step) {
  Stop const wanted = asked();
  bool stops = false;
  if (comm_.rank() == 0) {
    Stop stop = pace_.stop_under_validation(step, now(), wanted);
    if (stop == Stop::job_end && has_more_time()) {
      stop = pace_.stop_under_validation(step, now(), wanted);
    }
    stops = stop != Stop::none;
  }
  return comm_.broadcast_value(stops, 0);
}

Decision Cadence::after_half_a_validation(std::int64_t step) {
  if (step < config_.train.steps) {
    return after(step);
  }
  Stop const wanted = asked();
  Decision decision{.save = true};
  if (comm_.rank() == 0) {
    decision.stop = pace_.stop_under_validation(step, now(), wanted);
    conclude(step, decision.stop);
  }
  return comm_.broadcast_value(decision, 0);
}

void Cadence::conclude(std::int64_t step, Stop stop) const {
  if (stop == Stop::file) {
    take_stop_file(config_);
  }
  say(step, stop);
}

bool Cadence::has_more_time() {
  auto const answer = slurm::ask_end_time(config_.job->id, squeue_patience);
  if (answer.has_no_limit) {
    job_end_.reset();
    pace_.job_ends(std::nullopt);
    log::dated("the job has no time limit any more");
    return true;
  }
  if (!answer.end || *answer.end <= *job_end_) {
    return false;
  }
  job_end_ = answer.end;
  pace_.job_ends(now() + *time_left(job_end_));
  log::dated("the job has more time now: it ends at {:%F %T %z}", local(*job_end_));
  return true;
}

void Cadence::say(std::int64_t step, Stop stop) const {
  if (stop == Stop::job_end) {
    log::dated(
        "the job ends at {:%H:%M:%S %z}; {}, train.time-margin is {}: stopping after step {}",
        local(*job_end_), pace_.figures(), format_duration(config_.train.time_margin), step);
  } else if (stop == Stop::max_time) {
    log::dated("train.max-time={} is near; {}: stopping after step {}",
               format_duration(config_.train.max_time), pace_.figures(), step);
  }
}

}  // namespace offstage::train
