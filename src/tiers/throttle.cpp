#include "tiers/throttle.hpp"

#include <algorithm>
#include <cmath>

namespace offstage::tiers {
namespace {

using Nanoseconds = std::int64_t;

// What one transfer may take, so that no sum of such overflows: three years.
constexpr double longest = 1e17;

Nanoseconds duration_of(Bytes bytes, double rate, Seconds latency) {
  double const moving = rate > 0.0 ? static_cast<double>(bytes) / rate : 0.0;
  return std::llround(std::min(longest, 1e9 * (latency.count() + moving)));
}

}  // namespace

Throttle::Throttle(Emulation const& emulation, ThrottleState& state) noexcept
    : emulation_{emulation}, state_{&state} {}

Throttle::Clock::time_point Throttle::book(aio::Direction direction, Bytes bytes,
                                           Clock::time_point now) noexcept {
  using std::chrono::nanoseconds;
  bool const reads = direction == aio::Direction::read;
  auto& busy_until = reads || emulation_.duplex == Duplex::half ? state_->read_busy_until
                                                                : state_->write_busy_until;
  // In this order, and in end() in the other: this process's part of what is counted for all is
  // never more than its own count, if that stays while both are read.
  ++moving_;
  ++state_->moving;
  std::int32_t own{}, of_all{};
  do {
    own = moving_.load();
    of_all = state_->moving.load();
  } while (own != moving_.load());
  bool const is_shared = of_all > own;
  double const rate = (reads ? emulation_.read_rate : emulation_.write_rate) *
                      (is_shared ? emulation_.sharing : 1.0);
  Nanoseconds const taken = duration_of(bytes, rate, emulation_.latency);
  Nanoseconds const earliest =
      std::chrono::duration_cast<nanoseconds>(now.time_since_epoch() - credit).count();
  Nanoseconds busy = busy_until.load(std::memory_order_relaxed);
  Nanoseconds end{};
  do {
    end = std::max(busy, earliest) + taken;
  } while (!busy_until.compare_exchange_weak(busy, end, std::memory_order_relaxed));
  if (emulation_.stream_rate > 0.0) {
    end = std::max(end, earliest + duration_of(bytes, emulation_.stream_rate, emulation_.latency));
  }
  return Clock::time_point{std::chrono::duration_cast<Clock::duration>(nanoseconds{end})};
}

void Throttle::end() noexcept {
  --state_->moving;
  --moving_;
}

}  // namespace offstage::tiers
