#pragma once

#include <memory>
#include <string>

#include "base/units.hpp"
#include "checkpoint/local_directory.hpp"
#include "checkpoint/store.hpp"
#include "config/run_config.hpp"
#include "platform/mpi/communicator.hpp"
#include "train/files/run_lock.hpp"

namespace offstage::train {

/// Where level 1 of a run lies, and the copies of another node's, level 3: directories of its own
/// in checkpoint.local, on each node. Made durably, and locked; slots that a killed run left there
/// are removed, and which tiers.path may share its extents is found out.
///
/// Until keep() the record of an earlier run stays as it is: a run that does not get to its first
/// step changes nothing. Directories go when they are empty.
///
/// Collective: construction. Threads: the main one.
/// Errors:  UsageError, as mpi::AgreedError: checkpoint.local lies in host memory (unless
///          tiers.allow-tmpfs=true) or is one directory of several nodes; checkpoint.partner on one
///          node. IoError: it is not there, cannot be written, or what lies in it belongs to
///          somebody else (unless run.allow-foreign=true). LockedError.
class LocalLevel {
 public:
  /// `config`: gets checkpoint.level_1 and nodes, and tiers::PathSettings::nearby.
  LocalLevel(config::RunConfig& config, mpi::Communicator const& comm);
  ~LocalLevel();
  LocalLevel(LocalLevel const&) = delete;
  LocalLevel& operator=(LocalLevel const&) = delete;

  /// From now on this is the run's level 1, durably. Not collective; all ranks. Errors: IoError.
  void keep() const;
  [[nodiscard]] std::unique_ptr<checkpoint::Store> make_store() const;
  /// The checkpoints that are there at a time have room, and the two copies of the other node's,
  /// with those that are there already; `mine`: this rank's part of one, `begins_there`: the run
  /// was told to begin at one of them. Collective. Errors: IoError, as mpi::AgreedError.
  void require_space(Bytes mine, bool begins_there) const;

 private:
  void tidy() noexcept;
  void choose(config::RunConfig const& config);
  void make(config::RunConfig const& config);
  void require_own(config::RunConfig const& config, std::string const& path) const;
  /// Bytes of the copies of one checkpoint that come here.
  [[nodiscard]] Bytes of_other_node(Bytes mine) const;
  [[nodiscard]] std::string marker_of(int rank) const;
  void refuse_sharing(config::RunConfig const& config) const;
  void find_near_paths(config::RunConfig& config) const;

  mpi::Communicator const& comm_;
  mpi::Communicator node_;
  std::string checkpoints_;
  std::string key_;                       ///< "checkpoint.local=DIR"
  checkpoint::LocalDirectory directory_;  ///< of rank 0
  std::string path_;                      ///< of the run's own directory
  std::string copies_;                    ///< of that of level 3
  bool makes_copies_;
  std::unique_ptr<RunLock> lock_;  ///< of path_; on a node's first rank
  bool made_ = false;              ///< all nodes have theirs
};

}  // namespace offstage::train
