#include <gtest/gtest.h>

#include "base/dtype.hpp"
#include "temporary_directory.hpp"
#include "train/memory/device_demand.hpp"
#include "train/settle/schedule_choice.hpp"
#include "train/small_runs.hpp"

namespace offstage::train {
namespace {

/// Other ranks have many threads, for which their memory plans set so much aside that nothing is
/// left for activations: alone they would want the path's rates, and rank 0 would not.
TEST(SettleForAll, IsAsRankZeroHasItWhereRanksPlanDifferently) {
  auto const world = mpi::Communicator::world();
  TemporaryDirectory const directory;
  auto config = run_of_activations(64);
  config.device.emulation = {.host_to_device = 1e12, .device_to_host = 1e12, .compute = 1e9};
  config.run_dir = "nowhere";
  config.allow_tmpfs = true;
  config.overlap = config::Switch::off;
  auto& path = config.paths.emplace_back();
  path.directory = directory.path().string();
  path.emulation = tiers::Emulation{.read_rate = 60e6, .write_rate = 30e6};
  config.threads = 1;
  state::ShardMap const map{state::layers_of(config.model), world.size()};
  Room room{.ranks_per_node = world.size(),
            .route = state::Route::staged,
            .host_memory = 64 * MiB * world.size()};
  Bytes most = 0;
  for (std::string const policy : {"recompute", "storage"}) {
    auto given = config;
    given.train.activations = activations::parse_policy(policy);
    most = std::max(most, device_demand(given, map, 0, room, config.subgroup_size).total());
  }
  room.device_memory = most;
  auto const wants_storage = [&] {
    return wanted_rates(config, map, room, given_rates(config, 1)).storage;
  };
  constexpr int most_threads = 64;
  while (!wants_storage() && config.threads < most_threads) {
    ++config.threads;
  }
  ASSERT_GT(config.threads, 1);
  config.threads = world.rank() == 0 ? 1 : config.threads;
  EXPECT_EQ(wants_storage(), world.rank() > 0);

  auto const device = device::make_host_device(0);
  auto const why = settle_for_all(config, map, world, room, *device);
  auto const first = world.broadcast_value(config.train.activations, 0);
  EXPECT_EQ(activations::describe(config.train.activations), activations::describe(first));
  EXPECT_EQ(activations::describe(first), "storage") << "it fits host memory";
  EXPECT_EQ(why, world.broadcast(why, 0));
  EXPECT_FALSE(config.paths.front().measured);
}

}  // namespace
}  // namespace offstage::train
