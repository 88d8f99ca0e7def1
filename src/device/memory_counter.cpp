#include "device/memory_counter.hpp"

#include <algorithm>
#include <exception>

namespace offstage::device {
namespace {

constexpr std::size_t users = static_cast<std::size_t>(MemoryCounter::User::count);
constexpr std::array<char const*, users> names{"parameters",     "resident state", "activations",
                                               "layer gradient", "held gradients", "update chunks",
                                               "lent chunks"};

}  // namespace

MemoryCounter::~MemoryCounter() {
  write(Clock::time_point::max());
}

void MemoryCounter::keep(User user, Bytes bytes) noexcept {
  used(user, bytes, Clock::now(), Clock::time_point::max());
}

void MemoryCounter::used(User user, Bytes bytes, Clock::time_point from,
                         Clock::time_point until) noexcept {
  if (bytes <= 0 || until <= from) {
    return;
  }
  try {
    std::scoped_lock const lock{mutex_};
    changes_.reserve(changes_.size() + 2);  // both or none
    changes_.push_back({from, bytes, user});
    changes_.push_back({until, -bytes, user});
  } catch (std::exception const&) {
    return;
  }
}

void MemoryCounter::write(Clock::time_point before) noexcept {
  std::scoped_lock const lock{mutex_};
  auto const later =
      std::ranges::partition(changes_, [before](Change const& each) { return each.time < before; });
  std::ranges::sort(changes_.begin(), later.begin(), {}, &Change::time);
  for (auto each = changes_.begin(); each != later.begin();) {
    // At one time: what comes may take the place of what goes.
    auto const time = each->time;
    for (; each != later.begin() && each->time == time; ++each) {
      in_use_[static_cast<std::size_t>(each->user)] += each->bytes;
    }
    written_ = std::max(written_, time);
    std::array<trace::Sample, users> samples;
    for (std::size_t i = 0; i < users; ++i) {
      samples[i] = {names[i], in_use_[i]};
    }
    trace_.counter("device memory", written_, samples);
  }
  changes_.erase(changes_.begin(), later.begin());
}

}  // namespace offstage::device
