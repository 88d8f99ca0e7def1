#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/units.hpp"
#include "tiers/traffic.hpp"

namespace offstage::mpi {
class Communicator;
}
namespace offstage::tiers {
struct PathSettings;
}

namespace offstage::train {

/// Traffic of one step on one storage path, of a rank or of all (sum_over_ranks).
struct PathStep {
  std::string directory;
  bool emulated{};
  Bytes endurance{};          ///< as PathSettings'
  int transfers_at_once = 1;  ///< transfers that the path takes at a time, both directions
  /// Transfers of these that share one rate: those of one direction if the path is full duplex.
  int sharing_transfers = 1;
  /// The longest wait and transfer are the longest of any rank since the start.
  tiers::PathTraffic traffic{};
  Bytes resident_bytes{};  ///< bytes of state on the path at the step's end
};

/// Traffic of one step with storage, of a rank or of all, with that between the step before and it.
struct StorageStep {
  /// In the order of the configuration; empty: everything is in host memory.
  std::vector<PathStep> paths{};
  int nodes = 1;
  Seconds seconds{};        ///< wall time since the end of the step before
  std::int64_t hits{};      ///< fetches that found their subgroup in host memory
  std::int64_t misses{};    ///< fetches that read their subgroup
  Bytes host_bytes{};       ///< bytes of state in host memory at the step's end
  double effective_rate{};  ///< effective I/O throughput, bytes per second; 0: there is none
};

/// Facts of a rank beside the counters of its tiers.
struct StorageFacts {
  std::vector<tiers::PathSettings> const& paths;  ///< the run's paths, in order
  tiers::Residence residence{};                   ///< residence of the state now
  int workers = 1;                                ///< threads that fetch and commit
  int nodes = 1;
  Seconds seconds{};  ///< wall time between the two looks at the counters
};

/// Traffic of this rank's tiers between two looks at their counters. The paths' counters are those
/// of the process, so that other users, such as gradients, are counted too.
///
/// Effective I/O throughput: Source: MLP section 4.3, 2 x size / (read time + write time) of the
/// subgroups, twice since each is read and written. Here it is 2 x fetched bytes / ((fetch seconds
/// + commit seconds) / workers), with subgroups in host memory included, because updates wait for
/// the seconds that a worker spends in fetch and commit, waits included. 0 if nothing was fetched
/// or no time was spent.
/// Errors:  PreconditionError if counters, paths and residence have different numbers of paths.
[[nodiscard]] StorageStep difference(tiers::Traffic const& before, tiers::Traffic const& after,
                                     StorageFacts const& facts);

/// The traffic of all ranks together, the same on each. Bytes, seconds, counts and effective rates
/// are sums, added in the order of ranks. The longest waits and transfers and the wall time are the
/// longest of any rank. Collective.
/// Errors: PreconditionError on all ranks if they have different numbers of paths.
[[nodiscard]] StorageStep sum_over_ranks(StorageStep const& mine, mpi::Communicator const& comm);

/// Adds traffic of the same path; the longest waits and transfers are the longest of both.
void add_to(tiers::PathTraffic& sum, tiers::PathTraffic const& more);
/// Bytes per second inside transfers; 0 without any.
[[nodiscard]] double transfer_rate(tiers::DirectionTraffic const& traffic);
/// The part of StorageStep::seconds in which the path transferred: transfer seconds of all ranks,
/// both directions / (wall seconds x nodes x transfers_at_once). It is at most 1 with exclusive
/// access; without it transfers overlap and it can be more. On a path that several nodes use it is
/// the mean over nodes.
[[nodiscard]] double busy_part(PathStep const& path, StorageStep const& step);
/// The rate that all transfers of a path on a node together reached. Transfers that overlap each
/// have a part of it, so that it is the rate inside transfers times the number of those that share
/// a rate and went on at a time, where that mean over the time is above 1.
[[nodiscard]] double reached_rate(tiers::DirectionTraffic const& traffic, PathStep const& path,
                                  StorageStep const& step);
/// Time of waits before transfers, reads and writes, for this process's threads and for other
/// processes.
[[nodiscard]] Seconds lock_wait(PathStep const& path);
[[nodiscard]] Seconds longest_wait(PathStep const& path);

}  // namespace offstage::train
