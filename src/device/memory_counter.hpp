#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

#include "base/units.hpp"
#include "platform/trace/trace.hpp"

namespace offstage::device {

/// Counter of the device memory that holds something, over time: the row "device memory" of a
/// trace, a series for each user, in bytes. All of it is allocated before the first step. It is in
/// use from when something is written there until nobody will read it again.
///
/// Source:  DOS section 3, Figure 3.
/// Memory:  host: 32 bytes per use that is not written yet.
/// Threads: any.
/// Errors:  none: a use that finds no host memory is missing from the row.
class MemoryCounter {
 public:
  using Clock = trace::Clock;
  /// `slots`, `lent`: chunks of state on their way through memory of the update's own and of the
  /// activations.
  enum class User : std::uint8_t {
    parameters,
    resident_state,
    activations,
    layer_gradient,
    held_gradients,
    slots,
    lent,
    count
  };

  /// `trace` outlives this.
  explicit MemoryCounter(trace::Trace& trace) : trace_{trace} {}
  /// Writes what is left.
  ~MemoryCounter();
  MemoryCounter(MemoryCounter const&) = delete;
  MemoryCounter& operator=(MemoryCounter const&) = delete;

  /// In use from now on.
  void keep(User user, Bytes bytes) noexcept;
  /// Was in use in [from, until).
  void used(User user, Bytes bytes, Clock::time_point from, Clock::time_point until) noexcept;
  /// Writes the row up to `before`, when everything is told that changed before then. Changes that
  /// are told later are drawn late, never lost.
  void write(Clock::time_point before) noexcept;

 private:
  struct Change {
    Clock::time_point time;
    Bytes bytes{};
    User user{};
  };

  trace::Trace& trace_;
  std::mutex mutex_;  ///< guards all below
  std::vector<Change> changes_;
  std::array<Bytes, static_cast<std::size_t>(User::count)> in_use_{};
  Clock::time_point written_{};
};

}  // namespace offstage::device
