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

/// Traffic of one step on one storage path, all ranks together.
struct PathStep {
  std::string directory;
  bool emulated{};
  int lanes = 1;  ///< transfers that the path takes at a time, both directions
  /// Sums over ranks; the longest wait and transfer are the longest of any rank since the start.
  tiers::PathTraffic traffic{};
  Bytes resident_bytes{};  ///< of state, at the step's end
};

/// Traffic of one step with storage, all ranks together.
struct StorageStep {
  std::vector<PathStep>
      paths{};  ///< in the order of the configuration; none: all is in host memory
  int nodes = 1;
  Seconds seconds{};        ///< wall time in which this was counted: the step's
  std::int64_t hits{};      ///< fetches that found their subgroup in host memory
  std::int64_t misses{};    ///< fetches that read it
  Bytes host_bytes{};       ///< of state in host memory, at the step's end
  double effective_rate{};  ///< effective I/O throughput, bytes per second; 0: there is none
};

/// What a rank knows beside the counters of its tiers.
struct StorageFacts {
  std::vector<tiers::PathSettings> const& paths;  ///< of the run, in order
  tiers::Residence residence{};                   ///< of the state, now
  int workers = 1;                                ///< pipeline slots: threads that fetch and commit
  int nodes = 1;
  Seconds seconds{};  ///< wall time between the two looks at the counters
};

/// What this rank's tiers did between two looks at their counters. The paths' counters are those of
/// the process: whoever else uses them, as gradients do, is counted too.
///
/// Effective I/O throughput: Source: MLP section 4.3, 2 x size / (read time + write time) of the
/// subgroups, twice since each is read and written. Here 2 x fetched bytes / ((fetch seconds +
/// commit seconds) / workers), those of subgroups in host memory included: the seconds that a
/// worker spends in fetch and commit, waiting included, are those that updates wait for. 0 if
/// nothing was fetched or no time was spent.
/// Errors:  PreconditionError if counters, paths and residence are not of as many paths.
[[nodiscard]] StorageStep difference(tiers::Traffic const& before, tiers::Traffic const& after,
                                     StorageFacts const& facts);

/// All ranks together, the same on each: bytes, seconds, counts and effective rates are sums, the
/// longest waits and transfers and the wall time the longest of any rank. Adds in the order of
/// ranks. Collective.
/// Errors: PreconditionError on all ranks if they have not as many paths.
[[nodiscard]] StorageStep sum_over_ranks(StorageStep const& mine, mpi::Communicator const& comm);

/// Adds traffic of the same path; the longest waits and transfers are the longest of both.
void add_to(tiers::PathTraffic& sum, tiers::PathTraffic const& more);
/// Bytes per second inside transfers; 0 without any.
[[nodiscard]] double transfer_rate(tiers::DirectionTraffic const& traffic);
/// The share of the step's wall time in which the path transferred: transfer seconds of all ranks,
/// both directions / (wall seconds x nodes x lanes). At most 1 with exclusive access; without it
/// transfers overlap and it can be more. On a path that nodes share it is the mean over nodes.
[[nodiscard]] double busy_share(PathStep const& path, StorageStep const& step);
/// Before transfers, reads and writes: for this process's threads and for other processes.
[[nodiscard]] Seconds lock_wait(PathStep const& path);
[[nodiscard]] Seconds longest_wait(PathStep const& path);

}  // namespace offstage::train
