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

/// Writes this rank's files of a checkpoint on a thread of its own, which holds one lease at a
/// time. From construction until wait_for_held() or finish() returns nobody commits a lease of
/// `tiers`, begins a pass over them, writes a working copy that `manner.split` names, or calls
/// HDF5; fetching and reading goes on. Nobody calls HDF5 until finish(). With a rate in
/// `manner.drain` it holds what lies in storage, and writes that last, at this rate.
class Staging {
 public:
  /// Arguments as write_rank_file's, but what of `manner` is this object's to set; `subgroups`,
  /// `tiers` and what `manner` points to outlive this. `threads`: the thread's OpenMP team.
  Staging(int threads, std::string step_directory, int rank, int ranks, StateLayout layout,
          std::vector<state::Subgroup> const& subgroups, tiers::Tiers& tiers, Manner manner = {});
  /// Gives up after the subgroup that is being written or shared: what is in the directory stays.
  ~Staging();
  Staging(Staging const&) = delete;
  Staging& operator=(Staging const&) = delete;

  /// Returns when only what the tiers hold is left to be written, or nothing.
  void wait_for_held();
  /// True if finish() would not wait.
  [[nodiscard]] bool is_done() const noexcept { return done_; }
  /// Waits for the end, without the limit of bytes per second from now on. Once. Errors: those of
  /// write_rank_file, but for FailedElsewhere: then nothing is returned, and finish() of another
  /// rank of the node throws.
  [[nodiscard]] RankFiles finish();
  /// What the thread took; after finish().
  [[nodiscard]] Seconds seconds() const noexcept { return seconds_; }

 private:
  std::atomic<bool> given_up_{false};
  std::atomic<bool> hurries_{false};
  std::atomic<bool> done_{false};
  std::promise<void> only_held_is_left_;
  std::shared_future<void> held_{only_held_is_left_.get_future().share()};
  RankFiles written_;
  Seconds seconds_{};
  std::exception_ptr error_;
  NamedThread thread_;  ///< last: it uses all above
};

}  // namespace offstage::checkpoint
