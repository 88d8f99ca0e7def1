#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>

#include "base/thread.hpp"
#include "base/units.hpp"

namespace offstage::train {

/// Ends a job that hangs. If this process makes no progress (base/watch.hpp) for `limit`, one error
/// line names rank, host and duration, and one line per thread says where it waits. Then, after a
/// short pause in which other hanging ranks report too, the watchdog's own thread calls `abort`. A
/// job that was stopped as a whole and goes on (a suspended laptop, a preempting scheduler) does
/// not count as hanging: time in which the watchdog itself did not run is left out.
///
/// Limits:  a rank that waits for others makes no progress either. So `limit` must be longer than
///          one rank may legitimately work while others wait, above all the write of the largest
///          shard of a checkpoint. A rank that is stopped or lost cannot report; the others do.
/// Threads: one of its own, "watchdog", from construction to destruction. It takes no lock of
///          others and writes around stdio, so that it reports whatever hangs.
class Watchdog {
 public:
  /// `limit` 0: there is no thread and no report. `rank` is empty if MPI has not given it yet.
  Watchdog(Seconds limit, std::optional<int> rank, std::function<void()> abort);
  ~Watchdog();
  Watchdog(Watchdog const&) = delete;
  Watchdog& operator=(Watchdog const&) = delete;

 private:
  void watch();
  /// Sleeps. Returns true if the watchdog is to end.
  bool ends_within(Seconds time);
  void bark(Seconds stuck) const;

  Seconds limit_;
  std::optional<int> rank_;
  std::function<void()> abort_;
  std::mutex mutex_;  ///< guards ending_
  std::condition_variable ending_changed_;
  bool ending_ = false;
  std::optional<NamedThread> thread_;  ///< last: it uses all members above
};

}  // namespace offstage::train
