#include "update/gradients/summing_thread.hpp"

#include <utility>

#include "base/team.hpp"
#include "base/watch.hpp"

namespace offstage::update {

SummingThread::SummingThread(Add add)
    : add_{std::move(add)}, thread_{"gradient sums", [this, team = team_size()] { serve(team); }} {}

void SummingThread::put(GradientArrival arrival) {
  {
    std::scoped_lock const lock{mutex_};
    waiting_.push_back(std::move(arrival));
  }
  arrived_.notify_one();
}

void SummingThread::drain() {
  {
    Waiting const waiting{"gradients to be added"};
    std::unique_lock lock{mutex_};
    ended_.wait(lock, [this] { return waiting_.empty() && !busy_; });
  }
  rethrow();
}

void SummingThread::rethrow() const {
  std::scoped_lock const lock{mutex_};
  if (error_) {
    std::rethrow_exception(error_);
  }
}

void SummingThread::stop() noexcept {
  {
    std::scoped_lock const lock{mutex_};
    stop_ = true;
  }
  arrived_.notify_one();
  thread_.join();
  waiting_.clear();
}

std::optional<GradientArrival> SummingThread::next() {
  Waiting const idle{"gradients to add"};
  std::unique_lock lock{mutex_};
  arrived_.wait(lock, [this] { return stop_ || !waiting_.empty(); });
  if (stop_) {
    return {};
  }
  busy_ = true;
  std::optional<GradientArrival> taken{std::move(waiting_.front())};
  waiting_.pop_front();
  return taken;
}

bool SummingThread::take_team(int size) {
  try {
    set_team_size(size);
    return true;
  } catch (...) {
    std::scoped_lock const lock{mutex_};
    error_ = std::current_exception();
    return false;
  }
}

void SummingThread::serve(int team) {
  bool failed = !take_team(team);
  while (auto arrival = next()) {
    std::exception_ptr error;
    if (!failed) {
      try {
        auto const gradient = arrival->wait();
        Waiting const busy{"the sums of gradients, of layer", arrival->layer()};
        add_(arrival->layer(), gradient);
      } catch (...) {
        error = std::current_exception();
      }
    }
    arrival.reset();  // its memory is free before anyone hears that it is added
    {
      std::scoped_lock const lock{mutex_};
      busy_ = false;
      if (error) {
        error_ = error;
        failed = true;
      }
    }
    ended_.notify_all();
  }
}

}  // namespace offstage::update
