#include "train/saves/local_level.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <random>
#include <system_error>

#include "base/error.hpp"
#include "base/log.hpp"
#include "base/path.hpp"
#include "base/regular_file.hpp"
#include "base/users.hpp"
#include "checkpoint/directory.hpp"
#include "checkpoint/extent_file.hpp"
#include "checkpoint/node_ring.hpp"
#include "checkpoint/retention.hpp"
#include "platform/aio/file.hpp"
#include "platform/cpu/affinity.hpp"
#include "tiers/spill_directory.hpp"
#include "train/files/foreign.hpp"

namespace offstage::train {
namespace {

namespace fs = std::filesystem;

// Most copies of another node, in level 3: one is made while the one before is there.
constexpr std::int64_t most_copies = 2;
constexpr char const* marker_prefix = "node-";

/// The directory as all nodes know it.
std::string plain(std::string const& directory) {
  return without_slash(fs::absolute(directory).lexically_normal()).string();
}

void require_node_storage(config::RunConfig const& config, std::string const& key) {
  std::string const& directory = config.checkpoint.local;
  std::error_code error;
  if (!fs::is_directory(directory, error)) {
    throw IoError{
        fmt::format("{}: there is no such directory on {}; each node needs one on its own storage: "
                    "create it there or leave checkpoint.local out",
                    key, cpu::host_name())};
  }
  if (access(directory.c_str(), W_OK | X_OK) != 0) {
    throw IoError{
        fmt::format("{}: cannot write: {}; name a directory in which you may create files", key,
                    std::generic_category().message(errno))};
  }
  if (!config.allow_tmpfs && tiers::lies_in_memory(directory)) {
    throw UsageError{fmt::format(
        "{} lies in host memory (tmpfs), which tiers.host-memory would not count and a node that "
        "restarts loses; name a directory on a disk, or set tiers.allow-tmpfs=true",
        key)};
  }
  for (std::string const& other : {config.checkpoint.dir, config.run_dir}) {
    if (fs::equivalent(directory, other, error)) {
      throw UsageError{fmt::format(
          "{}: is checkpoint.dir or run.dir; level 1 is for storage of the node beside that", key)};
    }
  }
}

}  // namespace

LocalLevel::LocalLevel(config::RunConfig& config, mpi::Communicator const& comm)
    : comm_{comm},
      node_{comm.split_by_node()},
      checkpoints_{config.checkpoint.dir},
      key_{"checkpoint.local=" + config.checkpoint.local},
      makes_copies_{config.checkpoint.partner} {
  config.checkpoint.nodes = static_cast<int>(comm_.sum(std::int64_t{node_.rank() == 0}));
  mpi::agree(comm_, [&] {
    require_node_storage(config, key_);
    if (makes_copies_ && config.checkpoint.nodes == 1) {
      throw UsageError{
          "checkpoint.partner=copy: this run has one node, and so no partner that could have a "
          "copy; leave checkpoint.partner out, or start on two nodes or more"};
    }
  });
  try {
    choose(config);
    make(config);
    // Before the lock, of which other nodes would hear that this very run holds it.
    refuse_sharing(config);
    take(config);
    find_near_paths(config);
  } catch (mpi::AgreedError const&) {
    tidy();
    throw;
  }
  config.checkpoint.level_1 = path_;
}

LocalLevel::~LocalLevel() {
  tidy();
}

void LocalLevel::keep(std::int64_t step) {
  if (comm_.rank() == 0) {
    checkpoint::add_start(directory_.starts, {start_, step});
    checkpoint::record_local_directory(checkpoints_, directory_);
  }
}

void LocalLevel::tidy() noexcept {
  if (taken_ || lock_) {
    remove_empty();
  } else {  // the files there are not this run's; where there is none, it made the directory
    rmdir(path_.c_str());
  }
  // The next start takes what stays there.
  if (std::error_code error; comm_.rank() == 0 && !fs::exists(path_, error)) {
    checkpoint::withdraw_local_directory(checkpoints_);
  }
}

void LocalLevel::remove_empty() noexcept {
  // A directory that is not empty stays. The last rank of the node that comes here finds no slots
  // of others.
  unlink(marker_of(comm_.rank()).c_str());
  rmdir(fmt::format("{}/{}", path_, checkpoint::slots_name).c_str());
  rmdir(copies_.c_str());
  try {
    if (checkpoint::names_of(path_) == std::vector<std::string>{RunLock::file_name}) {
      checkpoint::remove_file(fmt::format("{}/{}", path_, RunLock::file_name));
    }
  } catch (std::exception const&) {  // the directory is not there any more, or stays
  }
  rmdir(path_.c_str());
}

void LocalLevel::choose(config::RunConfig const& config) {
  mpi::agree(comm_, [&] {
    if (comm_.rank() == 0) {
      directory_ = checkpoint::choose_local_directory(checkpoints_, plain(config.checkpoint.local));
      checkpoint::announce_local_directory(checkpoints_, directory_);
    }
  });
  std::string const text = comm_.broadcast(text_of(directory_), 0);
  directory_ = checkpoint::parse_local_directory(text).value();
  path_ = directory_.path();
  copies_ = directory_.copies_path();
  start_ = comm_.broadcast_value(checkpoint::random_id(), 0);
}

/// Checks that the files in a directory of this run are nobody else's.
void LocalLevel::require_own(config::RunConfig const& config, std::string const& path) const {
  refuse_link(key_ + ": cannot use", path);
  if (auto const owner = foreign_owner(path, ::geteuid()); owner && !config.allow_foreign) {
    throw not_yours(fmt::format("{}: {}", key_, path), *owner);
  }
}

void LocalLevel::make(config::RunConfig const& config) {
  mpi::agree(comm_, [&] {
    if (node_.rank() == 0) {
      aio::make_directory(path_);
      require_own(config, path_);
      if (access(path_.c_str(), W_OK | X_OK) != 0) {
        throw IoError{fmt::format("{}: cannot write {}: {}{}; name another checkpoint.local", key_,
                                  path_, std::generic_category().message(errno),
                                  foreign_words(path_))};
      }
    }
  });
}

void LocalLevel::take(config::RunConfig const& config) {
  mpi::agree(comm_, [&] {
    if (node_.rank() != 0) {
      return;
    }
    if (makes_copies_) {
      aio::make_directory(copies_);
    }
    if (makes_copies_ || is_link(copies_) || checkpoint::size_of(copies_)) {
      require_own(config, copies_);
    }
    lock_ = std::make_unique<RunLock>(path_, "checkpoint.local");
    checkpoint::remove_old_slots(path_);
    // Saves and copies that were killed take the room of slots and of the saves to come.
    checkpoint::remove_unfinished(path_);
    checkpoint::remove_unfinished(copies_);
    for (std::string const& name : checkpoint::names_of(path_)) {
      if (name.starts_with(marker_prefix)) {
        checkpoint::remove_file(path_ + "/" + name);  // a killed run's
      }
    }
  });
  taken_ = true;
}

std::string LocalLevel::marker_of(int rank) const {
  return fmt::format("{}/{}{:06}", path_, marker_prefix, rank);
}

void LocalLevel::refuse_sharing(config::RunConfig const& config) const {
  std::string const mine = marker_of(comm_.rank());
  bool const leads = node_.rank() == 0;
  // A marker that another start left has another number.
  auto const start = fmt::format("{}\n", comm_.broadcast_value(std::random_device{}(), 0));
  mpi::agree(comm_, [&] {
    if (leads) {
      if (checkpoint::size_of(mine)) {
        checkpoint::remove_file(mine);  // a killed run's: take() has not tidied up yet
      }
      checkpoint::write_text(mine, start);
    }
  });
  bool alone = true;
  mpi::agree(comm_, [&] {
    for (int rank = 0; leads && comm_.size() > node_.size() && rank < comm_.size(); ++rank) {
      std::string const other = marker_of(rank);
      alone = alone && (rank == comm_.rank() || !checkpoint::size_of_file(other) ||
                        checkpoint::read_text(other, KiB) != start);
    }
  });  // all have looked
  mpi::agree(comm_, [&] {
    if (leads) {
      checkpoint::remove_file(mine);
    }
    if (!alone) {
      throw UsageError{fmt::format(
          "{} is one directory for several nodes; level 1 takes storage that each node has for "
          "itself: name that, or leave checkpoint.local out, as checkpoint.dir={} is for what all "
          "nodes see",
          key_, config.checkpoint.dir)};
    }
  });
}

void LocalLevel::find_near_paths(config::RunConfig& config) const {
  for (tiers::PathSettings& path : config.paths) {
    if (path.persistent || config.optimizer.split_parameter) {
      continue;
    }
    try {
      path.nearby = checkpoint::may_link(
          path.directory, path_,
          fmt::format("offstage-{}-{:04}", fs::path{path_}.filename().string(), comm_.rank()));
    } catch (IoError const&) {
      path.nearby = false;  // the path does not exist or cannot be written, which the tiers report
    }
    std::int64_t const nodes = config.checkpoint.nodes;
    std::int64_t const without = comm_.sum(std::int64_t{node_.rank() == 0 && !path.nearby});
    if (without > 0 && comm_.rank() == 0) {
      log::info("checkpoint.local: no links from {} to {}{}; level 1 copies the extents there",
                path.directory, path_,
                without < nodes ? fmt::format(" on {} of {} nodes", without, nodes) : "");
    }
  }
}

std::unique_ptr<checkpoint::Store> LocalLevel::make_store() const {
  return std::make_unique<checkpoint::Store>(path_, comm_,
                                             checkpoint::Store::Node{.ranks = node_,
                                                                     .copies = copies_,
                                                                     .makes_copies = makes_copies_,
                                                                     .start = start_,
                                                                     .starts = directory_.starts});
}

Bytes LocalLevel::of_other_node(Bytes mine) const {
  if (!makes_copies_) {
    return 0;
  }
  auto const nodes = comm_.all_gather_value(checkpoint::NodeRing{comm_, node_}.here());
  auto const parts = comm_.all_gather_value(mine);
  auto const count = static_cast<std::size_t>(*std::ranges::max_element(nodes)) + 1;
  std::size_t const here = nodes[static_cast<std::size_t>(comm_.rank())];
  Bytes bytes = 0;
  for (std::size_t rank = 0; rank < nodes.size(); ++rank) {
    bytes += (nodes[rank] + 1) % count == here ? parts[rank] : 0;
  }
  return bytes;
}

void LocalLevel::require_space(Bytes mine, bool begins_there) const {
  std::int64_t const most = checkpoint::most_in_level_1(makes_copies_, begins_there);
  Bytes const each = node_.sum(mine);
  Bytes const copy = of_other_node(mine);
  mpi::agree(comm_, [&] {
    if (node_.rank() != 0) {
      return;
    }
    // At most one of the existing checkpoints stays.
    auto const stays = [](std::string const& path) {
      auto const found = checkpoint::step_directories(path);
      return std::ranges::any_of(found, [](checkpoint::StepDirectory const& step) {
        return checkpoint::has_master(step.path);
      });
    };
    Bytes const needed =
        (most - (stays(path_) ? 1 : 0)) * each + (most_copies - (stays(copies_) ? 1 : 0)) * copy;
    Bytes const free = aio::free_bytes(path_);
    if (free < needed) {
      throw IoError{fmt::format(
          "{}: level 1 holds up to {} checkpoints of {} at a time on {}{}, which takes "
          "{} more, but {} is free there; make room, or leave {} out",
          key_, most, format_bytes(each), cpu::host_name(),
          copy > 0 ? fmt::format(", and {} copies of {}", most_copies, format_bytes(copy)) : "",
          format_bytes(needed), format_bytes(free),
          copy > 0 ? "checkpoint.partner" : "checkpoint.local")};
    }
  });
}

}  // namespace offstage::train
