#include "tiers/path_lock.hpp"

#include "base/watch.hpp"

namespace offstage::tiers {

void PathLock::lock() {
  Waiting const waiting{"the storage path"};
  std::unique_lock guard{mutex_};
  std::int64_t const ticket = next_ticket_++;
  changed_.wait(guard, [&] { return ticket == serving_; });
}

void PathLock::unlock() noexcept {
  {
    std::scoped_lock const guard{mutex_};
    ++serving_;
  }
  changed_.notify_all();
}

}  // namespace offstage::tiers
