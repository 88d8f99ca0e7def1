#include "checkpoint/store.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <utility>

#include "base/error.hpp"
#include "base/log.hpp"
#include "base/stopwatch.hpp"
#include "checkpoint/directory.hpp"
#include "checkpoint/inspect.hpp"
#include "checkpoint/master.hpp"
#include "checkpoint/reader.hpp"
#include "checkpoint/retention.hpp"
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

/// Makes an empty step directory; false if the checkpoint is there already.
bool prepare(std::string const& directory, std::string const& path, Bytes space, bool is_current) {
  make_directory(directory);
  if (size_of(path)) {
    bool const complete = inspect(path).state == Inspection::State::complete;
    if (complete && is_current) {
      return false;
    }
    if (size_of(path + "/" + master_name)) {
      log::warning("checkpoint {} is damaged or of another run and is replaced", path);
    }
    remove_checkpoint(path);
  }
  require_space(directory, space);
  make_directory(path);
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

/// Loads a rank's part; the Meta of the checkpoint. Errors: DataError if the checkpoint cannot be
/// used, Refused if no older one should be tried either.
struct Loader {
  state::ModelShape const& model;
  std::vector<state::Subgroup> const& subgroups;
  tiers::Tiers& tiers;
  OnSubgroup const& on_subgroup;

  [[nodiscard]] Meta load(std::string const& path, mpi::Communicator const& comm) const {
    Master master = read_master(path);
    require_same_model(path, master.meta.model, model);
    Reader reader{path, std::move(master)};
    // Every file belongs to the checkpoint, also one of a rank that owned nothing.
    for (int rank = comm.rank(); rank < reader.map().ranks(); rank += comm.size()) {
      (void)reader.manifest(rank);
    }
    for (state::Subgroup const& subgroup : subgroups) {
      load(reader, subgroup);
    }
    return reader.meta();
  }

 private:
  void load(Reader& reader, state::Subgroup const& subgroup) const {
    tiers::Lease lease = tiers.create(subgroup.index);
    std::span<std::byte> const state = lease.mutable_bytes();
    require(static_cast<Bytes>(state.size()) == subgroup.state_bytes(),
            "checkpoint: an extent holds p, m and v of its subgroup");
    reader.read(subgroup.pieces, state);
    on_subgroup(subgroup, {reinterpret_cast<float const*>(state.data()),
                           static_cast<std::size_t>(subgroup.size)});
    lease.commit();
  }
};

/// What became of loading a checkpoint, the same on every rank.
struct Outcome {
  std::optional<Meta> meta;
  std::string problem;  ///< if there is no meta
};

/// Collective. Errors of the run's own tiers, and a refusal, are thrown on all ranks.
Outcome try_load(std::string const& path, Loader const& loader, mpi::Communicator const& comm) {
  Outcome outcome;
  bool refused = false;
  mpi::agree(comm, [&] {
    try {
      outcome.meta = loader.load(path, comm);
    } catch (Refused const& error) {
      outcome.problem = error.what();
      refused = true;
    } catch (DataError const& error) {
      outcome.problem = error.what();
    }
  });
  mpi::agree(comm, [&] {
    if (refused) {
      throw DataError{outcome.problem};
    }
  });
  try {
    mpi::agree(comm, [&] {
      if (!outcome.meta) {
        throw DataError{outcome.problem};
      }
    });
  } catch (mpi::AgreedError const& error) {
    return {std::nullopt, error.what()};
  }
  return outcome;
}

/// Names of the step directories that have a master, newest first, as rank 0 sees them.
/// `without` those of rank 0.
std::vector<std::string> candidates(std::string const& directory,
                                    std::vector<std::string> const& without,
                                    mpi::Communicator const& comm) {
  std::string names;
  mpi::agree(comm, [&] {
    if (comm.rank() != 0) {
      return;
    }
    auto const directories = step_directories(directory);
    for (auto it = directories.rbegin(); it != directories.rend(); ++it) {
      std::string const name = fs::path{it->path}.filename().string();
      if (std::ranges::find(without, name) != without.end()) {
        continue;
      }
      if (size_of(it->path + "/" + master_name)) {
        names += name + "\n";
      } else {
        log::warning("checkpoint {} passed over: its save did not finish", it->path);
      }
    }
  });
  names = comm.broadcast(std::move(names), 0);
  std::vector<std::string> split;
  for (std::size_t begin = 0; begin < names.size();) {
    std::size_t const end = names.find('\n', begin);
    split.push_back(names.substr(begin, end - begin));
    begin = end + 1;
  }
  return split;
}

}  // namespace

