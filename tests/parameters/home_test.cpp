#include "parameters/home.hpp"

#include <gtest/gtest.h>

#include <limits>

namespace offstage::parameters {
namespace {

TEST(DeviceSlots, AreAsManyAsFitButTwoAtLeastAndFourAtMost) {
  EXPECT_EQ(layer_slots({.free = 30 * MiB, .layer = 10 * MiB}), 3);
  EXPECT_EQ(layer_slots({.free = 29 * MiB, .layer = 10 * MiB}), 2);
  EXPECT_EQ(layer_slots({.free = 30 * MiB, .layer = 10 * MiB, .large = MiB}), 2);
  EXPECT_EQ(layer_slots({.free = 0, .layer = 10 * MiB}), 2);
  EXPECT_EQ(layer_slots({.free = -5 * MiB, .layer = 10 * MiB}), 2);
  EXPECT_EQ(layer_slots({.free = std::numeric_limits<Bytes>::max(), .layer = 1}), 4);
  EXPECT_EQ(layer_slots({.free = GiB, .layer = 0}), 4);
}

TEST(HostExtents, KeepEveryPathAtWorkAndFollowTheRatioOfTheBandwidths) {
  EXPECT_EQ(host_extents({}), 2);
  EXPECT_EQ(host_extents({.paths = 1}), 2);
  EXPECT_EQ(host_extents({.paths = 3}), 4);
  EXPECT_EQ(host_extents({.link = 20e9, .storage = 7e9, .paths = 1}), 4);
  EXPECT_EQ(host_extents({.link = 5e9, .storage = 20e9, .paths = 2}), 3);
  EXPECT_EQ(host_extents({.link = 20e9, .storage = 0.0, .paths = 1}), 2);
}

TEST(HostExtents, AreEightAtMost) {
  EXPECT_EQ(host_extents({.link = 1e12, .storage = 1e3, .paths = 1}), 8);
  EXPECT_EQ(host_extents({.paths = std::numeric_limits<std::int64_t>::max() - 1}), 8);
}

}  // namespace
}  // namespace offstage::parameters
