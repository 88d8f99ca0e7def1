#include "config/known_rates.hpp"

#include <gtest/gtest.h>

namespace offstage::config {
namespace {

TEST(KnownRates, AreThoseGivenAndElseThoseEmulated) {
  RunConfig config;
  config.platform.cpu_update = 5.0;
  config.platform.host_to_device = 4.0;
  config.platform.device_to_host = 9.0;
  config.platform.host_to_device_both = 3.0;
  config.platform.device_to_host_both = 8.0;
  config.device.emulation.device_update = 6.0;
  config.device.emulation.host_to_device = 7.0;
  config.device.emulation.device_to_host = 2.0;
  auto const rates = known_rates(config);
  EXPECT_EQ(rates.cpu_update, 5.0);
  EXPECT_EQ(rates.device_update, 6.0);
  EXPECT_EQ(rates.host_to_device, 4.0);
  EXPECT_EQ(rates.device_to_host, 9.0);
  EXPECT_EQ(rates.host_to_device_both, 3.0);
  EXPECT_EQ(rates.device_to_host_both, 8.0);
}

TEST(KnownRates, OfBothDirectionsAtOnceAreNotMadeUp) {
  RunConfig config;
  config.device.emulation.host_to_device = 7.0;
  EXPECT_EQ(known_rates(config).host_to_device_both, 0.0);
}

TEST(KnownRates, OfProductsAndSumsGoTheSameWay) {
  RunConfig config;
  EXPECT_EQ(known_compute(config), 0.0);
  EXPECT_EQ(known_host_sum(config), 0.0);
  config.platform_products = 3.0;
  config.device.emulation.host_sum = 5.0;
  EXPECT_EQ(known_compute(config), 3.0);
  EXPECT_EQ(known_host_sum(config), 5.0);
  config.device.emulation.compute = 2.0;
  config.platform_passes.host_sum = 4.0;
  EXPECT_EQ(known_compute(config), 3.0);
  EXPECT_EQ(known_host_sum(config), 4.0);
}

}  // namespace
}  // namespace offstage::config
