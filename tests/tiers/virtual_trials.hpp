#pragma once

#include <gtest/gtest.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "tiers/trial_support.hpp"

namespace offstage::tiers {

/// Trials in the virtual tier.
class VirtualTrials : public ::testing::Test, public VirtualFixture {
 protected:
  /// `n` extents, the last `cached` of them in memory.
  void fill(Key n, std::int64_t cached, std::int64_t spare_slots, std::int64_t spare_buffers) {
    if (paths.empty()) {
      add_path();
    }
    settings.cached = cached;
    settings.spare_slots = spare_slots;
    settings.spare_buffers = spare_buffers;
    tiers = make_filled(n);
  }
  void fail_writes(std::size_t from_path = 0) {
    kernel->on_complete = [this, from_path](aio::Transfer const& transfer,
                                            aio::Completion& completion) {
      if (transfer.direction == aio::Direction::write && path_of(transfer) >= from_path) {
        completion.result = -EIO;
      }
    };
  }
  /// What `work` reads and writes, in extents, and what it finds in memory.
  template <class Work>
  std::vector<std::int64_t> moved(Work const& work) {
    Traffic const before = tiers->traffic();
    work();
    Traffic const after = tiers->traffic();
    return {after.hits - before.hits, (after.read_bytes() - before.read_bytes()) / (8 * KiB),
            (after.write_bytes() - before.write_bytes()) / (8 * KiB)};
  }
  /// A pass in which every key that finds a spare is on trial.
  void trial_pass(std::vector<Key> const& order, int before) {
    tiers->begin_pass();
    for (Key const key : order) {
      auto on_trial = tiers->fetch_on_trial(key);
      Lease lease = on_trial ? Lease{*std::move(on_trial)} : tiers->fetch(key);
      int const value = static_cast<int>(key) + before;
      EXPECT_TRUE(all(lease.bytes(), value));
      set(lease, value + 1);
      lease.commit();
    }
  }

  std::unique_ptr<Tiers> tiers;
};

}  // namespace offstage::tiers
