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
#include "checkpoint/writer.hpp"
#include "platform/aio/file.hpp"

namespace offstage::checkpoint {
namespace {

namespace fs = std::filesystem;

/// One name per directory, to tell whether two paths mean the same.
std::string canonical(std::string const& path) {
  std::error_code ignored;
  fs::path const found = fs::weakly_canonical(path, ignored);
  return found.has_filename() ? found.string() : found.parent_path().string();
}

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
    throw IoError{fmt::format(
        "cannot save a checkpoint in {}: it takes {}, but {} is free there; make room, lower "
        "checkpoint.keep or set another checkpoint.dir",
        directory, format_bytes(space), format_bytes(free))};
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

/// Removes what is no longer wanted. What goes wrong here is no reason to fail a save.
void prune(std::string const& directory, int keep, std::string const& saved) {
  using State = Inspection::State;
  auto directories = step_directories(directory);
  std::int64_t const step = *step_of(fs::path{saved}.filename().string());
  int kept = 1;  // the one just saved, even where another run left newer ones
  for (auto it = directories.rbegin(); it != directories.rend(); ++it) {
    if (canonical(it->path) == canonical(saved)) {
      continue;
    }
    State const state = inspect(it->path).state;
    bool const broken = state == State::unfinished || state == State::incomplete;
    bool const surplus = state == State::complete && ++kept > keep;
    if (surplus || (broken && it->step < step)) {
      remove_checkpoint(it->path);
    }
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

/// Step directories that have a master, newest first, as rank 0 sees them.
std::vector<std::string> candidates(std::string const& directory, mpi::Communicator const& comm) {
  std::string names;
  mpi::agree(comm, [&] {
    if (comm.rank() != 0) {
      return;
    }
    auto const directories = step_directories(directory);
    for (auto it = directories.rbegin(); it != directories.rend(); ++it) {
      if (size_of(it->path + "/" + master_name)) {
        names += fs::path{it->path}.filename().string() + "\n";
      } else {
        log::warning("checkpoint {} passed over: its save did not finish", it->path);
      }
    }
  });
  names = comm.broadcast(std::move(names), 0);
  std::vector<std::string> paths;
  for (std::size_t begin = 0; begin < names.size();) {
    std::size_t const end = names.find('\n', begin);
    paths.push_back(directory + "/" + names.substr(begin, end - begin));
    begin = end + 1;
  }
  return paths;
}

}  // namespace

Store::Store(std::string directory, int keep, mpi::Communicator const& comm)
    : directory_{std::move(directory)}, keep_{keep}, comm_{comm} {
  require(keep >= 1, "checkpoint: keep is at least 1");
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

void Store::write(std::string const& path, Meta const& meta,
                  std::vector<state::Subgroup> const& subgroups, tiers::Tiers& tiers) {
  std::string manifest;
  mpi::agree(comm_, [&] {
    manifest = write_rank_file(path, comm_.rank(), comm_.size(), subgroups, tiers);
  });
  std::vector<std::string> const manifests = gather(comm_, manifest);
  mpi::agree(comm_, [&] {
    if (comm_.rank() == 0) {
      commit_master(path, meta, manifests);
    }
  });
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

SaveStats Store::save(Meta const& meta, state::ShardMap const& map,
                      std::vector<state::Subgroup> const& subgroups, tiers::Tiers& tiers) {
  require(map.ranks() == comm_.size(), "checkpoint: one shard per rank");
  Stopwatch const watch;
  SaveStats stats{.path = directory_ + "/" + step_name(meta.step)};
  if (begin(stats.path, space_for(subgroups))) {
    try {
      write(stats.path, meta, subgroups, tiers);
    } catch (mpi::AgreedError const&) {
      abandon(stats.path);
      throw;
    }
    for (state::Subgroup const& subgroup : subgroups) {
      stats.bytes += subgroup.state_bytes();
    }
  }
  current_ = canonical(stats.path);
  if (comm_.rank() == 0) {
    try {
      prune(directory_, keep_, stats.path);
    } catch (std::exception const& error) {
      log::warning("an old checkpoint stays: {}", error.what());
    }
  }
  stats.seconds = watch.elapsed();
  return stats;
}

std::optional<Meta> Store::restore_newest(state::ModelShape const& model,
                                          state::ShardMap const& map,
                                          std::vector<state::Subgroup> const& subgroups,
                                          tiers::Tiers& tiers, OnSubgroup const& on_subgroup) {
  require(map.ranks() == comm_.size(), "checkpoint: one shard per rank");
  std::vector<std::string> const paths = candidates(directory_, comm_);
  Outcome outcome;
  for (std::string const& path : paths) {
    outcome = try_load(path, {model, subgroups, tiers, on_subgroup}, comm_);
    if (outcome.meta) {
      current_ = canonical(path);
      if (comm_.rank() == 0) {
        log::info("checkpoint {} loaded", path);
      }
      return outcome.meta;
    }
    if (comm_.rank() == 0) {
      log::warning("checkpoint {} passed over: {}", fs::path{path}.filename().string(),
                   outcome.problem);
    }
  }
  if (paths.empty()) {
    return std::nullopt;
  }
  throw mpi::AgreedError{ExitCode::data,
                         fmt::format("no checkpoint in {} can be loaded; the last one tried: {}; "
                                     "checkpoint.resume=none starts afresh",
                                     directory_, outcome.problem),
                         0};
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
  if (comm_.rank() == 0) {
    log::info("checkpoint {} loaded", path);
  }
  return *outcome.meta;
}

}  // namespace offstage::checkpoint
