#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace offstage {

/// Allocations of this process that fail on purpose. The program that links failing_allocations.cpp
/// answers malloc, calloc, realloc and their kin, and so operator new, in the place of libc, for
/// all its libraries; with no FailingAllocations alive they are libc's. Under a sanitizer operator
/// new alone fails: malloc is the sanitizer's. Libraries that end the process, or are of no use
/// from then on, are spared: libhdf5 and libgomp.
///
/// While it lives allocations number `first`, `first` + 1, ... fail, `times` of them, counted over
/// all threads from its construction on. One at a time.
class FailingAllocations {
 public:
  explicit FailingAllocations(std::int64_t first, std::int64_t times = 1);
  ~FailingAllocations();
  FailingAllocations(FailingAllocations const&) = delete;
  FailingAllocations& operator=(FailingAllocations const&) = delete;

  /// How many have failed so far.
  [[nodiscard]] static std::int64_t failed();
};

/// How one run of an operation ended whose allocation number `first` failed.
struct StarvedRun {
  std::int64_t first{};
  enum class End { good, no_memory, error } end{};
  std::string message{};            ///< of the error
  bool is_data_error{};             ///< it took the shortage for damage
  std::int64_t more_descriptors{};  ///< open after it than before
};

/// Runs `work` with its 1st allocation failing, then its 2nd and so on, until one run has none that
/// fails: all of them if OFFSTAGE_TESTS=all is in the environment, else the first ones and then one
/// in every few. `forever`: all that follow it fail, too. `tidy` runs after each, with memory.
/// Returns what ended otherwise than well. An exception that is neither std::bad_alloc nor an Error
/// goes through.
[[nodiscard]] std::vector<StarvedRun> starve(
    std::function<void()> const& work, std::function<void()> const& tidy = [] {},
    bool forever = false);

}  // namespace offstage
