#include "update/compute_lane.hpp"

#include <utility>

#include "base/watch.hpp"

namespace offstage::update {

void ComputeLane::run(std::function<void()> work) {
  Waiting const waiting{"the compute lane"};
  Item item{std::move(work), nullptr, false};
  std::unique_lock lock{mutex_};
  if (refused_) {
    std::rethrow_exception(refused_);
  }
  items_.push(&item);
  arrived_.notify_one();
  finished_.wait(lock, [&] { return item.done; });
  if (item.error) {
    std::rethrow_exception(item.error);
  }
}

void ComputeLane::refuse(std::exception_ptr error) noexcept {
  {
    std::scoped_lock const lock{mutex_};
    refused_ = std::move(error);
    for (; !items_.empty(); items_.pop()) {
      items_.front()->error = refused_;
      items_.front()->done = true;
    }
  }
  finished_.notify_all();
}

void ComputeLane::leave() noexcept {
  {
    std::scoped_lock const lock{mutex_};
    --callers_;
  }
  arrived_.notify_one();
}

void ComputeLane::serve() {
  std::unique_lock lock{mutex_};
  for (;;) {
    {
      Waiting const waiting{"updates to compute"};
      arrived_.wait(lock, [&] { return !items_.empty() || callers_ == 0; });
    }
    if (items_.empty()) {
      return;
    }
    Item& item = *items_.front();
    items_.pop();
    lock.unlock();
    try {
      Waiting const busy{"the computation of an update"};
      item.work();
    } catch (...) {
      item.error = std::current_exception();
    }
    lock.lock();
    item.done = true;
    finished_.notify_all();
  }
}

}  // namespace offstage::update
