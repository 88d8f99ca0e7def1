#pragma once

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <mutex>
#include <vector>

#include "state/shard.hpp"

namespace offstage::state {

/// Knows which parts of the working copy have the present step's parameters. An update that still
/// goes on while the next forward runs says so, subgroup by subgroup. A thread that reads a layer
/// waits for its part.
///
/// Threads: any.
class Readiness {
 public:
  /// Everything is ready at first.
  explicit Readiness(std::vector<Subgroup> const& subgroups);

  /// Begins an update: nothing is ready.
  void begin();
  /// Begins an update of another kind, subgroup by subgroup: this subgroup's parameters are not
  /// ready from now on.
  void expect(std::int64_t subgroup);
  /// Says that the subgroup's new parameters are in place.
  void done(std::int64_t subgroup);
  /// Says that there is no update after all: everything is ready.
  void finish();
  /// Says that the update has failed. Present and later waits throw the first such error, until
  /// begin().
  void fail(std::exception_ptr error) noexcept;
  /// Blocks until elements [begin, end) of the shard are ready. Errors: rethrows the error that
  /// fail() was given.
  void wait(std::int64_t begin, std::int64_t end);

 private:
  std::vector<Subgroup> const& subgroups_;
  std::mutex mutex_;  ///< guards all members below
  std::condition_variable changed_;
  std::vector<bool> ready_;
  std::exception_ptr error_;
};

}  // namespace offstage::state
