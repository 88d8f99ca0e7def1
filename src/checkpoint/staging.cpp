#include "checkpoint/staging.hpp"

#include <utility>

#include "base/stopwatch.hpp"
#include "base/team.hpp"
#include "base/watch.hpp"

namespace offstage::checkpoint {
namespace {

/// The part of a save before its file. A failure here is marked in the node's file, for its other
/// ranks would wait for this one.
void begin(int threads, tiers::Tiers& tiers, Manner const& manner) {
  try {
    set_team_size(threads);
    if (manner.drain.holds()) {
      tiers.hold();
    }
  } catch (...) {
    if (manner.node != nullptr) {
      NodeFile::Turn const failed{*manner.node, manner.number};
    }
    throw;
  }
}

}  // namespace

Staging::Staging(int threads, std::string step_directory, int rank, int ranks, StateLayout layout,
                 std::vector<state::Subgroup> const& subgroups, tiers::Tiers& tiers, Manner manner)
    : directory_{std::move(step_directory)},
      rank_{rank},
      ranks_{ranks},
      layout_{std::move(layout)},
      subgroups_{subgroups},
      tiers_{tiers},
      manner_{std::move(manner)},
      thread_{"save", [this, threads] { run(threads); }} {}

void Staging::run(int threads) {
  Stopwatch const watch;
  bool said = false;
  auto const say = [&] {
    if (!std::exchange(said, true)) {
      only_held_is_left_.set_value();
    }
  };
  try {
    begin(threads, tiers_, manner_);
    manner_.drain.hurries = &hurries_;
    manner_.drain.only_held_is_left = say;
    manner_.given_up = &given_up_;
    written_ = write_rank_file(directory_, rank_, ranks_, layout_, subgroups_, tiers_, manner_);
  } catch (FailedElsewhere const&) {
  } catch (...) {
    error_ = std::current_exception();
  }
  if (manner_.drain.holds()) {
    for (state::Subgroup const& subgroup : subgroups_) {
      tiers_.release(subgroup.index);
    }
  }
  seconds_ = watch.elapsed();
  done_ = true;
  say();
}

void Staging::wait_for_held() {
  Waiting const waiting{"the part of a checkpoint that is in host memory"};
  held_.wait();
}

Staging::~Staging() {
  given_up_ = true;
  hurries_ = true;
  Waiting const waiting{"the thread of a save that is given up"};
  thread_.join();
}

RankFiles Staging::finish() {
  Waiting const waiting{"the rank file of a checkpoint, on its thread"};
  hurries_ = true;
  thread_.join();
  if (error_) {
    std::rethrow_exception(std::exchange(error_, nullptr));
  }
  return std::move(written_);
}

}  // namespace offstage::checkpoint
