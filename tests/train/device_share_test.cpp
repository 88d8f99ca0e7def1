#include "train/step/device_share.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <vector>

namespace offstage::train {
namespace {

using testing::DoubleNear;

std::vector<state::Subgroup> subgroups_of_sizes(std::vector<std::int64_t> const& sizes) {
  std::vector<state::Subgroup> subgroups;
  for (std::int64_t const size : sizes) {
    state::Subgroup& subgroup = subgroups.emplace_back();
    subgroup.index = std::ssize(subgroups) - 1;
    subgroup.size = size;
  }
  return subgroups;
}

std::vector<std::int64_t> ascending(std::size_t count) {
  std::vector<std::int64_t> order(count);
  std::iota(order.begin(), order.end(), std::int64_t{0});
  return order;
}

config::SharePolicy fixed(double share) {
  config::SharePolicy policy;
  policy.device_share = share;
  return policy;
}

/// Elements and places of one update at a share.
std::vector<bool> places(double share, std::vector<state::Subgroup> const& subgroups) {
  DeviceShare const shared{fixed(share), {}, {}};
  std::vector<bool> places;
  for (auto const& trip : shared.trips(ascending(subgroups.size()), subgroups)) {
    places.push_back(trip.on_device);
  }
  return places;
}

constexpr plan::UpdateDemand demand{.elements = 1'000'000, .chunk = 1'000};
/// The device does three times what the cores do, and the link keeps up.
constexpr plan::UpdateRates rates{.cpu_update = 1e6,
                                  .device_update = 100e6,
                                  .host_to_device = 45e6,
                                  .device_to_host = 45e6,
                                  .host_to_device_both = 45e6,
                                  .device_to_host_both = 45e6};

TEST(DeviceShare, SpreadsTheDevicesSubgroupsEvenly) {
  auto const alike = subgroups_of_sizes(std::vector<std::int64_t>(8, 4096));
  EXPECT_EQ(places(0.25, alike),
            (std::vector<bool>{false, true, false, false, false, true, false, false}));
  EXPECT_EQ(places(0.5, alike),
            (std::vector<bool>{true, false, true, false, true, false, true, false}));
}

TEST(DeviceShare, GivesTheDeviceNothingOrAllAtTheEnds) {
  auto const subgroups = subgroups_of_sizes({4096, 8192, 4096, 12288});
  EXPECT_EQ(std::ranges::count(places(0.0, subgroups), true), 0);
  EXPECT_EQ(std::ranges::count(places(1.0, subgroups), true), 4);
}

TEST(DeviceShare, ComesAsNearAsHalfASubgroupWhateverTheSizes) {
  auto const subgroups = subgroups_of_sizes({4096, 40960, 8192, 4096, 12288, 40960, 4096, 20480});
  std::int64_t const all = 4096 + 40960 + 8192 + 4096 + 12288 + 40960 + 4096 + 20480;
  for (double share = 0.0; share <= 1.0; share += 0.05) {
    auto const on_device = places(share, subgroups);
    std::int64_t given = 0;
    for (std::size_t i = 0; i < subgroups.size(); ++i) {
      given += on_device[i] ? subgroups[i].size : 0;
    }
    EXPECT_NEAR(static_cast<double>(given), share * static_cast<double>(all), 40960 / 2.0 + 1)
        << share;
  }
}

TEST(DeviceShare, KeepsTheOrderItIsGiven) {
  auto const subgroups = subgroups_of_sizes({4096, 4096, 4096});
  std::vector<std::int64_t> const order{2, 0, 1};
  DeviceShare const shared{fixed(0.5), {}, {}};
  auto const trips = shared.trips(order, subgroups);
  ASSERT_EQ(trips.size(), 3U);
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(trips[i].subgroup, order[i]);
  }
}

TEST(DeviceShare, OfAutoIsHalfUntilAllIsMeasured) {
  DeviceShare shared{{}, demand, {}};
  EXPECT_EQ(shared.share(), 0.5);
  EXPECT_EQ(shared.expected().total, Seconds{});

  update::UpdateStats half;
  half.cpu_elements = half.device_elements = half.device.updated = 500'000;
  half.compute = Seconds{0.5};
  half.device.kernel = Seconds{0.005};
  half.device.to_device_bytes = 9'000'000;
  half.device.host_to_device = Seconds{0.2};
  half.device.to_host_bytes = 6'000'000;
  half.device.device_to_host = Seconds{0.6 / 4.5};
  shared.learn(half);
  EXPECT_THAT(shared.rates().cpu_update, DoubleNear(1e6, 1));
  EXPECT_THAT(shared.rates().host_to_device, DoubleNear(45e6, 1));
  EXPECT_EQ(shared.share(), plan::best_share(demand, shared.rates()));
  EXPECT_GT(shared.expected().total, Seconds{});
}

TEST(DeviceShare, BeginsWithWhatAPlatformFileSays) {
  DeviceShare const shared{{}, demand, rates};
  EXPECT_EQ(shared.share(), plan::best_share(demand, rates));
  EXPECT_GT(shared.share(), 0.5);
}

TEST(DeviceShare, FollowsRatesSmoothly) {
  DeviceShare shared{{}, demand, rates};
  update::UpdateStats slow;
  slow.cpu_elements = 1'000'000;
  slow.compute = Seconds{2.0};
  shared.learn(slow);
  EXPECT_THAT(shared.rates().cpu_update, DoubleNear(0.75e6, 1));
  EXPECT_EQ(shared.rates().device_update, rates.device_update)
      << "nothing was learned of the device";
}

TEST(DeviceShare, ExpectsNothingUntilThePathsItNeedsAreKnown) {
  plan::UpdateDemand stored = demand;
  stored.storage = {.read = 12'000'000, .written = 12'000'000};
  DeviceShare shared{{}, stored, rates};
  EXPECT_EQ(shared.expected().total, Seconds{});
  EXPECT_EQ(shared.share(), plan::best_share(demand, rates)) << "what is known decides";
  shared.set_paths({{.read = 20e6, .write = 20e6}, {}});
  EXPECT_EQ(shared.expected().total, Seconds{}) << "one is not known yet";
  shared.set_paths({});
  EXPECT_EQ(shared.expected().total, Seconds{}) << "all are left out";
  shared.set_paths({{.read = 20e6, .write = 20e6}});
  EXPECT_NEAR(shared.expected().total.count(), 1.2, 1e-9);
  EXPECT_NEAR(shared.expected().storage.count(), 1.2, 1e-9);
  shared.set_paths({{.read = 20e9, .write = 20e9}});
  EXPECT_LT(shared.expected().total.count(), 0.5);
  EXPECT_GT(shared.expected().total.count(), 0.2) << "cores and device";
}

TEST(DeviceShare, FollowsPathsWhereTheChoiceDependsOnThem) {
  plan::UpdateDemand spilling = demand;
  spilling.held = spilling.elements;
  spilling.storage.spilled = spilling.elements;
  DeviceShare shared{{}, spilling, rates};
  shared.set_paths({{.read = 1e12, .write = 1e12}});
  double const fast = shared.share();
  shared.set_paths({{.read = 1e5, .write = 1e5}});
  EXPECT_GT(shared.share(), fast + 0.1) << "what the device holds need not be read";
}

TEST(DeviceShare, ThatIsFixedStays) {
  DeviceShare shared{fixed(0.125), demand, rates};
  update::UpdateStats slow;
  slow.cpu_elements = 1'000'000;
  slow.compute = Seconds{20.0};
  shared.learn(slow);
  EXPECT_EQ(shared.share(), 0.125);
}

}  // namespace
}  // namespace offstage::train
