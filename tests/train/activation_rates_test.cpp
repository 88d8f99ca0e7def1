#include "train/settle/activation_rates.hpp"

#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "base/stopwatch.hpp"
#include "device/device.hpp"
#include "temporary_directory.hpp"
#include "tries.hpp"

namespace offstage::train {
namespace {

config::RunConfig some_config() {
  config::RunConfig config;
  config.model.hidden = 64;
  config.model.ffn_hidden = 256;
  config.train.sequence = 32;
  config.train.micro_batch = 4;
  config.numerics.dtype = DType::bf16;
  return config;
}

/// An emulated device's rates are known without measuring: nobody tells the configuration.
TEST(ActivationRates, AreMeasuredAsTheDeviceHasThem) {
  auto const world = mpi::Communicator::world();
  auto const node = world.split_by_node();
  auto config = some_config();
  auto const device = device::make_host_device(
      64 * MiB, {.host_to_device = 400e6, .device_to_host = 200e6, .compute = 2e8});
  auto rates = given_rates(config, node.size());
  EXPECT_FALSE(rates.rates.known());
  Bytes const before = device->used();
  Stopwatch const watch;
  measure_rates(rates, {.compute = true, .link = true}, config, world, node.size(), *device);
  EXPECT_LT(watch.elapsed(), Seconds{60});
  EXPECT_EQ(device->used(), before);
  EXPECT_TRUE(holds_in_some_try([&] {  // the same figures, and tries, on every rank
    auto again = given_rates(config, node.size());
    measure_rates(again, {.compute = true, .link = true}, config, world, node.size(), *device);
    return is_about(again.rates.compute, 2e8) && is_about(again.rates.host_to_device, 400e6) &&
           is_about(again.rates.device_to_host, 200e6);
  }));
  EXPECT_EQ(world.maximum(rates.rates.compute), -world.maximum(-rates.rates.compute));
  EXPECT_NE(describe(rates).find("(measured)"), std::string::npos);
  EXPECT_EQ(describe(rates).find("storage"), std::string::npos);
}

TEST(ActivationRates, OfPathsAreWrittenWhereEverybodyLooks) {
  auto const world = mpi::Communicator::world();
  auto const node = world.split_by_node();
  TemporaryDirectory const directory;
  auto config = some_config();
  config.run_dir = "nowhere";
  config.allow_tmpfs = true;
  config.paths.emplace_back().directory = directory.path().string();
  config.paths.front().emulation = tiers::Emulation{.read_rate = 60e6, .write_rate = 30e6};
  auto& known = config.paths.emplace_back();
  known.directory = directory.path() / "known";
  std::filesystem::create_directory(known.directory);
  known.read_rate = known.write_rate = 1e9;
  auto const device = device::make_host_device(0);
  auto rates = given_rates(config, node.size());
  EXPECT_EQ(rates.rates.storage.read, 0.0);
  measure_rates(rates, {.storage = true}, config, world, node.size(), *device);
  EXPECT_TRUE(config.paths.front().measured);
  EXPECT_FALSE(config.paths.back().measured);
  EXPECT_EQ(config.paths.back().read_rate, 1e9);
  EXPECT_TRUE(holds_in_some_try([&] {  // the same figures, and tries, on every rank
    auto const& path = config.paths.front();
    bool const holds = is_about(path.read_rate, 60e6) && is_about(path.write_rate, 30e6);
    if (!holds) {
      config.paths.front().read_rate = config.paths.front().write_rate = 0.0;
      config.paths.front().measured = false;
      rates = given_rates(config, node.size());
      measure_rates(rates, {.storage = true}, config, world, node.size(), *device);
    }
    return holds;
  }));
  EXPECT_NEAR(rates.rates.storage.read, (config.paths.front().read_rate + 1e9) / node.size(), 1.0);
  EXPECT_EQ(world.maximum(rates.rates.storage.read), -world.maximum(-rates.rates.storage.read));
}

}  // namespace
}  // namespace offstage::train
