// Whatever allocation of the tiers fails: it ends with an error that says so, leaves nothing open
// and no file, and all is done the next time.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/failing_allocations.hpp"
#include "host_tiers.hpp"
#include "platform/aio/kernel.hpp"
#include "tiers/virtual_support.hpp"

namespace offstage::tiers {
namespace {

void expect_typed(std::vector<StarvedRun> const& runs) {
  EXPECT_FALSE(runs.empty());
  for (StarvedRun const& run : runs) {
    EXPECT_FALSE(run.is_data_error) << run.first << ": " << run.message;
    EXPECT_EQ(run.more_descriptors, 0) << run.first << ": " << run.message;
  }
}

/// Writes and reads every extent, in a pass as an update makes it.
void go_round(Tiers& tiers, Key extents) {
  for (Key key = 0; key < extents; ++key) {
    put(tiers, key, static_cast<int>(key));
  }
  for (Key key = 0; key < extents; ++key) {
    Lease lease = tiers.fetch(key);
    EXPECT_TRUE(all(lease.bytes(), static_cast<int>(key)));
    set(lease, 100 + static_cast<int>(key));
    lease.commit();
  }
  for (Key key = 0; key < extents; ++key) {
    EXPECT_TRUE(all(tiers.fetch(key).bytes(), 100 + static_cast<int>(key)));
  }
}

TEST(StarvedTiers, InHostMemoryEndWithAnError) {
  for (bool const forever : {false, true}) {
    expect_typed(starve(
        [] {
          go_round(*make_host_tiers({8 * KiB, 8 * KiB, 4 * KiB}), 3);
        },
        [] {}, forever));
  }
}

TEST(StarvedTiers, OnStorageEndWithAnErrorAndLeaveNoFile) {
  VirtualFixture fixture;
  fixture.kernel =
      nullptr;  // the real one: that of the fixture takes memory while requests are in flight
  fixture.add_paths(2);
  fixture.settings.cached = 1;
  for (bool const forever : {false, true}) {
    expect_typed(starve(
        [&] {
          go_round(*fixture.make({8 * KiB, 8 * KiB, 8 * KiB, 8 * KiB}), 4);
        },
        [&] {
          for (PathSettings const& path : fixture.paths) {
            EXPECT_TRUE(std::filesystem::is_empty(path.directory));
          }
        },
        forever));
  }
}

// The state is what it was: a flush that had no memory is no write that got lost.
TEST(StarvedTiers, OnStorageKeepTheStateOfWhatFailed) {
  VirtualFixture fixture;
  fixture.kernel = nullptr;
  fixture.add_path();
  auto const tiers = fixture.make_filled(4);
  int value = 0;
  expect_typed(starve(
      [&] {
        Lease lease = tiers->fetch(1);
        set(lease, value + 1);
        lease.commit();
        ++value;
      },
      [&] {
        std::byte const found = tiers->fetch(1).bytes().front();
        EXPECT_TRUE(found == static_cast<std::byte>(value) ||
                    found == static_cast<std::byte>(value + 1));
        put(*tiers, 1, value);
        EXPECT_TRUE(all(tiers->fetch(2).bytes(), 2));
      }));
}

/// Every write fails.
class NoWrites final : public aio::Kernel {
 public:
  int setup(int /*depth*/, Context& /*context*/) override { return 0; }
  int submit(Context /*context*/, aio::Transfer const& transfer) override {
    tag_ = transfer.tag;
    return 0;
  }
  int get_events(Context /*context*/, std::span<aio::Completion> completions) override {
    completions[0] = {tag_, -EIO};
    return 1;
  }
  void destroy(Context /*context*/) noexcept override {}
  void pause(Seconds /*duration*/) override {}

 private:
  int tag_{};
};

TEST(StarvedTiers, OnStorageThatTakesNothingHoldWhatCouldNotBeWritten) {
  VirtualFixture fixture;
  fixture.add_path();
  auto const kernel = std::make_shared<NoWrites>();
  expect_typed(starve([&] {
    fixture.settings.paths = make_paths({.paths = fixture.paths, .kernel = kernel});
    auto const tiers = make_virtual_tiers({8 * KiB, 8 * KiB}, fixture.settings);
    Lease lease = tiers->create(0);
    set(lease, 7);
    try {
      lease.commit();
    } catch (std::exception const&) {
      // Who waits for it would wait without end if it had stayed taken.
      EXPECT_TRUE(all(tiers->fetch(0).bytes(), 7));
    }
  }));
}

}  // namespace
}  // namespace offstage::tiers
