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
/// Waiting: at most `ahead` leases are held or waited for at a time: whoever else wants buffers of the tiers
///          has what is left of them. A key's second fetch begins when its first lease has ended.
/// Threads: `ahead` of its own ("parameters-N"); one other calls the members, but for stop (any).
class ExtentReader {
 public:
  /// `before`: called ahead of every fetch, waits until the extent may be read; what it throws, front throws.
  ExtentReader(tiers::Tiers& tiers, int ahead, std::function<void(tiers::Key)> before);
  ~ExtentReader() { stop(); }
  ExtentReader(ExtentReader const&) = delete;
  ExtentReader& operator=(ExtentReader const&) = delete;

  /// These come after those that were expected before. Threads: any one.
  void expect(std::span<tiers::Key const> keys);
  /// The extent that comes first of those expected; blocks until it is there. Errors: those of its fetch;
  /// PreconditionError: none is expected, or this has been stopped.
  [[nodiscard]] std::span<std::byte const> front();
  /// Ends its lease. It has been at the front.
  void pop();
  /// Nothing is fetched any more, and who waits in front gets an error. Returns when the threads have ended:
  /// `before` and fetches must end by themselves.
  void stop() noexcept;

 private:
  struct Entry {
    tiers::Key key{};
    std::optional<tiers::Lease> lease{};
    std::exception_ptr error{};
    [[nodiscard]] bool settled() const noexcept { return lease || error; }
  };
  void work() noexcept;
  /// Under mutex_: whether the first entry that no thread has begun may be fetched now.
  [[nodiscard]] bool may_begin() const;

  tiers::Tiers& tiers_;
  std::size_t ahead_;
  std::function<void(tiers::Key)> before_;
  std::mutex mutex_;  ///< guards all below
  std::condition_variable changed_;
  std::deque<Entry> entries_;  ///< the front and what comes after it
  std::size_t begun_ = 0;      ///< of entries_: a thread has begun them
  bool stopping_ = false;
  std::vector<NamedThread> threads_;  ///< last: they use all of the above
};

}  // namespace offstage::parameters
