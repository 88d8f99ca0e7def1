#include "train/memory/sums.hpp"

#include <gtest/gtest.h>

#include "base/dtype.hpp"
#include "train/memory/memory_demand.hpp"
#include "train/small_runs.hpp"

namespace offstage::train {
namespace {

/// Twelve micro-batches of a model of one block.
config::RunConfig small(std::int64_t block) {
  auto config = small_run(1, 24);
  config.numerics.accumulate_fp32 = true;
  config.numerics.sum_block = block;
  config.subgroup_size = 1 << 20;
  config.device.kind = config::DeviceKind::host;
  return config;
}

TEST(Sums, HaveTwoLevelsWhereABlockIsNeitherOneMicroBatchNorAll) {
  EXPECT_EQ(sum_block(small(1)), 0);
  EXPECT_EQ(sum_block(small(2)), 2);
  EXPECT_EQ(sum_block(small(11)), 11);
  EXPECT_EQ(sum_block(small(12)), 0);
  EXPECT_EQ(sum_block(small(100)), 0);
  EXPECT_EQ(describe_sums(small(5)), "3 blocks of 5 micro-batches (numerics.sum-block=5)");
  EXPECT_EQ(describe_sums(small(1)), "");
}

TEST(Sums, AStepInWordsSaysWhatEachRankHas) {
  EXPECT_EQ(describe_step(small(1), 1), "24 sequences, 768 tokens, 12 micro-batches");
  EXPECT_EQ(describe_step(small(1), 4),
            "24 sequences, 768 tokens, 12 micro-batches, 3 on each rank");
  EXPECT_EQ(
      describe_step(small(1), 5),
      "24 sequences, 768 tokens, 12 micro-batches, 2 to 3 on a rank; train.global-batch=20 or "
      "30 would give all as many");
  EXPECT_EQ(describe_step(small(1), 16),
            "24 sequences, 768 tokens, 12 micro-batches, 0 to 1 on a rank");
  auto blocks = small(5);
  blocks.sharding = parameters::Sharding::zero1;
  EXPECT_EQ(describe_step(blocks, 2),
            "24 sequences, 768 tokens, 12 micro-batches, 5 to 7 on a rank");
  auto one = small(1);
  one.train.global_batch = one.train.micro_batch = one.train.sequence = 1;
  EXPECT_EQ(describe_step(one, 1), "1 sequence, 1 token, 1 micro-batch");
}

TEST(Sums, OfBlocksTakeAsMuchAgainWhereTheyWait) {
  state::ShardMap const map{state::layers_of(small(1).model), 1};
  auto const demand = [&](std::int64_t block, int together) {
    auto config = small(block);
    config.train.together = together;
    return memory_demand(config, map, {});
  };
  EXPECT_EQ(demand(1, 0).gradient_bytes_per_element, 4);
  EXPECT_EQ(demand(4, 0).gradient_bytes_per_element, 8);
  EXPECT_EQ(demand(4, 12).gradient_bytes_per_element, 4) << "between rounds of a layer alone";
  Bytes const exchange = demand(1, 12).exchange_bytes;
  EXPECT_EQ(demand(4, 12).exchange_bytes - exchange, exchange - demand(1, 0).exchange_bytes);
}

TEST(Sums, OfWholeBlocksWaitOnTheDeviceAndTakeNoMoreElsewhere) {
  auto config = small(4);
  config.sharding = parameters::Sharding::zero1;
  EXPECT_EQ(describe_sums(config),
            "3 blocks of 4 micro-batches (numerics.sum-block=4), each by one rank, whole "
            "(parameters.sharding=zero1)");
  EXPECT_EQ(dealt(config, 2).count(), 8) << "two turns of blocks of four";
  EXPECT_EQ(dealt(small(4), 2).count(), 6) << "one by one";
  EXPECT_EQ(extent_sum_bytes(config), 4);
  state::ShardMap const map{state::layers_of(config.model), 2};
  Bytes all = 0;
  for (auto const& layer : map.layers()) {
    all += 4 * layer.padded_elements();
  }
  auto const bytes = [&](config::RunConfig const& of) {
    return gradient_device_bytes(of, map, 0, state::Route::staged);
  };
  EXPECT_EQ(bytes(config) - bytes(small(4)), all);
  config.numerics.accumulate_fp32 = false;
  EXPECT_EQ(bytes(config) - bytes(small(4)), all / 2);
}

}  // namespace
}  // namespace offstage::train
