#include "update/trip_queue.hpp"

#include <utility>

#include "base/watch.hpp"

namespace offstage::update {

TripQueue::TripQueue(std::span<Trip const> order, int workers, bool device_first,
                     std::int64_t reach)
    : order_{order, workers, device_first, reach} {}

std::optional<TripQueue::Deal> TripQueue::take() {
  std::unique_lock lock{mutex_};
  if (order_.must_wait()) {
    Waiting const waiting{"the device's part of the update"};
    changed_.wait(lock, [this] { return !order_.must_wait(); });
  }
  auto const trip = order_.take();
  return trip ? std::optional{Deal{*trip, std::chrono::steady_clock::now()}} : std::nullopt;
}

void TripQueue::bring_forward(std::int64_t subgroup) {
  std::scoped_lock const lock{mutex_};
  order_.bring_forward(subgroup);
}

void TripQueue::lowest_first() {
  std::scoped_lock const lock{mutex_};
  order_.lowest_first();
}

void TripQueue::end(Trip const& trip) noexcept {
  {
    std::scoped_lock const lock{mutex_};
    order_.end(trip);
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
    left = order_.clear();
  }
  changed_.notify_all();
  return left;
}

void TripQueue::wait_for_device() {
  std::unique_lock lock{mutex_};
  Waiting const waiting{"the device's part of the update"};
  changed_.wait(lock, [this] { return order_.device_done(); });
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
