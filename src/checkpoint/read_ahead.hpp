#pragma once

#include <array>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <span>

#include "base/thread.hpp"
#include "base/units.hpp"
#include "platform/aio/engine.hpp"
#include "platform/aio/file.hpp"

namespace offstage::checkpoint {

/// Reads parts of files while its owner works on those that came before.
///
/// Order:   parts are begun in the order of ask, and more than one is read at a time, so that storage
///          always has requests. wait() returns them in that order.
/// Threads: one calls; two read.
/// Errors:  construction: IoError if threads or asynchronous I/O are not to be had.
class ReadAhead {
 public:
  /// `kernel`: both threads call it at a time.
  explicit ReadAhead(std::shared_ptr<aio::Kernel> const& kernel);
  ~ReadAhead();
  ReadAhead(ReadAhead const&) = delete;
  ReadAhead& operator=(ReadAhead const&) = delete;

  /// `memory` is written until wait() has returned for it, or drop().
  void ask(std::shared_ptr<aio::File const> file, std::span<std::byte> memory, Bytes offset);
  /// Returns when the first part that was not waited for is there. Errors: those of its read.
  void wait();
  /// Nothing more will be asked for: the threads end when they have read what was, and give asynchronous I/O back, for
  /// which the kernel takes some hundredths of a second.
  void end() noexcept;
  [[nodiscard]] bool is_ended() const noexcept { return ended_; }
  /// Forgets every part that was not waited for; their memory is not written any more when this returns.
  void drop() noexcept;

 private:
  enum class State { asked, read_now, done };
  struct Part {
    std::shared_ptr<aio::File const> file;
    std::span<std::byte> memory;
    Bytes offset{};
    State state = State::asked;
    std::exception_ptr error{};
  };

  void run(std::optional<aio::Engine>& engine);
  /// The first part that nobody reads yet; null: there is none. While mutex_ is held.
  Part* next();

  // Requests of one engine come to an end before its next part begins; the other's go on.
  std::array<std::optional<aio::Engine>, 2> engines_;
  bool ended_ = false;  ///< the caller's
  std::mutex mutex_;    ///< guards all below
  std::condition_variable asked_;
  std::condition_variable done_;
  std::deque<Part> parts_;  ///< a part stays where it is while others come and go
  bool over_ = false;       ///< threads end when nothing is asked for
  std::array<std::optional<NamedThread>, 2> threads_;  ///< last: they use all of the above
};

}  // namespace offstage::checkpoint
