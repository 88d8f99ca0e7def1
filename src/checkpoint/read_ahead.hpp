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

/// Reads parts of files while its owner works on the parts before them.
///
/// Order:   parts are begun in the order of ask(). More than one is read at a time, so that storage
///          always has requests. wait() returns them in the order of ask().
/// Threads: one calls the members; two read.
/// Errors:  construction: IoError if the system gives no threads or no asynchronous I/O.
class ReadAhead {
 public:
  /// Both threads call `kernel`, also at the same time.
  explicit ReadAhead(std::shared_ptr<aio::Kernel> const& kernel);
  ~ReadAhead();
  ReadAhead(ReadAhead const&) = delete;
  ReadAhead& operator=(ReadAhead const&) = delete;

  /// `memory` is written until wait() has returned for it, or drop().
  void ask(std::shared_ptr<aio::File const> file, std::span<std::byte> memory, Bytes offset);
  /// Returns when the first part that was not waited for is there. Errors: those of its read.
  void wait();
  /// Says that nothing more will be asked for. The threads end when they have read every part, and
  /// give asynchronous I/O back. That takes the operating system some hundredths of a second.
  void end() noexcept;
  [[nodiscard]] bool is_ended() const noexcept { return ended_; }
  /// Forgets every part that was not waited for. Their memory is not written any more when this
  /// returns.
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
  /// The first part that no thread reads yet; null: there is none. The caller has locked mutex_.
  Part* next();

  // The requests of one engine end before its next part begins. The other engine's go on meanwhile.
  std::array<std::optional<aio::Engine>, 2> engines_;
  bool ended_ = false;  ///< used by the caller's thread alone
  std::mutex mutex_;    ///< guards all members below
  std::condition_variable asked_;
  std::condition_variable done_;
  std::deque<Part> parts_;  ///< a part stays where it is while others come and go
  bool over_ = false;       ///< threads end once no part is left
  std::array<std::optional<NamedThread>, 2> threads_;  ///< last: they use all of the above
};

}  // namespace offstage::checkpoint
