// Members of Store that concern several levels, and those in which level 1 differs.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/error.hpp"
#include "base/log.hpp"
#include "checkpoint/directory.hpp"
#include "checkpoint/level_parts.hpp"
#include "checkpoint/loading.hpp"
#include "checkpoint/partner_copies.hpp"
#include "checkpoint/store.hpp"

namespace offstage::checkpoint {

void Store::remove_passed_over() {
  mpi::agree(comm_, [&] {
    while (leads() && !passed_over_.empty()) {
      std::string const path = directory_ + "/" + passed_over_.back();
      if (size_of(path) && canonical(path) != named_) {
        remove_checkpoint(path);
      }
      passed_over_.pop_back();
    }
    if (!unreadable_.empty()) {
      remove_older();
    }
    copies_->remove_others();
  });
  unreadable_.clear();
}

/// Removes older checkpoints before a save, with those that killed saves left and those older than
/// a level 2 that was loaded.
void Store::remove_older() {
  if (!leads()) {
    return;
  }
  for (std::string const& path : others(current_)) {
    remove_checkpoint(path);
  }
}

void Store::begin_copies(std::int64_t step) {
  if (copies_->makes()) {
    copies_->begin(step);
  }
}

void Store::look_in() {
  if (copies_) {
    copies_->look_in();
  }
}

bool Store::is_copying() const {
  return copies_ && copies_->is_under_way();
}

std::optional<CopyStats> Store::finish_copies_if_done() {
  auto const done = copies_->finish_if_done();
  if (done) {
    tidy_level(done->step);
  }
  return done;
}

void Store::give_up_copies() {
  copies_->give_up();
}

void Store::stop_copies() {
  copies_->stop();
}

bool Store::has_parts() const {
  return is_local() && comm_.minimum(std::int64_t{near_.size()}) < comm_.size();
}

std::vector<std::string> Store::candidates(state::ShardMap const& map) {
  if (!is_local()) {
    return checkpoint::candidates(directory_, passed_over_, comm_);
  }
  try {
    auto found = parts_->find(map);
    passed_over_.insert(passed_over_.end(), found.lost.begin(), found.lost.end());
    return std::move(found.whole);
  } catch (mpi::AgreedError const& error) {
    if (error.code() != ExitCode::io) {
      throw;
    }
    note_unreadable(error);
    return {};
  }
}

void Store::note_unreadable(mpi::AgreedError const& error) {
  unreadable_ = error.what();
  if (comm_.rank() == 0) {
    log::warning("{}={}: level 1 is passed over: {}", key_, directory_, error.what());
  }
}

Outcome Store::try_level(std::string const& name, Destination const& to) {
  std::string const path = directory_ + "/" + name;
  if (!is_local()) {
    return try_load(path, to, comm_);
  }
  try {
    parts_->bring(name);
    return try_load(path, to, comm_);
  } catch (mpi::AgreedError const& error) {
    if (error.code() != ExitCode::io) {
      throw;
    }
    unreadable_ = error.what();
    return {std::nullopt, error.what()};
  }
}

std::optional<Store::Found> Store::restore_newest(std::span<Store* const> levels,
                                                  RunState const& run, state::ShardMap const& map,
                                                  std::vector<state::Subgroup> const& subgroups,
                                                  tiers::Tiers& tiers,
                                                  OnSubgroup const& on_subgroup) {
  struct Candidate {
    Store* level;
    std::string name;
  };
  std::vector<Candidate> all;
  for (Store* const level : levels) {
    require(map.ranks() == level->comm_.size(), "checkpoint: one shard per rank");
    if (!level->settle_level()) {
      continue;
    }
    for (std::string const& name : level->candidates(map)) {
      all.push_back({level, name});
    }
  }
  std::ranges::stable_sort(all, std::ranges::greater{},
                           [](Candidate const& each) { return *step_of(each.name); });
  Outcome outcome;
  for (auto const& [level, name] : all) {
    std::string const path = level->directory_ + "/" + name;
    outcome = level->try_level(
        name, {run, subgroups, tiers, on_subgroup, level->split(), level->has_parts()});
    if (outcome.meta) {
      level->ending_ = std::move(outcome.ending);
      level->say_loaded(path, *outcome.meta, run);
      return Found{*std::move(outcome.meta), level};
    }
    level->passed_over_.push_back(name);
    if (level->comm_.rank() == 0) {
      log::warning("checkpoint {} passed over: {}", level->is_local() ? path : name,
                   outcome.problem);
    }
  }
  for (Store const* const level : levels) {
    if (!level->unreadable_.empty()) {
      throw mpi::AgreedError{
          ExitCode::io,
          fmt::format("{}={}: no checkpoint was loaded, and not all could be read: {}; the same "
                      "command tries again; checkpoint.resume=none starts afresh",
                      level->key_, level->directory_, level->unreadable_),
          0};
    }
  }
  if (all.empty()) {
    return std::nullopt;
  }
  Store const& last = *levels.back();
  throw mpi::AgreedError{ExitCode::data,
                         fmt::format("no checkpoint in {} can be loaded; the last one tried: {}; "
                                     "checkpoint.resume=none starts afresh",
                                     last.directory_, outcome.problem),
                         0};
}

bool Store::settle_level() {
  try {
    finish_earlier_save();
    return true;
  } catch (mpi::AgreedError const& error) {
    if (!is_local() || error.code() != ExitCode::io) {
      throw;
    }
    note_unreadable(error);
    return false;
  }
}

}  // namespace offstage::checkpoint
