#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/units.hpp"
#include "platform/mpi/communicator.hpp"
#include "tiers/path_settings.hpp"
#include "tiers/tiers.hpp"
#include "train/report/metrics.hpp"

namespace offstage::train {

/// What a rank knows beside the counters of its tiers.
struct StorageFacts {
  std::vector<tiers::PathSettings> const& paths;  ///< of the run, in order
  tiers::Residence residence{};                   ///< of the state, now
  int workers = 1;                                ///< pipeline slots: threads that fetch and commit
  int nodes = 1;
  Seconds seconds{};  ///< wall time between the two looks at the counters
};

/// What this rank's tiers did between two looks at their counters. The paths' counters are those of the
/// process: whoever else uses them, as gradients do, is counted too.
///
/// Effective I/O throughput: Source: MLP section 4.3, 2 x size / (read time + write time) of the
/// subgroups, twice since each is read and written. Here 2 x fetched bytes / ((fetch seconds + commit
/// seconds) / workers), those of subgroups in host memory included: the seconds that a worker spends in
/// fetch and commit, waiting included, are those that updates wait for. 0 if nothing was fetched or no
/// time was spent.
/// Errors:  PreconditionError if counters, paths and residence are not of as many paths.
[[nodiscard]] StorageStep difference(tiers::Traffic const& before, tiers::Traffic const& after,
                                     StorageFacts const& facts);

/// All ranks together, the same on each: bytes, seconds, counts and effective rates are sums, the longest
/// waits and transfers and the wall time the longest of any rank. Adds in the order of ranks.
/// Collective.
/// Errors: PreconditionError on all ranks if they have not as many paths.
[[nodiscard]] StorageStep sum_over_ranks(StorageStep const& mine, mpi::Communicator const& comm);

/// Bytes per second inside transfers; 0 without any.
[[nodiscard]] double transfer_rate(tiers::DirectionTraffic const& traffic);
/// The share of the step's wall time in which the path transferred: transfer seconds of all ranks, both
/// directions / (wall seconds x nodes x lanes). At most 1 with exclusive access; without it transfers
/// overlap and it can be more. On a path that nodes share it is the mean over nodes.
[[nodiscard]] double busy_share(PathStep const& path, StorageStep const& step);
/// Before transfers, reads and writes: for this process's threads and for other processes.
[[nodiscard]] Seconds lock_wait(PathStep const& path);
[[nodiscard]] Seconds longest_wait(PathStep const& path);

/// The storage of all steps of a start, for the end table.
class StorageTotals {
 public:
  /// Traffic adds up, where the state lives is as of the last step.
  void add(StorageStep const& step);
  /// The table's lines: one per path (read, written, GB/s, busy share, lock wait, longest wait, where the
  /// state is at the end), one that says that figures are emulated where they are, one of host memory,
  /// and the effective I/O throughput per update. None without storage paths.
  [[nodiscard]] std::vector<std::string> lines() const;

 private:
  [[nodiscard]] std::string line_of(PathStep const& path, Bytes state, std::size_t width) const;

  StorageStep sum_;
  std::int64_t updates_{};  ///< that have an effective rate
  double effective_sum_{}, effective_least_{}, effective_most_{};
};

}  // namespace offstage::train
