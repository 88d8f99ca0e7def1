#pragma once

#include <memory>
#include <string>

#include "base/units.hpp"
#include "checkpoint/local_directory.hpp"
#include "checkpoint/store.hpp"
#include "platform/mpi/communicator.hpp"
#include "train/run_config.hpp"

namespace offstage::train {

/// Where level 1 of a run lies: a directory of its own in checkpoint.local, on each node. Made durably; slots that a
/// killed run left there are removed, and which tiers.path may share its extents is found out.
///
/// Until keep() the record of an earlier run stays as it is: a run that does not get to its first step
/// changes nothing. Directories go when they are empty.
///
/// Collective: construction. Threads: the main one.
/// Errors:  UsageError, as mpi::AgreedError: checkpoint.local lies in host memory (unless tiers.allow-tmpfs=true) or is
///          one directory of several nodes. IoError: it is not there, cannot be written, or what lies in it belongs to
///          somebody else (unless run.allow-foreign=true).
class LocalLevel {
 public:
  /// `config`: gets checkpoint.level_1 and nodes, and tiers::PathSettings::nearby.
  LocalLevel(RunConfig& config, mpi::Communicator const& comm);
  ~LocalLevel();
  LocalLevel(LocalLevel const&) = delete;
  LocalLevel& operator=(LocalLevel const&) = delete;

  /// From now on this is the run's level 1, durably. Not collective; all ranks. Errors: IoError.
  void keep() const;
  [[nodiscard]] std::unique_ptr<checkpoint::Store> make_store() const;
  /// The two checkpoints that are there at a time have room, with those that are there already; `mine`: this rank's part
  /// of one. Collective. Errors: IoError, as mpi::AgreedError.
  void require_space(Bytes mine) const;

 private:
  void tidy() const noexcept;
  void choose(RunConfig const& config);
  void make(RunConfig const& config);
  [[nodiscard]] std::string marker_of(int rank) const;
  void refuse_sharing(RunConfig const& config) const;
  void find_near_paths(RunConfig& config) const;

  mpi::Communicator const& comm_;
  mpi::Communicator node_;
  std::string checkpoints_;
  std::string key_;                       ///< "checkpoint.local=DIR"
  checkpoint::LocalDirectory directory_;  ///< of rank 0
  std::string path_;                      ///< of the run's own directory
};

}  // namespace offstage::train
