#include "train/saves/pace.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

namespace offstage::train {
namespace {

constexpr Seconds least_interval{60.0};
constexpr double most_share = 0.1;
/// The interval while the cost of a save is unknown. It is short enough to find out soon.
constexpr Seconds first_interval{300.0};
constexpr std::size_t remembered_saves = 5;
/// Time after the loss of a node until the job runs again and has copied its next checkpoint.
constexpr Seconds time_without_copy{24.0 * 3600.0};

/// The median; of an even number the upper one.
Seconds median(std::vector<SaveTime> const& saves, Seconds SaveTime::*part) {
  std::vector<Seconds> sorted;
  for (SaveTime const& save : saves) {
    sorted.push_back(save.*part);
  }
  std::ranges::sort(sorted);
  return sorted[sorted.size() / 2];
}

/// See Pace on stopped processes.
bool counts(bool was_stopped, bool is_first) {
  return is_first || !was_stopped;
}

void remember(SaveTime const& time, std::vector<SaveTime>& saves) {
  if (saves.size() == remembered_saves) {
    saves.erase(saves.begin());
  }
  saves.push_back(time);
}

/// The interval of saves that cost as much as these. There is at least one.
Seconds interval_of(std::vector<SaveTime> const& saves, Seconds mtbf) {
  return std::max(auto_interval(median(saves, &SaveTime::stood_still), mtbf),
                  median(saves, &SaveTime::whole) / most_share);
}

/// Returns whether a save is due by steps or by time. `automatic`: the interval of `auto`.
bool is_due(std::int64_t step, Seconds passed, config::Interval const& every, Seconds automatic) {
  Seconds const time = every.automatic ? automatic : every.time;
  return every.steps > 0 ? step % every.steps == 0 : time > Seconds{} && passed >= time;
}

}  // namespace

Seconds daly_interval(Seconds cost, Seconds mtbf) {
  if (cost >= 2.0 * mtbf) {
    return mtbf;
  }
  double const ratio = cost / (2.0 * mtbf);
  return std::sqrt(2.0 * cost.count() * mtbf.count()) *
             Seconds{1.0 + std::sqrt(ratio) / 3.0 + ratio / 9.0} -
         cost;
}

Seconds partners_mtbf(Seconds mtbf, int nodes) {
  Seconds const one = mtbf / nodes;
  constexpr double neighbours = 2.0;
  return std::max(one, one * (mtbf / (neighbours * time_without_copy)));
}

Seconds auto_interval(Seconds cost, Seconds mtbf) {
  return std::max({daly_interval(cost, mtbf), least_interval, cost / most_share});
}

void Pace::step_took(Seconds seconds, bool was_stopped) {
  if (counts(was_stopped, longest_step_ == Seconds{})) {
    longest_step_ = std::max(longest_step_, seconds);
  }
}

void Pace::validation_took(Seconds seconds, bool was_stopped) {
  if (counts(was_stopped, longest_validation_ == Seconds{})) {
    longest_validation_ = std::max(longest_validation_, seconds);
  }
}

void Pace::save_began(Seconds now) {
  last_save_ = now;
  saving_ = true;
}

void Pace::save_took(SaveTime const& time, Seconds now) {
  if (!std::exchange(saving_, false)) {
    last_save_ = now;
  }
  if (counts(time.was_stopped, saves_.empty())) {
    longest_save_ = saves_.empty() ? time.whole : std::max(longest_save_, time.whole);
    remember(time, saves_);
  }
}

void Pace::local_save_took(SaveTime const& time, Seconds now) {
  last_local_save_ = now;
  if (counts(time.was_stopped, local_saves_.empty())) {
    longest_local_save_ = std::max(longest_local_save_, time.whole);
    remember(time, local_saves_);
  }
}

void Pace::expect_save(Seconds seconds, bool loaded) {
  longest_save_ = seconds;
  if (loaded) {
    expected_save_ = seconds;
  }
}

Seconds Pace::automatic() const {
  if (saves_.empty()) {
    return expected_save_ ? auto_interval(*expected_save_, mtbf()) : first_interval;
  }
  return interval_of(saves_, mtbf());
}

Seconds Pace::local_automatic() const {
  return local_saves_.empty() ? least_interval : interval_of(local_saves_, config_.checkpoint.mtbf);
}

/// The mean time between the events that only level 2 survives. Level 1 survives everything but the
/// loss of a node, which is no more frequent than interruptions of the job. With level 3 it
/// survives the loss of one node.
Seconds Pace::mtbf() const {
  config::CheckpointConfig const& checkpoint = config_.checkpoint;
  if (!has_local_) {
    return checkpoint.mtbf;
  }
  Seconds const lost = has_copies_ ? partners_mtbf(checkpoint.node_mtbf, checkpoint.nodes)
                                   : checkpoint.node_mtbf / checkpoint.nodes;
  return std::max(checkpoint.mtbf, lost);
}

Decision Pace::after(std::int64_t step, Seconds now, Stop asked) const {
  Decision decision{.validate = validation_follows(step),
                    .save = save_is_due(step, now),
                    .save_local = local_save_is_due(step, now)};
  if (step < config_.train.steps) {
    decision.stop = asked != Stop::none ? asked : time_is_up(step, now, decision);
  }
  if (decision.stop != Stop::none) {
    decision.validate = false;
    decision.save = true;
    decision.save_local =
        has_local_;  // level 1 is durable soon, in case the job is killed during the other save
  }
  return decision;
}

Stop Pace::stop_under_validation(std::int64_t step, Seconds now, Stop asked) const {
  if (asked != Stop::none) {
    return asked;
  }
  if (step >= config_.train.steps) {
    bool const saves = config_.checkpoint.keep_best && !only_validates_;
    return limit_before(now + (saves ? longest_save_ : Seconds{}));
  }
  return time_is_up(step, now, {.save = save_is_due(step, now)});
}

std::string Pace::figures() const {
  std::string text = fmt::format("a step takes {}, a save {}", format_duration(longest_step_),
                                 format_duration(longest_save_));
  if (longest_validation_ > Seconds{}) {
    text += fmt::format(", a validation {}", format_duration(longest_validation_));
  }
  return text;
}

bool Pace::validation_follows(std::int64_t step) const {
  std::int64_t const every = config_.train.valid_every;
  return !config_.data.valid.empty() &&
         (step == config_.train.steps || (every > 0 && step % every == 0));
}

bool Pace::save_is_due(std::int64_t step, Seconds now) const {
  config::CheckpointConfig const& checkpoint = config_.checkpoint;
  if (step == config_.train.steps ||
      (checkpoint.keep_every > 0 && step % checkpoint.keep_every == 0)) {
    return true;
  }
  return is_due(step, now - last_save_, checkpoint.every, automatic());
}

bool Pace::local_save_is_due(std::int64_t step, Seconds now) const {
  return has_local_ && step < config_.train.steps &&
         is_due(step, now - last_local_save_, config_.checkpoint.local_every, local_automatic());
}

Stop Pace::time_is_up(std::int64_t step, Seconds now, Decision const& due) const {
  // The step after this one is followed by a save, and by a validation if it is the last.
  bool const validates_at_the_end = !config_.data.valid.empty() && step + 1 == config_.train.steps;
  int const validations = (due.validate ? 1 : 0) + (validates_at_the_end ? 1 : 0);
  int const saves = due.save || saving_ ? 2 : 1;
  return limit_before(now + longest_step_ + validations * longest_validation_ +
                      saves * longest_save_ + longest_local_save_);
}

Stop Pace::limit_before(Seconds done) const {
  config::TrainConfig const& train = config_.train;
  bool const job_ends = job_end_ && done + train.time_margin > *job_end_;
  bool const time_ends = train.max_time > Seconds{} && done > train.max_time && !only_validates_;
  if (job_ends && time_ends) {
    return *job_end_ - train.time_margin < train.max_time ? Stop::job_end : Stop::max_time;
  }
  return job_ends ? Stop::job_end : time_ends ? Stop::max_time : Stop::none;
}

}  // namespace offstage::train
