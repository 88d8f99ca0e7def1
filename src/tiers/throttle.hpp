#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

#include "platform/aio/kernel.hpp"
#include "tiers/path_settings.hpp"

namespace offstage::tiers {

/// Times that the processes of a node share of an emulated path: nanoseconds of the monotonic
/// clock, until when booked transfers keep the path busy. All zeros: idle since ever. Half duplex
/// uses `read` alone.
struct ThrottleState {
  std::atomic<std::int64_t> read_busy_until;
  std::atomic<std::int64_t> write_busy_until;
  std::atomic<std::int32_t> moving;  ///< transfers under way, of all processes
};

/// Makes a directory as slow as the path that it stands for, for all processes of a node together:
/// each transfer is booked behind those booked before and ends no sooner than the emulated path
/// would have moved it.
///
/// A path that was idle for less than `credit` counts as if it had been busy: a sleep that ends
/// late does not lower the rate, and no rate is exceeded over more than that. A transfer that
/// begins while another process has one under way takes longer where `sharing` says so.
/// Threads: any of any process.
class Throttle {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::milliseconds credit{5};

  Throttle(Emulation const& emulation, ThrottleState& state) noexcept;

  /// To be called before the transfer, with the present time; when it may end.
  [[nodiscard]] Clock::time_point book(aio::Direction direction, Bytes bytes,
                                       Clock::time_point now = Clock::now()) noexcept;
  /// To be called after each transfer that was booked.
  void end() noexcept;

 private:
  Emulation emulation_;
  ThrottleState* state_;
  std::atomic<std::int32_t> moving_ = 0;  ///< transfers of this process under way
};

}  // namespace offstage::tiers
