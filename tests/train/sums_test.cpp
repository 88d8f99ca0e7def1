#include "train/memory/sums.hpp"

#include <gtest/gtest.h>

#include "base/dtype.hpp"
#include "train/memory/memory_demand.hpp"

namespace offstage::train {
namespace {

/// Twelve micro-batches of a model of one block.
config::RunConfig small(std::int64_t block) {
  config::RunConfig config;
  config.model = {.layers = 1,
                  .hidden = 64,
                  .heads = 4,
                  .kv_heads = 4,
                  .ffn_hidden = 128,
                  .vocab = 256,
                  .max_sequence = 32};
  config.train.sequence = 32;
  config.train.micro_batch = 2;
  config.train.global_batch = 24;
  config.train.activations = {activations::Policy::Rule::keep};
  config.numerics.dtype = DType::bf16;
  config.numerics.accumulate_fp32 = true;
  config.numerics.sum_block = block;
  config.subgroup_size = 1 << 20;
  config.share.device_share = 0.0;
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

TEST(Sums, OfBlocksTakeAsMuchAgainWhereTheyWait) {
  state::ShardMap const map{state::layers_of(small(1).model), 1};
  auto const demand = [&](std::int64_t block, int together) {
    auto config = small(block);
    config.train.together = together;
    return memory_demand<bfloat16>(config, map, {});
  };
  EXPECT_EQ(demand(1, 0).gradient_bytes_per_element, 4);
  EXPECT_EQ(demand(4, 0).gradient_bytes_per_element, 8);
  EXPECT_EQ(demand(4, 12).gradient_bytes_per_element, 4) << "between rounds of a layer alone";
  Bytes const exchange = demand(1, 12).exchange_bytes;
  EXPECT_EQ(demand(4, 12).exchange_bytes - exchange, exchange - demand(1, 0).exchange_bytes);
}

}  // namespace
}  // namespace offstage::train
