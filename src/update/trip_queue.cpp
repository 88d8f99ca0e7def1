#include "update/trip_queue.hpp"

#include <algorithm>
#include <utility>

#include "base/watch.hpp"

namespace offstage::update {

// Two on each side where the workers allow it: one drains or commits while the next is fed or computed.
TripQueue::TripQueue(std::span<Trip const> order, int workers, bool device_first)
    : least_{workers >= 4 ? 2 : 1}, device_first_{device_first} {
  for (std::size_t place = 0; place < order.size(); ++place) {
    (order[place].on_device ? device_ : cpu_)
        .turns.push_back({order[place], static_cast<std::int64_t>(place)});
  }
  cpu_trips_ = std::ssize(cpu_.turns);
}

std::optional<Trip> TripQueue::take() {
  std::unique_lock lock{mutex_};
  if (device_first_ && device_.turns.empty() && !cpu_.turns.empty()) {
    Waiting const waiting{"the device's part of the update"};
    changed_.wait(lock, [this] { return device_done(); });
  }
  if (device_.turns.empty() && cpu_.turns.empty()) {
    return {};
  }
  if (cpu_.turns.empty() || (device_first_ && !device_.turns.empty())) {
    return pop(device_);
  }
  return pop(device_.turns.empty() ? cpu_ : choose());
}

TripQueue::Side& TripQueue::choose() {
  bool const cpu_lacks = cpu_.under_way < least_;
  bool const device_lacks = device_.under_way < least_;
  if (cpu_lacks != device_lacks) {
    return cpu_lacks ? cpu_ : device_;
  }
  return cpu_.turns.front().place < device_.turns.front().place ? cpu_ : device_;
}

Trip TripQueue::pop(Side& side) {
  Trip const trip = side.turns.front().trip;
  side.turns.pop_front();
  ++side.under_way;
  return trip;
}

void TripQueue::bring_forward(std::int64_t subgroup) {
  std::scoped_lock const lock{mutex_};
  for (Side* const side : {&cpu_, &device_}) {
    auto const turn = std::ranges::find(side->turns, subgroup,
                                        [](Turn const& each) { return each.trip.subgroup; });
    if (turn != side->turns.end()) {
      Trip const trip = turn->trip;
      side->turns.erase(turn);
      side->turns.push_front({trip, --first_place_});
    }
  }
}

void TripQueue::lowest_first() {
  std::scoped_lock const lock{mutex_};
  for (Side* const side : {&cpu_, &device_}) {
    for (Turn& turn : side->turns) {
      turn.place = turn.trip.subgroup;
    }
    std::ranges::sort(side->turns, {}, &Turn::place);
  }
}

void TripQueue::end(Trip const& trip) noexcept {
  {
    std::scoped_lock const lock{mutex_};
    --(trip.on_device ? device_ : cpu_).under_way;
  }
  changed_.notify_all();
}

std::int64_t TripQueue::fail(std::exception_ptr error) noexcept {
  std::int64_t left = 0;
  {
    std::scoped_lock const lock{mutex_};
    if (!error_) {
      error_ = std::move(error);
    }
    left = std::ssize(cpu_.turns);
    cpu_.turns.clear();
    device_.turns.clear();
  }
  changed_.notify_all();
  return left;
}

void TripQueue::wait_for_device() {
  std::unique_lock lock{mutex_};
  Waiting const waiting{"the device's part of the update"};
  changed_.wait(lock, [this] { return device_done(); });
}

bool TripQueue::failed() const {
  std::scoped_lock const lock{mutex_};
  return error_ != nullptr;
}

void TripQueue::rethrow() const {
  std::scoped_lock const lock{mutex_};
  if (error_) {
    std::rethrow_exception(error_);
  }
}

}  // namespace offstage::update
