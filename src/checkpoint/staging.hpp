#pragma once

#include <atomic>
#include <exception>
#include <future>
#include <string>
#include <vector>

#include "base/thread.hpp"
#include "base/units.hpp"
#include "checkpoint/writer.hpp"
#include "state/shard.hpp"
#include "tiers/tiers.hpp"

namespace offstage::checkpoint {

/// Writes this rank's files of a checkpoint on a thread of its own, which has one lease at a time.
/// From construction until wait_for_held() or finish() returns, nobody commits a lease of `tiers`,
/// begins a pass over them, or writes a working copy that `manner.split` names. Fetching and
/// reading may go on. Others that call HDF5 take turns with it (h5::Turn). With a rate in
/// `manner.drain` the thread holds the versions that lie in storage, and writes them last, at this
/// rate.
class Staging {
 public:
  /// Arguments are those of write_rank_file, but this object sets `manner`'s drain signals and
  /// `given_up`. `subgroups`, `tiers` and the objects to which `manner` points must outlive this
  /// one. `threads` is the size of the thread's OpenMP team.
  Staging(int threads, std::string step_directory, int rank, int ranks, StateLayout layout,
          std::vector<state::Subgroup> const& subgroups, tiers::Tiers& tiers, Manner manner = {});
  /// Gives up after the subgroup that is being written or given away. The files in the directory
  /// stay.
  ~Staging();
  Staging(Staging const&) = delete;
  Staging& operator=(Staging const&) = delete;

  /// Returns when at most held versions are left to be written.
  void wait_for_held();
  /// Returns true if finish() would not wait.
  [[nodiscard]] bool is_done() const noexcept { return done_; }
  /// Waits for the end, from now on without a limit of bytes per second. Call it once.
  /// Errors: those of write_rank_file. FailedElsewhere is not thrown: RankFiles are empty then, and
  ///         finish() throws on another rank of the node.
  [[nodiscard]] RankFiles finish();
  /// Seconds that the thread took; after finish().
  [[nodiscard]] Seconds seconds() const noexcept { return seconds_; }

 private:
  /// The thread's work.
  void run(int threads);

  std::string directory_;
  int rank_;
  int ranks_;
  StateLayout layout_;
  std::vector<state::Subgroup> const& subgroups_;
  tiers::Tiers& tiers_;
  Manner manner_;
  std::atomic<bool> given_up_{false};
  std::atomic<bool> hurries_{false};
  std::atomic<bool> done_{false};
  std::promise<void> only_held_is_left_;
  std::shared_future<void> held_{only_held_is_left_.get_future().share()};
  RankFiles written_;
  Seconds seconds_{};
  std::exception_ptr error_;
  NamedThread thread_;  ///< last: it uses all members above
};

}  // namespace offstage::checkpoint