Store::Store(std::string directory, Retention retention, mpi::Communicator const& comm,
             std::string key)
    : directory_{std::move(directory)}, retention_{retention}, comm_{comm}, key_{std::move(key)} {
  require(retention.keep >= 1, "checkpoint: keep is at least 1");
}

bool Store::begin(std::string const& path, Bytes space) {
  Bytes const total = comm_.sum(space);
  bool fresh = true;
  mpi::agree(comm_, [&] {
    if (comm_.rank() == 0) {
      fresh = prepare(directory_, path, total, canonical(path) == current_);
    }
  });
  return comm_.broadcast_value(fresh, 0);
}

void Store::write(SaveStats& stats, Meta const& meta, std::vector<state::Subgroup> const& subgroups,
                  tiers::Tiers& tiers) {
  std::string const& path = stats.path;
  try {
    RankFiles mine;
    mpi::agree(comm_,
               [&] { mine = write_rank_file(path, comm_.rank(), comm_.size(), subgroups, tiers); });
    stats.bytes = mine.copied;
    stats.referred = mine.referred;
    std::vector<std::string> const manifests = gather(comm_, mine.manifest);
    mpi::agree(comm_, [&] {
      if (comm_.rank() == 0) {
        if (!passed_over_.empty()) {
          list_passed_over(directory_, meta.step, passed_over_);
        }
        commit_master(path, meta, manifests);
      }
    });
  } catch (mpi::AgreedError const&) {
    abandon(path);
    throw;
  }
}

void Store::abandon(std::string const& path) const noexcept {
  if (comm_.rank() != 0) {
    return;
  }
  try {
    remove_checkpoint(path);
  } catch (std::exception const& error) {
    log::warning("files of a failed save stay: {}", error.what());
  }
}

void Store::tidy(std::int64_t saved) {
  bool const has_list = !passed_over_.empty();
  std::erase(passed_over_, step_name(saved));
  if (comm_.rank() != 0) {
    return;
  }
  bool aside = true;
  for (std::string const& name : passed_over_) {
    aside = set_aside(directory_, name) && aside;
  }
  if (aside && has_list && attempt([&] { remove_lists(directory_); })) {
    passed_over_.clear();
  }
  attempt([&] { prune(directory_, retention_, saved, spared()); });
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
  require(map.ranks() == comm_.size(), "checkpoint: one shard per rank");
  Stopwatch const watch;
  SaveStats stats{.path = directory_ + "/" + step_name(meta.step)};
  try {
    if (begin(stats.path, space_for(subgroups))) {
      write(stats, meta, subgroups, tiers);
    }
  } catch (mpi::AgreedError const& error) {
    throw failed_save(key_, directory_, meta.step, error);
  }
  current_ = canonical(stats.path);
  tidy(meta.step);
  stats.referred = comm_.sum(stats.referred);
  stats.seconds = watch.elapsed();
  return stats;
}

std::optional<Meta> Store::restore_newest(state::ModelShape const& model,
                                          state::ShardMap const& map,
                                          std::vector<state::Subgroup> const& subgroups,
                                          tiers::Tiers& tiers, OnSubgroup const& on_subgroup) {
  require(map.ranks() == comm_.size(), "checkpoint: one shard per rank");
  finish_earlier_save();
  std::vector<std::string> const names = candidates(directory_, passed_over_, comm_);
  Outcome outcome;
  for (std::string const& name : names) {
    std::string const path = directory_ + "/" + name;
    outcome = try_load(path, {model, subgroups, tiers, on_subgroup}, comm_);
    if (outcome.meta) {
      current_ = canonical(path);
      if (comm_.rank() == 0) {
        log::info("checkpoint {} loaded", path);
      }
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

void Store::finish_earlier_save() {
  passed_over_.clear();
  mpi::agree(comm_, [&] {
    if (comm_.rank() == 0) {
      passed_over_ = set_listed_aside(directory_, named_);
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

Meta Store::restore(std::string const& path, state::ModelShape const& model,
                    state::ShardMap const& map, std::vector<state::Subgroup> const& subgroups,
                    tiers::Tiers& tiers, OnSubgroup const& on_subgroup) {
  require(map.ranks() == comm_.size(), "checkpoint: one shard per rank");
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
  Outcome outcome = try_load(path, {model, subgroups, tiers, on_subgroup}, comm_);
  if (!outcome.meta) {
    throw mpi::AgreedError{ExitCode::data, outcome.problem, 0};
  }
  current_ = canonical(path);
  named_ = current_;
  if (comm_.rank() == 0) {
    log::info("checkpoint {} loaded", path);
  }
  return *outcome.meta;
}

}  // namespace offstage::checkpoint
