#pragma once

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <mutex>
#include <vector>

#include "base/units.hpp"
#include "state/shard.hpp"

namespace offstage::state {

/// Which parts of the working copy hold the present step's parameters: an update that still goes on
/// while the next forward runs says so, subgroup by subgroup, and whoever reads a layer waits for
/// its part.
///
/// Threads: any.
class Readiness {
 public:
  /// Everything is ready at first.
  explicit Readiness(std::vector<Subgroup> const& subgroups);

  /// An update begins: nothing is ready.
  void begin();
  /// Another kind of update begins, subgroup by subgroup: this one's parameters are not ready from
  /// now on.
  void expect(std::int64_t subgroup);
  /// The subgroup's new parameters are in place.
  void done(std::int64_t subgroup);
  /// There is no update after all: everything is ready.
  void finish();
  /// The update has failed: everyone who waits or will wait gets the first such error, until
  /// begin().
  void fail(std::exception_ptr error) noexcept;
  /// Blocks until elements [begin, end) of the shard are ready. Errors: rethrows what fail was
  /// given.
  void wait(std::int64_t begin, std::int64_t end);
  /// So far, by all waits together.
  [[nodiscard]] Seconds waited() const;

 private:
  std::vector<Subgroup> const& subgroups_;
  mutable std::mutex mutex_;  ///< guards all below
  std::condition_variable changed_;
  std::vector<bool> ready_;
  std::exception_ptr error_;
  Seconds waited_{};
};

}  // namespace offstage::state
