#include "checkpoint/store.hpp"

#include <fmt/format.h>

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <functional>
#include <thread>
#include <utility>

#include "base/error.hpp"
#include "base/log.hpp"
#include "base/path.hpp"
#include "base/pauses.hpp"
#include "base/printable.hpp"
#include "base/stopwatch.hpp"
#include "base/team.hpp"
#include "base/watch.hpp"
#include "checkpoint/convert_moments.hpp"
#include "checkpoint/directory.hpp"
#include "checkpoint/inspect.hpp"
#include "checkpoint/level_parts.hpp"
#include "checkpoint/loading.hpp"
#include "checkpoint/node_file.hpp"
#include "checkpoint/partner_copies.hpp"
#include "checkpoint/patience.hpp"
#include "checkpoint/replacement.hpp"
#include "checkpoint/retention.hpp"
#include "checkpoint/staging.hpp"
#include "checkpoint/writer.hpp"
#include "platform/aio/file.hpp"

namespace offstage::checkpoint {
namespace {

namespace fs = std::filesystem;

void require_space(std::string const& directory, Bytes space) {
  Bytes const free = aio::free_bytes(directory);
  if (free < space) {
    throw IoError{
        fmt::format("it needs {}, but {} is free there", format_bytes(space), format_bytes(free))};
  }
}

/// Calls `work`, which tidies up. An error there does not fail a save. Returns false after one.
template <class Work>
bool attempt(Work&& work) {
  try {
    work();
    return true;
  } catch (std::exception const& error) {
    log::warning("an old checkpoint stays: {}", error.what());
    return false;
  }
}

/// Removes an unfinished step directory. One whose files another user made, who gave nobody else
/// the right to remove them, gets another name instead.
void make_way(std::string const& directory, std::int64_t step) {
  std::string const path = directory + "/" + step_name(step);
  try {
    remove_checkpoint(path);
  } catch (IoError const& error) {
    bool const is_refused = error.error_number() == EACCES || error.error_number() == EPERM;
    if (!is_refused || !set_aside(directory, step_name(step))) {
      throw;
    }
  }
}

/// Makes an empty step directory. Returns false if the checkpoint is there already. Nothing that
/// has a master is removed.
bool prepare(std::string const& directory, std::int64_t step, Bytes space, bool is_current) {
  std::string const path = directory + "/" + step_name(step);
  aio::make_directory(directory);
  if (size_of(path)) {
    if (is_current && inspect(path).state == Completeness::complete) {
      return false;
    }
    if (has_master(path)) {
      log::warning(
          "checkpoint {} was passed over, or is of an earlier run: the save of this step replaces "
          "it",
          path);
    } else {
      make_way(directory, step);
    }
  }
  // The space that they take may be what this save lacks.
  attempt([&] { remove_unfinished(directory, step); });
  try {
    put_away(directory, step);
    require_space(directory, space);
    aio::make_directory(path);
  } catch (IoError const&) {
    rmdir(path.c_str());  // it is empty, or not this save's
    attempt([&] { settle_replaced(directory); });
    throw;
  }
  return true;
}

/// An I/O error of a save, with the configuration key to which it belongs.
mpi::AgreedError failed_save(std::string const& key, std::string const& directory,
                             std::int64_t step, mpi::AgreedError const& error) {
  if (error.code() != ExitCode::io) {
    return error;
  }
  return {ExitCode::io,
          fmt::format("{}={}: cannot save step {}: {}; earlier checkpoints are unchanged; make "
                      "room or correct the error, and run the same command again",
                      key, directory, step, error.what()),
          error.failed_rank()};
}

/// Calls save(), and again() after an error that may end by itself. Both are collective, and the
/// ranks' errors are the same. Errors: those of again().
template <class Save, class Again>
void save_patiently(mpi::Communicator const& comm, std::int64_t step, Save&& save, Again&& again) {
  try {
    save();
    return;
  } catch (mpi::AgreedError const& error) {
    if (!ends_by_itself(error.error_number())) {
      throw;
    }
    if (comm.rank() == 0) {
      log::warning("cannot save step {}: {}; trying again", step, error.what());
    }
  }
  {
    Waiting const waiting{"the pause before a save is tried again"};
    std::this_thread::sleep_for(pauses_between_tries.back());
  }
  again();
}

}  // namespace

/// A save between its two parts.
struct Store::Saving {
  Meta meta;
  SaveStats stats;
  SaveRate rate{};
  std::function<void()> write{};     ///< begins the files
  std::unique_ptr<Staging> files{};  ///< null: the checkpoint was there already
  Stopwatch written{};               ///< since the files of all ranks were written
};

Store::Store(std::string directory, Retention retention, mpi::Communicator const& comm,
             std::string key)
    : directory_{std::move(directory)},
      retention_{retention},
      comm_{comm},
      near_{comm},
      key_{std::move(key)} {
  require(retention.keep >= 1, "checkpoint: keep is at least 1");
}

Store::Store(std::string directory, mpi::Communicator const& comm, Node node)
    : directory_{std::move(directory)},
      retention_{.keep = 1},
      comm_{comm},
      near_{node.ranks},
      key_{"checkpoint.local"},
      start_{node.start},
      messages_{comm.duplicate()},
      parts_{std::make_unique<LevelParts>(LevelPlaces{directory_, node.copies},
                                          std::move(node.starts), messages_, near_)},
      copies_{std::make_unique<PartnerCopies>(LevelPlaces{directory_, node.copies},
                                              node.makes_copies, messages_, near_)} {
  require(&comm != &node.ranks, "checkpoint: level 1 knows who is on a node");
}

Store::~Store() = default;

void Store::set_node_files(mpi::Communicator const& node, std::int64_t subgroups) {
  node_file_ = std::make_unique<NodeFile>(comm_, node, subgroups);
}

bool Store::make_step_directory(std::int64_t step, Bytes space) {
  Bytes const total = near_.sum(space);
  bool fresh = false;
  mpi::agree(comm_, [&] {
    if (leads()) {
      bool const is_current =
          !is_local() && canonical(directory_ + "/" + step_name(step)) == current_;
      fresh = prepare(directory_, step, total, is_current);
    }
  });
  return comm_.maximum(std::int64_t{fresh}) == 1;
}

void Store::begin_files(Saving& saving, std::vector<state::Subgroup> const& subgroups,
                        tiers::Tiers& tiers, int threads) {
  ++saves_;
  try {
    mpi::agree(comm_, [&] {
      saving.files =
          std::make_unique<Staging>(threads, saving.stats.path, comm_.rank(), comm_.size(),
                                    saving.meta.state.layout, subgroups, tiers,
                                    Manner{.split = split(),
                                           .path = path_,
                                           .node = node_file_.get(),
                                           .number = saves_,
                                           .drain = {.rate = saving.rate}});
    });
  } catch (mpi::AgreedError const&) {
    saving.files.reset();
    comm_.barrier();  // no rank writes any more
    abandon(saving.meta.step);
    throw;
  }
}

void Store::complete(Saving& saving) {
  std::string const& path = saving.stats.path;
  Meta const& meta = saving.meta;
  try {
    RankFiles mine;
    mpi::agree(comm_, [&] { mine = saving.files->finish(); });
    Seconds const lasted{comm_.maximum(saving.files->seconds().count())};
    Seconds const worked{comm_.maximum((saving.files->seconds() - mine.paused).count())};
    saving.stats.seconds += lasted;
    saving.stats.paused = lasted - worked;
    saving.written.lap();
    saving.stats.bytes = mine.copied;
    saving.stats.referred = mine.referred;
    std::vector<std::string> const manifests =
        is_local() ? comm_.all_gather_texts(mine.manifest) : comm_.gather_texts(mine.manifest);
    mpi::agree(comm_, [&] {
      if (leads()) {
        if (!passed_over_.empty()) {
          list_passed_over(directory_, meta.step, passed_over_);
        }
        std::string const name = canonical(path);
        commit_master(path, meta, manifests, is_local());
        took(name);
      }
    });
  } catch (mpi::AgreedError const&) {
    abandon(meta.step);
    throw;
  }
}

void Store::abandon(std::int64_t step) const noexcept {
  if (!leads()) {
    return;
  }
  try {
    remove_checkpoint(directory_ + "/" + step_name(step));
    bring_back(directory_, step);
  } catch (std::exception const& error) {
    log::warning("files of a failed save stay: {}", error.what());
  }
}

void Store::tidy(std::int64_t saved, bool by_reference) {
  bool const has_list = !passed_over_.empty();
  std::erase(passed_over_, step_name(saved));
  if (!leads()) {
    return;
  }
  attempt([&] { settle_replaced(directory_); });
  bool aside = true;
  for (std::string const& name : passed_over_) {
    aside = set_aside(directory_, name) && aside;
  }
  if (aside && has_list && attempt([&] { remove_lists(directory_); })) {
    passed_over_.clear();
  }
  attempt([&] { removal_.begin(superfluous(saved)); });
  if (by_reference) {
    finish_removal();
  }
}

void Store::tidy_level(std::int64_t saved) {
  if (leads()) {
    attempt([&] { removal_.begin(superfluous(saved)); });
  }
}

std::vector<std::string> Store::superfluous(std::int64_t saved) {
  if (!is_local()) {
    return checkpoint::superfluous(directory_, retention_, saved, spared(), sound_);
  }
  return others(canonical(directory_ + "/" + step_name(saved)));
}

/// Checkpoints of level 1 that nobody needs beside `newest` (a canonical path).
std::vector<std::string> Store::others(std::string const& newest) const {
  std::vector<std::string> paths;
  for (StepDirectory const& found : step_directories(directory_)) {
    std::string const path = canonical(found.path);
    if (path != newest && path != named_ && found.step != copies_->kept()) {
      paths.push_back(found.path);
    }
  }
  return paths;
}

void Store::remove_all() {
  finish_removal();
  if (!unreadable_.empty()) {
    return;  // nothing was saved after what could not be read
  }
  copies_->remove_all();
  if (!leads()) {
    return;
  }
  attempt([&] {
    settle_replaced(directory_);
    for (std::string const& path : superfluous(-1)) {
      remove_checkpoint(path);
    }
  });
}

void Store::spare(std::string const& path) {
  mpi::agree(comm_, [&] {
    if (leads()) {
      named_ = canonical(path);
    }
  });
}

void Store::keep_what_was_kept(std::int64_t step) {
  mpi::agree(comm_, [&] {
    if (comm_.rank() == 0) {
      kept_before_ =
          read_patiently([&] { return checkpoint::kept_before(directory_, retention_, step); });
    }
  });
}

bool Store::has_passed_over() const {
  return comm_.maximum(std::int64_t{leads() && !passed_over_.empty()}) == 1;
}

bool Store::has(std::string const& path) const {
  fs::path const step = without_slash(fs::absolute(path).lexically_normal());
  return canonical(step.parent_path().string()) == canonical(directory_);
}

void Store::took(std::string const& canonical_path) {
  current_ = canonical_path;
  if (!is_local()) {
    sound_.insert(canonical_path);
  }
}

void Store::say_loaded(std::string const& path, Meta const& meta, RunState const& run) {
  mpi::agree(comm_, [&] {
    if (leads()) {
      took(read_patiently([&] { return canonical(path); }));
      if (!is_local() && has(path)) {
        // A run that was killed may have changed names there, and not have synced that.
        aio::sync_directory(path);
      }
    }
    if (is_local()) {
      copies_->keep(parts_->newest_on_two_nodes(meta.step).value_or(meta.step));
    }
    if (comm_.rank() == 0) {
      log::info("checkpoint {} loaded", path);
      if (meta.state.layout != run.state.layout) {
        log::info("optimizer.moments={}, but the checkpoint has {}: moments were converted, {}",
                  run.state.moments, printable_name(meta.state.moments),
                  converts_exactly(meta.state.layout, run.state.layout) ? "exactly"
                                                                        : "rounded to nearest");
      }
    }
  });
}

std::vector<std::string> Store::spared() const {
  std::vector<std::string> paths{named_};
  for (std::string const& name : passed_over_) {
    paths.push_back(canonical(directory_ + "/" + name));
  }
  if (best_ && *best_ >= 0) {
    paths.push_back(canonical(directory_ + "/" + step_name(*best_)));
  }
  auto const& kept = kept_before_.by_interval;
  paths.insert(paths.end(), kept.begin(), kept.end());
  bool const lacks_best =
      !best_ || (*best_ >= 0 && !has_master(directory_ + "/" + step_name(*best_)));
  if (lacks_best && !kept_before_.best.empty()) {
    paths.push_back(kept_before_.best);
  }
  return paths;
}

std::int64_t Store::most_to_come(std::int64_t step, std::int64_t last) const {
  return checkpoint::most_to_come(directory_, retention_, step, last, spared()) +
         (best_ && last > step ? 1 : 0);
}

SaveStats Store::save(Meta const& meta, state::ShardMap const& map,
                      std::vector<state::Subgroup> const& subgroups, tiers::Tiers& tiers) {
  begin(meta, map, subgroups, tiers, team_size(), {});
  return finish_save();
}

void Store::begin_save(Meta const& meta, state::ShardMap const& map,
                       std::vector<state::Subgroup> const& subgroups, tiers::Tiers& tiers) {
  begin(meta, map, subgroups, tiers, 1, split_ ? SaveRate{} : rate_);
  saving_->stats.in_two_parts = true;
}

void Store::begin(Meta const& meta, state::ShardMap const& map,
                  std::vector<state::Subgroup> const& subgroups, tiers::Tiers& tiers, int threads,
                  SaveRate const& rate) {
  require(map.ranks() == comm_.size(), "checkpoint: one shard per rank");
  require(!is_saving(), "checkpoint: one save at a time");
  Stopwatch const watch;
  if (removal_.is_under_way() && comm_.rank() == 0) {
    log::dated("step {:>6}  its save waits until older checkpoints are removed", meta.step);
  }
  finish_removal();
  auto saving = std::make_unique<Saving>(Saving{
      .meta = meta, .stats = {.path = directory_ + "/" + step_name(meta.step)}, .rate = rate});
  saving->meta.start = start_;
  saving->write = [this, &subgroups, &tiers, threads, to = saving.get()] {
    to->files.reset();
    if (make_step_directory(to->meta.step, space_for(to->meta.state.layout, subgroups))) {
      begin_files(*to, subgroups, tiers, threads);
    }
  };
  auto const begin_it = [&] {
    if (is_local()) {
      remove_passed_over();
      mpi::agree(comm_, [&] { remove_older(); });
    }
    saving->write();
  };
  try {
    save_patiently(comm_, meta.step, begin_it, begin_it);
  } catch (mpi::AgreedError const& error) {
    throw failed_save(key_, directory_, meta.step, error);
  }
  saving->stats.stood_still = saving->stats.seconds = watch.elapsed();
  saving_ = std::move(saving);
}

bool Store::may_update() {
  if (saving_->rate.bytes_per_second <= 0.0 || !saving_->files) {
    return true;
  }
  Stopwatch const watch;
  saving_->files->wait_for_held();
  bool const done = comm_.minimum(saving_->files->is_done() ? 1 : 0) == 1;
  saving_->stats.stood_still += watch.elapsed();
  return done;
}

SaveStats Store::finish_save() {
  require(is_saving(), "checkpoint: a save has begun");
  Stopwatch const watch;
  auto const saving = std::exchange(saving_, nullptr);
  SaveStats& stats = saving->stats;
  saving->written.lap();
  std::int64_t const step = saving->meta.step;
  if (saving->files) {
    auto const complete_it = [&] { complete(*saving); };
    auto const write_again = [&] {
      saving->write();
      if (saving->files) {
        complete(*saving);
      }
    };
    try {
      if (saving->rate.bytes_per_second > 0.0) {
        complete_it();  // the state may be another by now
      } else {
        save_patiently(comm_, step, complete_it, write_again);
      }
    } catch (mpi::AgreedError const& error) {
      throw failed_save(key_, directory_, step, error);
    }
  }
  stats.referred = comm_.sum(stats.referred);
  tidy(step, stats.referred > 0);
  if (stats.referred > 0) {
    comm_.barrier();  // the space is free before any rank's update begins
  }
  stats.stood_still += watch.elapsed();
  stats.seconds += saving->written.elapsed();
  return stats;
}

void Store::settle_earlier_save() {
  finish_removal();
  mpi::agree(comm_, [&] {
    if (leads()) {
      read_patiently([&] { settle_replaced(directory_); });
    }
  });
}

void Store::finish_earlier_save() {
  settle_earlier_save();
  passed_over_.clear();
  mpi::agree(comm_, [&] {
    if (leads()) {
      passed_over_ = read_patiently([&] { return set_listed_aside(directory_, named_); });
    }
  });
}

void Store::pass_over_after(std::int64_t step) {
  finish_earlier_save();
  mpi::agree(comm_, [&] {
    if (!leads()) {
      return;
    }
    std::string last;
    for (StepDirectory const& found : step_directories(directory_)) {
      if (found.step > step && canonical(found.path) != named_) {
        last = step_name(found.step);
        passed_over_.push_back(last);
      }
    }
    if (!last.empty() && is_local()) {
      log::warning("{} has steps after {} of an earlier run, up to {}; the first save removes them",
                   directory_, step, last);
    } else if (!last.empty()) {
      log::warning(
          "{} has steps after {} of an earlier run, up to {}; the first save sets them aside as "
          "passed-over-step-N, but replaces one of its own step; move those that you need",
          directory_, step, last);
    }
  });
}

Meta Store::restore(std::string const& path, RunState const& run, state::ShardMap const& map,
                    std::vector<state::Subgroup> const& subgroups, tiers::Tiers& tiers,
                    OnSubgroup const& on_subgroup) {
  require(map.ranks() == comm_.size(), "checkpoint: one shard per rank");
  settle_earlier_save();  // the named checkpoint may have been put away
  if (is_local() && has(path)) {
    (void)parts_->find(map);
    parts_->bring(fs::path{canonical(path)}.filename().string());
  }
  mpi::agree(comm_, [&] {
    if (!leads()) {
      return;
    }
    if (!has_master(path)) {
      throw DataError{"checkpoint.resume=" + why_no_checkpoint(path, directory_)};
    }
  });
  Outcome outcome =
      try_load(path, {run, subgroups, tiers, on_subgroup, split(), has_parts()}, comm_);
  if (!outcome.meta) {
    throw mpi::AgreedError{ExitCode::data, outcome.problem, 0};
  }
  ending_ = std::move(outcome.ending);
  say_loaded(path, *outcome.meta, run);
  named_ = current_;
  return *outcome.meta;
}

}  // namespace offstage::checkpoint
