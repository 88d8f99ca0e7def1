#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>

#include "base/thread.hpp"
#include "base/units.hpp"

namespace offstage::train {

/// Ends a job that hangs. If this process makes no progress (base/watch.hpp) for `limit`, one line
/// of error says rank, host and how long, one line per thread says what it is in, and `abort` is
/// called, from the watchdog's own thread and after a short pause in which other ranks that hang
/// say the same. A job that was stopped as a whole and goes on (a suspended laptop, a preempting
/// scheduler) does not count as hanging: time in which the watchdog itself did not run is left out.
///
/// Limits:  a rank that waits for others makes no progress either. So `limit` must be longer than
///          one rank may legitimately work while others wait, above all the write of the largest
///          shard of a checkpoint. A rank that is stopped or lost cannot speak; the others do.
/// Threads: one of its own, "watchdog", from construction to destruction: the exception to the rule
///          that only device, tiers, update and checkpoint create threads. It takes no lock that
///          others hold and writes around stdio, so that it speaks whatever hangs.
class Watchdog {
 public:
  /// `limit` 0: no thread, never barks. `rank`: nothing where MPI has not said it yet.
  Watchdog(Seconds limit, std::optional<int> rank, std::function<void()> abort);
  ~Watchdog();
  Watchdog(Watchdog const&) = delete;
  Watchdog& operator=(Watchdog const&) = delete;

 private:
  void watch();
  /// Sleeps; true if the watchdog is to end.
  bool ends_within(Seconds time);
  void bark(Seconds stuck) const;

  Seconds limit_;
  std::optional<int> rank_;
  std::function<void()> abort_;
  std::mutex mutex_;  ///< guards ending_
  std::condition_variable ending_changed_;
  bool ending_ = false;
  std::optional<NamedThread> thread_;  ///< last: it uses all of the above
};

}  // namespace offstage::train
