#pragma once

#include <atomic>
#include <cstdint>

namespace offstage::tiers {

/// State of a lock that the processes of a node share. It lies in shared memory
/// (mpi::SharedWindow). All zeros: the lock is free.
struct NodeLockState {
  std::atomic<std::uint32_t> next_ticket;  ///< counts arrivals, wraps
  std::atomic<std::uint32_t> released;     ///< counts places handed on, wraps; waiters sleep on it
  std::atomic<std::uint32_t> left;         ///< counts departures, wraps; waiters sleep on it
};
static_assert(std::atomic<std::uint32_t>::is_always_lock_free);

/// Lets `capacity` threads of all processes of a node in at a time, in order of arrival.
///
/// Source:  MLP section 3.2, "Optimized Virtual Tier Concurrency Control". Sleeping is a shared
///          futex (std::atomic::wait does not wake another process); no MPI call is made. An
///          uncontended lock and unlock is two atomic additions.
/// Order:   a ticket is admitted once fewer than `capacity` before it have kept their places, and
///          fewer than twice as many have not left: a place may be handed on while the last of what
///          its holder does goes on. Locks of one state should agree in `capacity`; if not, each
///          admits by its own and none is stuck.
/// Threads: any of any process; not recursive; locked and unlocked by any thread. A process that
///          dies inside leaves its place taken: the others wait until their watchdog ends the job
///          (run.watchdog), which says where.
class NodeLock {
 public:
  NodeLock(NodeLockState& state, int capacity) noexcept;

  void lock() noexcept;
  void unlock() noexcept {
    hand_on();
    leave();
  }
  /// The two halves of unlock: the next one enters, while the caller has still to leave.
  void hand_on() noexcept;
  void leave() noexcept;
  /// Whether somebody waits for a place.
  [[nodiscard]] bool is_waited_for() const noexcept;

 private:
  NodeLockState* state_;
  std::int32_t capacity_;
};

}  // namespace offstage::tiers
