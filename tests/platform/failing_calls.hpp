#pragma once

#include <cstdint>
#include <functional>
#include <string_view>

namespace offstage {

/// System calls of this process that fail on purpose, for files in a scratch directory. The program
/// that links failing_calls.cpp answers them in the place of libc, for all its libraries; with no
/// FailingCalls alive they are libc's.
enum class Call : unsigned {
  open = 1,
  read = 2,   ///< read, pread
  write = 4,  ///< write, pwrite
  size = 8,   ///< stat, lstat, fstat
  truncate = 16,
  sync = 32,  ///< fsync, fdatasync
  rename = 64,
};

/// Both kinds.
constexpr Call operator|(Call a, Call b) {
  return static_cast<Call>(static_cast<unsigned>(a) | static_cast<unsigned>(b));
}

/// While it lives calls number `first`, `first` + 1, ... of these kinds fail, counted over all
/// threads from its construction on: `times` of them, with this errno. One at a time.
class FailingCalls {
 public:
  struct Plan {
    Call kinds{};
    int error_number{};
    std::int64_t first = 1;
    std::int64_t times = INT64_MAX;
    std::string_view name{};  ///< a part of the file's path; empty: every path. It outlives this.
    std::function<void(std::int64_t number)> before{};  ///< each call of these kinds, on its thread
  };
  explicit FailingCalls(Plan const& plan);
  ~FailingCalls();
  FailingCalls(FailingCalls const&) = delete;
  FailingCalls& operator=(FailingCalls const&) = delete;

  /// How many calls have failed.
  [[nodiscard]] std::int64_t failed() const;
};

}  // namespace offstage
