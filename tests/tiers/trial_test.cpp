// What trials promise wherever the extents are.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "host_tiers.hpp"
#include "tiers/device_tiers.hpp"
#include "tiers/trial_support.hpp"

namespace offstage::tiers {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

struct TrialStorage {
  int paths;
  std::int64_t cached;
  bool beside_residents = false;  ///< of a device
};

/// Four keys, each with itself in every byte, a spare of each
/// kind for all of them, and the smallest pool.
class AnyTrials : public ::testing::TestWithParam<TrialStorage>, public VirtualFixture {
 protected:
  static constexpr Key n = 4;
  AnyTrials() {
    add_paths(GetParam().paths);
    settings.cached = GetParam().cached;
    settings.spare_slots = settings.spare_buffers = n;
    tiers = make_filled(n);
    if (GetParam().beside_residents) {
      tiers = std::make_unique<DeviceTiers>(*device, n, std::vector<Bytes>{4096}, std::move(tiers));
      put(*tiers, n, 7);
    }
  }
  void expect_values(std::vector<int> const& values) {
    for (Key key = 0; key < n; ++key) {
      EXPECT_TRUE(holds(*tiers, key, values[static_cast<std::size_t>(key)])) << "key " << key;
    }
  }
  /// All spares are there again.
  void expect_spares() {
    for (Key key = 0; key < n; ++key) {
      EXPECT_TRUE(try_out(*tiers, key, 99));
    }
    EXPECT_THAT(tiers->revert_trials(), ElementsAre(0, 1, 2, 3));
  }

