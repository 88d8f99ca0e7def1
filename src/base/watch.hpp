#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "base/units.hpp"

namespace offstage {

/// Says, while it lives, what this thread waits for or works on: "all_gather". Nests: the innermost
/// comes first, "all_gather for layer 3". Beginning and end are progress. Costs a few uncontended
/// stores and the clock twice: for a collective or a request, not for an element. `what` is a
/// literal: another thread may still read it when this has ended. A detail below 0 is not shown.
class Waiting {
 public:
  explicit Waiting(char const* what, std::int64_t detail = -1) noexcept;
  ~Waiting();
  Waiting(Waiting const&) = delete;
  Waiting& operator=(Waiting const&) = delete;
};

/// The same for other ranks: counts in waited_for_ranks().
class WaitingForRanks {
 public:
  explicit WaitingForRanks(char const* what, std::int64_t detail = -1) noexcept;
  ~WaitingForRanks();
  WaitingForRanks(WaitingForRanks const&) = delete;
  WaitingForRanks& operator=(WaitingForRanks const&) = delete;

 private:
  Waiting waiting_;
  std::int64_t since_;  ///< ns
};
/// The time that this thread has spent in a WaitingForRanks, one that still lasts not included.
[[nodiscard]] Seconds waited_for_ranks() noexcept;

/// Told of each WaitingForRanks of a thread when it has ended.
class RankWaits {
 public:
  virtual ~RankWaits() = default;
  /// `what`: as ThreadState::what, "all_gather for layer 3".
  virtual void waited(std::string const& what, std::chrono::steady_clock::time_point begin,
                      std::chrono::steady_clock::time_point end) noexcept = 0;
};
/// Waits of the calling thread are told to `whom` from now on; null: to nobody. `whom` lives until
/// somebody else is told.
void tell_of_rank_waits(RankWaits* whom) noexcept;

/// Counts as progress of this process: for loops that neither wait nor return for long.
void made_progress() noexcept;

struct ThreadState {
  std::string thread;  ///< its name as of its first Waiting; "main" for the first thread
  std::string what;  ///< every Waiting with its detail, innermost first; "running" if there is none
  Seconds since{};   ///< how long the innermost has lasted, or since it is running
};
/// All threads that ever had a Waiting or made progress and still run, in no order.
/// Threads: any, at any time; never waits for another thread.
[[nodiscard]] std::vector<ThreadState> thread_states();
/// How long ago any thread made progress; since the start of the process if none ever did.
/// Threads: as thread_states.
[[nodiscard]] Seconds since_progress() noexcept;

}  // namespace offstage
