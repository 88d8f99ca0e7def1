#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/units.hpp"
#include "checkpoint/local_directory.hpp"
#include "checkpoint/store.hpp"
#include "config/run_config.hpp"
#include "platform/mpi/communicator.hpp"
#include "train/files/run_lock.hpp"

namespace offstage::train {

/// The run's own directories of level 1, and of level 3 with copies of another node's level 1, in
/// checkpoint.local on each node. They are made durably, and locked. Slots that a killed run left
/// there are removed. The constructor also finds out which tiers.path may share its extents.
///
/// Until keep() the record of an earlier run stays as it is: a run that does not reach its first
/// step changes nothing. Empty directories are removed at the end.
///
/// Collective: construction. Threads: the main one.
/// Errors:     UsageError, as mpi::AgreedError: checkpoint.local is in host memory (unless
///             tiers.allow-tmpfs=true) or is one directory of several nodes; checkpoint.partner on
///             one node. IoError: it does not exist, cannot be written, or has files of another
///             user (unless run.allow-foreign=true). LockedError.
class LocalLevel {
 public:
  /// Sets checkpoint.level_1 and nodes, and tiers::PathSettings::nearby, in `config`.
  LocalLevel(config::RunConfig& config, mpi::Communicator const& comm);
  ~LocalLevel();
  LocalLevel(LocalLevel const&) = delete;
  LocalLevel& operator=(LocalLevel const&) = delete;

  /// Records, durably, that this is the run's level 1 from now on, and that this start began at
  /// `step`. Not collective; for all ranks. Errors: IoError.
  void keep(std::int64_t step);
  [[nodiscard]] std::unique_ptr<checkpoint::Store> make_store() const;
  /// Checks that there is room for the checkpoints that are there at a time, and for two copies of
  /// the other node's. Existing ones count. `mine` is this rank's part of one. `begins_there`: the
  /// run was told to begin at one of them. Collective.
  /// Errors: IoError, as mpi::AgreedError.
  void require_space(Bytes mine, bool begins_there) const;

 private:
  void tidy() noexcept;
  void remove_empty() noexcept;
  void choose(config::RunConfig const& config);
  void make(config::RunConfig const& config);
  void take(config::RunConfig const& config);
  void require_own(config::RunConfig const& config, std::string const& path) const;
  /// Bytes of the copy of one checkpoint of the other node.
  [[nodiscard]] Bytes of_other_node(Bytes mine) const;
  [[nodiscard]] std::string marker_of(int rank) const;
  void refuse_sharing(config::RunConfig const& config) const;
  void find_near_paths(config::RunConfig& config) const;

  mpi::Communicator const& comm_;
  mpi::Communicator node_;
  std::string checkpoints_;
  std::string key_;                       ///< "checkpoint.local=DIR"
  checkpoint::LocalDirectory directory_;  ///< rank 0 adds this start to it
  std::uint64_t start_{};                 ///< this start
  std::string path_;                      ///< path of the run's own directory
  std::string copies_;                    ///< path of the directory of level 3
  bool makes_copies_;
  std::unique_ptr<RunLock> lock_;  ///< lock of path_; on a node's first rank
  bool taken_ = false;             ///< the directories of all nodes were taken
};

}  // namespace offstage::train