  std::unique_ptr<device::Device> device = device::make_host_device(0);
  std::unique_ptr<Tiers> tiers;
};

TEST_P(AnyTrials, ARevertBringsBackTheVersionsBefore) {
  for (int round = 0; round < 3; ++round) {
    EXPECT_TRUE(try_out(*tiers, 3, 13));
    EXPECT_TRUE(try_out(*tiers, 1, 11));
    EXPECT_THAT(tiers->revert_trials(), ElementsAre(1, 3));
    expect_values({0, 1, 2, 3});
    EXPECT_THAT(tiers->revert_trials(), IsEmpty());
  }
  expect_spares();
  expect_values({0, 1, 2, 3});
}

TEST_P(AnyTrials, WhatIsAcceptedStays) {
  for (int value = 11; value < 14; ++value) {
    EXPECT_TRUE(try_out(*tiers, 3, value));
    EXPECT_TRUE(try_out(*tiers, 0, value));
    tiers->accept_trials();
    EXPECT_THAT(tiers->revert_trials(), IsEmpty());
    expect_values({value, 1, 2, value});
  }
  expect_spares();
  expect_values({13, 1, 2, 13});
}

TEST_P(AnyTrials, AFetchGivesTheVersionOnTrial) {
  for (Key key = 0; key < n; ++key) {
    auto lease = tiers->fetch_on_trial(key);
    ASSERT_TRUE(lease);
    EXPECT_EQ(lease->key(), key);
    EXPECT_TRUE(all(lease->bytes(), static_cast<int>(key)));
    set(*lease, 20);
    lease->commit();
  }
  expect_values({20, 20, 20, 20});
}

TEST_P(AnyTrials, WhatReplacesAVersionOnTrialIsRevertedWithIt) {
  for (Key key = 0; key < n; ++key) {
    EXPECT_TRUE(try_out(*tiers, key, 10));
  }
  replace(*tiers, 0, 20);
  replace(*tiers, 3, 20);
  put(*tiers, 1, 30);
  { Lease const unchanged = tiers->fetch(2); }
  expect_values({20, 30, 10, 20});
  EXPECT_THAT(tiers->revert_trials(), SizeIs(4));
  expect_values({0, 1, 2, 3});
}

TEST_P(AnyTrials, ADiscardLeavesTheVersionBefore) {
  for (Key key = 0; key < n; ++key) {
    auto lease = tiers->fetch_on_trial(key);
    ASSERT_TRUE(lease);
    set(*lease, 99);
  }
  expect_values({0, 1, 2, 3});
  EXPECT_THAT(tiers->revert_trials(), IsEmpty());
  expect_spares();
}

TEST_P(AnyTrials, ARevertMendsAVersionThatWasTorn) {
  for (Key const key : {0, 3}) {
    EXPECT_TRUE(try_out(*tiers, key, 10));
    Lease lease = tiers->fetch(key);
    set(lease, 99);
  }
  EXPECT_THAT(tiers->revert_trials(), ElementsAre(0, 3));
  expect_values({0, 1, 2, 3});
  expect_spares();
}

TEST_P(AnyTrials, AKeyIsOnTrialOnceAtATime) {
  EXPECT_TRUE(try_out(*tiers, 2, 10));
  EXPECT_FALSE(tiers->fetch_on_trial(2));
  replace(*tiers, 2, 11);
  EXPECT_FALSE(tiers->fetch_on_trial(2));
  tiers->accept_trials();
  EXPECT_TRUE(try_out(*tiers, 2, 12));
  tiers->revert_trials();
  EXPECT_TRUE(holds(*tiers, 2, 11));
}

TEST_P(AnyTrials, ALeaseHeldWhileTrialsAreAcceptedIsAsAnyOther) {
  for (Key const key : {0, 3}) {
    auto committed = tiers->fetch_on_trial(key);
    ASSERT_TRUE(committed);
    tiers->accept_trials();
    set(*committed, 20);
    committed->commit();
  }
  EXPECT_THAT(tiers->revert_trials(), IsEmpty());
  expect_values({20, 1, 2, 20});
  for (Key const key : {0, 3}) {
    auto dropped = tiers->fetch_on_trial(key);
    ASSERT_TRUE(dropped);
    set(*dropped, 99);
    tiers->accept_trials();
  }
  expect_values({20, 1, 2, 20});
  expect_spares();
}

TEST_P(AnyTrials, AFetchOfNothingIsABug) {
  auto const empty = make({4096, 4096});
  EXPECT_THROW((void)empty->fetch_on_trial(0), PreconditionError);
  EXPECT_THROW((void)empty->fetch_on_trial(-1), PreconditionError);
  EXPECT_THROW((void)empty->fetch_on_trial(2), PreconditionError);
  put(*empty, 0, 1);
  EXPECT_TRUE(try_out(*empty, 0, 2)) << "the failures took something";
}

TEST_P(AnyTrials, ARevertTakesNoLeaseAway) {
  EXPECT_TRUE(try_out(*tiers, 0, 10));
  {
    Lease const of_a_trial = tiers->fetch(0);
    EXPECT_THROW(tiers->revert_trials(), PreconditionError);
  }
  {
    auto const on_trial = tiers->fetch_on_trial(1);
    EXPECT_THROW(tiers->revert_trials(), PreconditionError);
  }
  Lease other = tiers->fetch(2);
  EXPECT_THAT(tiers->revert_trials(), ElementsAre(0));
  set(other, 12);
  other.commit();
  expect_values({0, 1, 12, 3});
}

TEST_P(AnyTrials, ANewPassChangesNothing) {
  EXPECT_TRUE(try_out(*tiers, 1, 10));
  tiers->begin_pass();
  replace(*tiers, 2, 12);
  tiers->revert_trials();
  tiers->begin_pass();
  expect_values({0, 1, 12, 3});
}

INSTANTIATE_TEST_SUITE_P(Trials, AnyTrials,
                         ::testing::Values(TrialStorage{0, 100}, TrialStorage{1, 0},
                                           TrialStorage{2, 1}, TrialStorage{1, 2},
                                           TrialStorage{1, 3}, TrialStorage{1, 2, true}),
                         [](auto const& storage) {
                           return std::to_string(storage.param.paths) + "Paths" +
                                  std::to_string(storage.param.cached) + "Cached" +
                                  (storage.param.beside_residents ? "BesideResidents" : "");
                         });

TEST(Trials, OfResidentExtentsThereAreNone) {
  auto const device = device::make_host_device(0);
  DeviceTiers tiers{*device, 0, {4096}, make_host_tiers({})};
  put(tiers, 0, 1);
  EXPECT_FALSE(tiers.fetch_on_trial(0));
  EXPECT_THAT(tiers.revert_trials(), IsEmpty());
}

}  // namespace
}  // namespace offstage::tiers
