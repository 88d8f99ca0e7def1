#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "base/thread.hpp"
#include "tiers/tiers.hpp"

namespace offstage::parameters {

/// Fetches extents ahead of use, in the order in which they will be used, several at a time.
///
/// Waiting: at most `ahead` leases are held or waited for at a time. The tiers' other buffers are
///          for other users. A key's second fetch begins when its first lease has ended.
/// Threads: `ahead` of its own ("parameters-N"); one other calls the members. Any may call stop.
class ExtentReader {
 public:
  /// `before` is called before every fetch, and waits until the extent may be read. front() throws
  /// its errors.
  ExtentReader(tiers::Tiers& tiers, int ahead, std::function<void(tiers::Key)> before);
  ~ExtentReader() { stop(); }
  ExtentReader(ExtentReader const&) = delete;
  ExtentReader& operator=(ExtentReader const&) = delete;

  /// Adds keys behind those that were expected before. Threads: any one.
  void expect(std::span<tiers::Key const> keys);
  /// The first of the expected extents; blocks until it is there.
  /// Errors: those of its fetch; PreconditionError: none is expected, or this has been stopped.
  [[nodiscard]] std::span<std::byte const> front();
  /// Ends the lease of the first extent. front() has returned it.
  void pop();
  /// Stops fetching; a thread that waits in front() gets an error. Returns when the threads have
  /// ended. `before` and fetches must end by themselves.
  void stop() noexcept;

 private:
  struct Entry {
    tiers::Key key{};
    std::optional<tiers::Lease> lease{};
    std::exception_ptr error{};
    [[nodiscard]] bool settled() const noexcept { return lease || error; }
  };
  void work() noexcept;
  /// Returns whether the first entry that no thread has begun may be fetched now. The caller has
  /// locked mutex_.
  [[nodiscard]] bool may_begin() const;

  tiers::Tiers& tiers_;
  std::size_t ahead_;
  std::function<void(tiers::Key)> before_;
  std::mutex mutex_;  ///< guards all members below
  std::condition_variable changed_;
  std::deque<Entry> entries_;  ///< the front entry and those after it
  std::size_t begun_ = 0;      ///< entries that a thread has begun
  bool stopping_ = false;
  std::vector<NamedThread> threads_;  ///< last: they use all members above
};

}  // namespace offstage::parameters
