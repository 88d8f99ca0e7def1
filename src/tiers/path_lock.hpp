#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>

namespace offstage::tiers {

/// Lets one transfer at a time use a storage path, in order of arrival. Whoever holds it transfers
/// at most `path_hold_bytes` and waits for nothing else. A BasicLockable: use it with
/// std::scoped_lock. Threads: any; not recursive.
class PathLock {
 public:
  void lock();
  void unlock() noexcept;

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::int64_t next_ticket_ = 0;
  std::int64_t serving_ = 0;
};

}  // namespace offstage::tiers
