#pragma once

#include <atomic>
#include <cstdint>

namespace offstage::tiers {

/// What the processes of a node share of one lock: it lies in shared memory (mpi::SharedWindow); all
/// zeros: free.
struct NodeLockState {
  std::atomic<std::uint32_t> next_ticket;  ///< counts arrivals, wraps
  std::atomic<std::uint32_t> released;     ///< counts departures, wraps; waiters sleep on it
};
static_assert(std::atomic<std::uint32_t>::is_always_lock_free);

/// Lets `capacity` threads of all processes of a node in at a time, in order of arrival.
///
/// Source:  MLP section 3.2, "Optimized Virtual Tier Concurrency Control". Sleeping is a shared futex
///          (std::atomic::wait does not wake another process); no MPI call is made. An uncontended
///          lock and unlock is two atomic additions.
/// Order:   each ticket is admitted once fewer than `capacity` before it have not left. Locks of
///          one state should agree in `capacity`; if not, each admits by its own and none is stuck.
/// Threads: any of any process; not recursive; locked and unlocked by any thread. A process that dies
///          inside leaves its place taken: the others wait until their watchdog ends the job
///          (run.watchdog), which says where.
class NodeLock {
 public:
  NodeLock(NodeLockState& state, int capacity) noexcept;

  void lock() noexcept;
  void unlock() noexcept;

 private:
  [[nodiscard]] bool may_enter(std::uint32_t ticket, std::uint32_t released) const noexcept;

  NodeLockState* state_;
  std::int32_t capacity_;
};

}  // namespace offstage::tiers
