#include "checkpoint/store.hpp"

#include <fmt/format.h>

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <utility>

#include "base/error.hpp"
#include "base/log.hpp"
#include "base/printable.hpp"
#include "base/stopwatch.hpp"
#include "base/team.hpp"
#include "checkpoint/convert_moments.hpp"
#include "checkpoint/directory.hpp"
#include "checkpoint/inspect.hpp"
#include "checkpoint/loading.hpp"
#include "checkpoint/patience.hpp"
#include "checkpoint/replacement.hpp"
#include "checkpoint/retention.hpp"
#include "checkpoint/staging.hpp"
#include "checkpoint/writer.hpp"
#include "platform/aio/file.hpp"

namespace offstage::checkpoint {
namespace {

namespace fs = std::filesystem;

/// Every rank's text, at rank 0; empty elsewhere.
std::vector<std::string> gather(mpi::Communicator const& comm, std::string const& mine) {
  auto const sizes = comm.all_gather_value(static_cast<Bytes>(mine.size()));
  std::vector<mpi::Slice> parts;
  Bytes total = 0;
  for (Bytes const size : sizes) {
    parts.push_back({total, size});
    total += size;
  }
  std::string all(comm.rank() == 0 ? static_cast<std::size_t>(total) : 0, '\0');
  comm.gather(std::as_bytes(std::span{mine}), std::as_writable_bytes(std::span{all}), parts, 0);
  std::vector<std::string> texts;
  if (comm.rank() == 0) {
    for (mpi::Slice const& part : parts) {
      texts.push_back(
          all.substr(static_cast<std::size_t>(part.offset), static_cast<std::size_t>(part.size)));
    }
  }
  return texts;
}

void require_space(std::string const& directory, Bytes space) {
  Bytes const free = aio::free_bytes(directory);
  if (free < space) {
    throw IoError{
        fmt::format("it takes {}, but {} is free there", format_bytes(space), format_bytes(free))};
  }
}

/// What goes wrong while tidying up is no reason to fail a save; false if something did.
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

/// Makes an empty step directory; false if the checkpoint is there already. Nothing that has a master is removed.
bool prepare(std::string const& directory, std::int64_t step, Bytes space, bool is_current) {
  std::string const path = directory + "/" + step_name(step);
  make_directory(directory);
  if (size_of(path)) {
    if (is_current && inspect(path).state == Inspection::State::complete) {
      return false;
    }
    if (size_of(path + "/" + master_name)) {
      log::warning("checkpoint {} is damaged or of another run and will be replaced", path);
    } else {
      remove_checkpoint(path);
    }
  }
  try {
    put_away(directory, step);
    require_space(directory, space);
    make_directory(path);
  } catch (IoError const&) {
    rmdir(path.c_str());  // it is empty, or not this save's
    attempt([&] { settle_replaced(directory); });
    throw;
  }
  return true;
}

/// An I/O error of a save, with the key that it belongs to.
mpi::AgreedError failed_save(std::string const& key, std::string const& directory,
                             std::int64_t step, mpi::AgreedError const& error) {
  if (error.code() != ExitCode::io) {
    return error;
  }
  return {ExitCode::io,
          fmt::format("{}={}: cannot save step {}: {}; earlier checkpoints are as they "
                      "were: make room or put right what is wrong, and run the same command again",
                      key, directory, step, error.what()),
          error.failed_rank()};
}

}  // namespace

/// A save between its two parts.
struct Store::Saving {
  Meta meta;
  SaveStats stats;
  double rate{};                     ///< 0: nothing is written beside an update
  std::unique_ptr<Staging> files{};  ///< null: the checkpoint was there already
  Stopwatch written{};               ///< since all ranks' files are
};

Store::Store(std::string directory, Retention retention, mpi::Communicator const& comm,
             std::string key)
    : directory_{std::move(directory)}, retention_{retention}, comm_{comm}, key_{std::move(key)} {
  require(retention.keep >= 1, "checkpoint: keep is at least 1");
}

Store::~Store() = default;

bool Store::make_step_directory(std::int64_t step, Bytes space) {
  Bytes const total = comm_.sum(space);
  bool fresh = true;
  mpi::agree(comm_, [&] {
    if (comm_.rank() == 0) {
      bool const is_current = canonical(directory_ + "/" + step_name(step)) == current_;
      fresh = prepare(directory_, step, total, is_current);
    }
  });
  return comm_.broadcast_value(fresh, 0);
}

void Store::begin_files(Saving& saving, std::vector<state::Subgroup> const& subgroups,
                        tiers::Tiers& tiers, int threads) {
  try {
    mpi::agree(comm_, [&] {
      saving.files = std::make_unique<Staging>(threads, saving.stats.path, comm_.rank(),
                                               comm_.size(), saving.meta.state.layout, subgroups,
                                               tiers, split(), saving.rate);
    });
  } catch (mpi::AgreedError const&) {
    saving.files.reset();
    comm_.barrier();  // nobody writes any more
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
    saving.stats.seconds += Seconds{comm_.maximum(saving.files->seconds().count())};
    saving.written.lap();
    saving.stats.bytes = mine.copied;
    saving.stats.referred = mine.referred;
    std::vector<std::string> const manifests = gather(comm_, mine.manifest);
    mpi::agree(comm_, [&] {
      if (comm_.rank() == 0) {
        if (!passed_over_.empty()) {
          list_passed_over(directory_, meta.step, passed_over_);
        }
        std::string const name = canonical(path);
        commit_master(path, meta, manifests);
        took(name);
      }
    });
  } catch (mpi::AgreedError const&) {
    abandon(meta.step);
    throw;
  }
}

void Store::abandon(std::int64_t step) const noexcept {
  if (comm_.rank() != 0) {
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
  if (comm_.rank() != 0) {
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
  attempt([&] { removal_.begin(superfluous(directory_, retention_, saved, spared(), sound_)); });
  if (by_reference) {
    finish_removal();
  }
}

void Store::took(std::string const& canonical_path) {
  current_ = canonical_path;
  sound_.insert(canonical_path);
}

void Store::say_loaded(std::string const& path, Meta const& meta, RunState const& run) {
  mpi::agree(comm_, [&] {
    if (comm_.rank() == 0) {
      took(read_patiently([&] { return canonical(path); }));
      log::info("checkpoint {} loaded", path);
      if (meta.state.layout != run.state.layout) {
        log::info("optimizer.moments={} where the checkpoint has {}: moments converted, {}",
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
  return paths;
}

std::int64_t Store::most_to_come(std::int64_t step, std::int64_t last) const {
  return checkpoint::most_to_come(directory_, retention_, step, last, spared());
}

SaveStats Store::save(Meta const& meta, state::ShardMap const& map,
                      std::vector<state::Subgroup> const& subgroups, tiers::Tiers& tiers) {
  begin(meta, map, subgroups, tiers, team_size(), 0.0);
  return finish_save();
}

void Store::begin_save(Meta const& meta, state::ShardMap const& map,
                       std::vector<state::Subgroup> const& subgroups, tiers::Tiers& tiers) {
  begin(meta, map, subgroups, tiers, 1, split_ ? 0.0 : rate_);
  saving_->stats.in_two_parts = true;
}

void Store::begin(Meta const& meta, state::ShardMap const& map,
                  std::vector<state::Subgroup> const& subgroups, tiers::Tiers& tiers, int threads,
                  double rate) {
  require(map.ranks() == comm_.size(), "checkpoint: one shard per rank");
  require(!is_saving(), "checkpoint: one save at a time");
  Stopwatch const watch;
  if (removal_.goes_on()) {
    log::info("step {:>6}  its save waits until older checkpoints are removed", meta.step);
  }
  finish_removal();
  auto saving = std::make_unique<Saving>(Saving{
      .meta = meta, .stats = {.path = directory_ + "/" + step_name(meta.step)}, .rate = rate});
  try {
    if (make_step_directory(meta.step, space_for(meta.state.layout, subgroups))) {
      begin_files(*saving, subgroups, tiers, threads);
    }
  } catch (mpi::AgreedError const& error) {
    throw failed_save(key_, directory_, meta.step, error);
  }
  saving->stats.stood_still = saving->stats.seconds = watch.elapsed();
  saving_ = std::move(saving);
}

bool Store::may_update() {
  if (saving_->rate <= 0.0 || !saving_->files) {
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
    try {
      complete(*saving);
    } catch (mpi::AgreedError const& error) {
      throw failed_save(key_, directory_, step, error);
    }
  }
  stats.referred = comm_.sum(stats.referred);
  tidy(step, stats.referred > 0);
  if (stats.referred > 0) {
    comm_.barrier();  // the space is free when anybody's update begins
  }
  stats.stood_still += watch.elapsed();
  stats.seconds += saving->written.elapsed();
  return stats;
}

std::optional<Meta> Store::restore_newest(RunState const& run, state::ShardMap const& map,
                                          std::vector<state::Subgroup> const& subgroups,
                                          tiers::Tiers& tiers, OnSubgroup const& on_subgroup) {
  require(map.ranks() == comm_.size(), "checkpoint: one shard per rank");
  finish_earlier_save();
  std::vector<std::string> const names = candidates(directory_, passed_over_, comm_);
  Outcome outcome;
  for (std::string const& name : names) {
    std::string const path = directory_ + "/" + name;
    outcome = try_load(path, {run, subgroups, tiers, on_subgroup, split()}, comm_);
    if (outcome.meta) {
      say_loaded(path, *outcome.meta, run);
      return outcome.meta;
    }
    passed_over_.push_back(name);
    if (comm_.rank() == 0) {
      log::warning("checkpoint {} passed over: {}", name, outcome.problem);
    }
  }
  if (names.empty()) {
    return std::nullopt;
  }
  throw mpi::AgreedError{ExitCode::data,
                         fmt::format("no checkpoint in {} can be loaded; the last one tried: {}; "
                                     "checkpoint.resume=none starts afresh",
                                     directory_, outcome.problem),
                         0};
}

void Store::settle_earlier_save() {
  finish_removal();
  mpi::agree(comm_, [&] {
    if (comm_.rank() == 0) {
      read_patiently([&] { settle_replaced(directory_); });
    }
  });
}

void Store::finish_earlier_save() {
  settle_earlier_save();
  passed_over_.clear();
  mpi::agree(comm_, [&] {
    if (comm_.rank() == 0) {
      passed_over_ = read_patiently([&] { return set_listed_aside(directory_, named_); });
    }
  });
}

void Store::pass_over_after(std::int64_t step) {
  finish_earlier_save();
  mpi::agree(comm_, [&] {
    if (comm_.rank() != 0) {
      return;
    }
    std::string last;
    for (StepDirectory const& found : step_directories(directory_)) {
      if (found.step > step && canonical(found.path) != named_) {
        last = step_name(found.step);
        passed_over_.push_back(last);
      }
    }
    if (!last.empty()) {
      log::warning(
          "{} has steps after {} of an earlier run, up to {}; the first save sets them aside as "
          "passed-over-step-N",
          directory_, step, last);
    }
  });
}

Meta Store::restore(std::string const& path, RunState const& run, state::ShardMap const& map,
                    std::vector<state::Subgroup> const& subgroups, tiers::Tiers& tiers,
                    OnSubgroup const& on_subgroup) {
  require(map.ranks() == comm_.size(), "checkpoint: one shard per rank");
  settle_earlier_save();  // the one that is named may have been put away
  mpi::agree(comm_, [&] {
    if (comm_.rank() != 0) {
      return;
    }
    if (!size_of(path)) {
      throw DataError{"there is no checkpoint " + path};
    }
    if (!size_of(path + "/" + master_name)) {
      throw DataError{
          fmt::format("{} is no complete checkpoint: it has no {}; name a directory "
                      "like step-000000100",
                      path, master_name)};
    }
  });
  Outcome outcome = try_load(path, {run, subgroups, tiers, on_subgroup, split()}, comm_);
  if (!outcome.meta) {
    throw mpi::AgreedError{ExitCode::data, outcome.problem, 0};
  }
  say_loaded(path, *outcome.meta, run);
  named_ = current_;
  return *outcome.meta;
}

}  // namespace offstage::checkpoint
