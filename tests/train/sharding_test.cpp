#include "train/settle/sharding.hpp"

#include <gtest/gtest.h>

#include "base/dtype.hpp"
#include "train/memory/device_demand.hpp"
#include "train/small_runs.hpp"

namespace offstage::train {
namespace {

using parameters::Home;
using parameters::Sharding;

/// Twelve micro-batches of two blocks: an embedding, four layers of blocks and an untied head.
config::RunConfig small() {
  auto config = small_run(2, 24);
  config.subgroup_size = 1 << 20;
  config.device.kind = config::DeviceKind::host;
  return config;
}

// Forward uses each of the six layers, and backward the four of the blocks: the head's is over with
// forward, and an embedding's needs no parameters.
TEST(Sharding, AStepGathersALayerForEachUseOrOnce) {
  auto config = small();
  EXPECT_EQ(gathers_per_step(config, 1), 0);
  EXPECT_EQ(gathers_per_step(config, 2), 6 * (6 + 4));
  EXPECT_EQ(gathers_per_step(config, 5), 3 * (6 + 4)) << "ranks without a micro-batch take part";
  config.train.together = 6;
  EXPECT_EQ(gathers_per_step(config, 2), 6 + 4);
  config.train.together = 0;
  EXPECT_EQ(describe_gathers(config, 2),
            "60 in a step, a layer for each use; 6 with parameters.sharding=zero2");
  config.sharding = Sharding::zero2;
  EXPECT_EQ(gathers_per_step(config, 2), 6);
  EXPECT_EQ(describe_gathers(config, 2),
            "6 in a step, each layer once, in place of 60 (parameters.sharding=zero2)");
  EXPECT_TRUE(gathers_once(config, 2));
  EXPECT_FALSE(gathers_once(config, 1));
  EXPECT_EQ(describe_gathers(config, 1), "");
}

TEST(Sharding, WarnsOfRanksThatHaveNoBlock) {
  auto config = small();
  config.sharding = Sharding::zero1;
  config.numerics.sum_block = 6;
  EXPECT_EQ(warning_of_idle_ranks(config, 2), "");
  EXPECT_NE(warning_of_idle_ranks(config, 4).find(
                "are 2 blocks of 6 (numerics.sum-block), so 2 of 4 ranks stay idle; "
                "numerics.sum-block=3 has work for all"),
            std::string::npos)
      << warning_of_idle_ranks(config, 4);
  EXPECT_EQ(warning_of_idle_ranks(config, 8).find("has work for all"), std::string::npos);
  config.sharding = Sharding::zero2;
  EXPECT_EQ(warning_of_idle_ranks(config, 4), "");
}

TEST(Sharding, WarnsOfRanksThatHaveNoMicroBatch) {
  auto config = small();
  EXPECT_EQ(warning_of_idle_ranks(config, 12), "");
  EXPECT_EQ(warning_of_idle_ranks(config, 13),
            "a step has 12 micro-batches for 13 ranks: 1 of them runs no forward or backward; "
            "raise train.global-batch to 26");
  config.train.global_batch = config.train.micro_batch;
  EXPECT_EQ(warning_of_idle_ranks(config, 4),
            "a step has 1 micro-batch for 4 ranks: 3 of them run no forward or backward; raise "
            "train.global-batch to 8");
  EXPECT_EQ(warning_of_idle_ranks(config, 1), "");
}

TEST(Sharding, IsLeftToTheRoomOfTheDevice) {
  auto config = small();
  state::ShardMap const map{state::layers_of(config.model), 2};
  config.sharding = Sharding::zero2;
  auto const demand = device_demand(config, map, 0, {}, 1 << 20);
  Bytes const least = demand.total() - demand.held;
  config.sharding = Sharding::zero3;
  auto const settled = [&](Bytes memory, int ranks = 2, Home home = Home::device,
                           config::DeviceKind kind = config::DeviceKind::host) {
    auto open = config;
    open.sharding_is_open = true;
    open.parameter_home = home;
    open.device.kind = kind;
    state::ShardMap const of_ranks{state::layers_of(config.model), ranks};
    settle_sharding(open, of_ranks, {.device_memory = memory});
    EXPECT_FALSE(open.sharding_is_open);
    return open.sharding;
  };
  EXPECT_EQ(settled(least), Sharding::zero2);
  EXPECT_EQ(settled(least - 1), Sharding::zero3);
  EXPECT_EQ(settled(0), Sharding::zero2) << "no limit";
  EXPECT_EQ(settled(0, 2, Home::device, config::DeviceKind::cuda), Sharding::zero3) << "not known";
  EXPECT_EQ(settled(0, 1), Sharding::zero3) << "nothing is gathered";
  config.numerics.sum_block = 6;
  EXPECT_EQ(settled(0), Sharding::zero1) << "a block for each rank";
  EXPECT_EQ(settled(least), Sharding::zero2) << "no room for whole gradients";
  config.numerics.sum_block = 4;
  EXPECT_EQ(settled(0), Sharding::zero2) << "three blocks, one of two ranks would be idle";
  config.numerics.sum_block = 1;
  EXPECT_EQ(settled(0, 2, Home::host), Sharding::zero3);
}

}  // namespace
}  // namespace offstage::train
